// A certified OpenID provider (oidc-provider) over TLS, with its development login, which accepts any password.
// It makes its signing key when it starts, so that a restart on the same port is a rotation.
import { generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import Provider from "oidc-provider";

const [port, certificate, key, algorithm, users] = process.argv.slice(2);
const people = JSON.parse(users);
const curve = { ES256: "P-256", ES384: "P-384", ES512: "P-521" }[algorithm];
const pair = curve ? generateKeyPairSync("ec", { namedCurve: curve }) : generateKeyPairSync("rsa", { modulusLength: 2048 });
const client = (client_id) => ({
  client_id,
  client_secret: "any",
  redirect_uris: ["https://client.example/back"],
  id_token_signed_response_alg: algorithm,
});

const provider = new Provider(`https://localhost:${port}`, {
  jwks: { keys: [{ ...pair.privateKey.export({ format: "jwk" }), alg: algorithm, use: "sig" }] },
  clients: [client("kubernetes"), client("dashboard")],
  enabledJWA: { idTokenSigningAlgValues: [algorithm] },
  pkce: { required: () => false },
  conformIdTokenClaims: false,
  claims: { openid: ["sub", "email", "email_verified", "groups"] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
  cookies: { keys: ["for tests"] },
});
createServer({ cert: readFileSync(certificate), key: readFileSync(key) }, provider.callback()).listen(Number(port), "localhost");
