"""GETs per second for each authenticator, on one server with all of them turned on.

Rules kept here: every caller is a member of the same group and reads the same object over kept-alive connections; only the
credential differs. Providers (an issuer, a webhook, Keystone) run in this process and answer at once: after the first request the
server has their verdicts in memory, and this is what the figures show.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooring.pki.jwt.keyset import jwks_document
from mooring.pki.jwt.token import TokenSigner
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.bundles import certificates_pem

if TYPE_CHECKING:
    from bench.servers import Server

GROUP = "bench"
PATH = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
REQUESTS = "10000"
_HOUR = timedelta(hours=1)


class Providers:
    """An OpenID issuer, a TokenReview webhook and a Keystone behind one TLS port."""

    def __init__(self, authority: Authority, now: datetime, folder: Path) -> None:
        key = generate_key()
        template = profiles.apiserver_serving(key.public_key(), now, ["localhost"], [ip_address("127.0.0.1")])
        chain, secret = folder / "providers.crt", folder / "providers.key"
        chain.write_bytes(certificates_pem([authority.sign(template, now, 7)]))
        secret.write_bytes(private_key_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, secret)
        self.signing_key: PrivateKey = generate_key()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or a body waits 40 ms for the client to acknowledge the header

            def do_GET(self) -> None:
                self._answer(200, outer.get(self.path))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                status, found = outer.post(self.path)
                self._answer(status, found)

            def _answer(self, status: int, found: Any) -> None:
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if status == 201:
                    self.send_header("X-Subject-Token", "bench")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def get(self, path: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "id_token_signing_alg_values_supported": ["ES256"],
            }
        return jwks_document([self.signing_key.public_key()])

    def post(self, path: str) -> tuple[int, Any]:
        if path == "/review":
            status = {"authenticated": True, "user": {"username": "hook", "groups": [GROUP]}}
            return 200, {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": status}
        domain = {"id": "default", "name": "Default"}
        user = {"id": "k1", "name": "stone", "domain": domain}
        until = (datetime.now(UTC) + _HOUR).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
        return 201, {"token": {"user": user, "methods": ["password"], "expires_at": until}}

    def id_token(self, now: datetime) -> str:
        begin = int(now.timestamp())
        claims = {"iss": self.url, "aud": "bench", "sub": "oidc", "groups": [GROUP], "iat": begin, "exp": begin + 3600}
        return TokenSigner(self.signing_key, self.url).sign(claims)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class Ways:
    """Flags of a server with every authenticator, and the load generator's arguments for each credential."""

    flags: tuple[str, ...]
    sent: dict[str, tuple[str, ...]]


@contextmanager
def ways(folder: Path) -> Iterator[Ways]:
    """Make files and keys, and run the providers until the end of the block."""
    now = datetime.now(UTC)
    authority = self_signed_ca(generate_key(), "bench", now, 1)
    ca = folder / "bench-ca.crt"
    ca.write_bytes(authority.certificate_pem)
    proxy = _pair(folder, "front-proxy", authority, now)
    tokens, passwords, hook = folder / "tokens.csv", folder / "passwords.csv", folder / "hook.yaml"
    tokens.write_text(f'file-token,filed,1,"{GROUP}"\n')
    passwords.write_text(f'plain-password,plain,1,"{GROUP}"\n"{_scrypt("slow-password")}",slow,2,"{GROUP}"\n')
    for secret in (tokens, passwords):
        secret.chmod(0o600)
    providers = Providers(authority, now, folder)
    hook.write_text(
        json.dumps(
            {
                "clusters": [
                    {"name": "p", "cluster": {"server": f"{providers.url}/review", "certificate-authority": str(ca)}}
                ],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "p", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    flags = (
        "--token-auth-file", str(tokens), "--basic-auth-file", str(passwords),
        "--requestheader-client-ca-file", str(ca), "--requestheader-allowed-names", "front-proxy",
        "--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
        "--oidc-issuer-url", providers.url, "--oidc-client-id", "bench", "--oidc-ca-file", str(ca),
        "--oidc-groups-claim", "groups", "--oidc-signing-algs", "ES256",
        "--authentication-token-webhook-config-file", str(hook), "--authentication-token-webhook-version", "v1",
        "--keystone-url", providers.url, "--keystone-ca-file", str(ca), "--authentication-cache-ttl", "1m",
    )  # fmt: skip
    sent = {
        "authenticating proxy": (*proxy, "-header", "X-Remote-User: proxied", "-header", f"X-Remote-Group: {GROUP}"),
        "token file": ("-token", "file-token"),
        "OpenID Connect": ("-token", providers.id_token(now)),
        "webhook": ("-token", "hook-token"),
        "password file, plain": ("-header", _basic("plain", "plain-password")),
        "password file, scrypt": ("-header", _basic("slow", "slow-password")),
        "Keystone": ("-header", _basic("stone", "any")),
    }
    try:
        yield Ways(flags, sent)
    finally:
        providers.stop()


def _pair(folder: Path, name: str, authority: Authority, now: datetime) -> tuple[str, ...]:
    key = generate_key()
    certificate = authority.sign(profiles.client(key.public_key(), now, name), now, 9)
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(certificates_pem([certificate]))
    files[1].write_bytes(private_key_pem(key))
    return ("-cert", str(files[0]), "-key", str(files[1]))


def _basic(user: str, password: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _scrypt(password: str) -> str:
    """Hash a password as `mooring auth hash-password` does."""
    salt = os.urandom(16)
    digest = hashlib.scrypt(password.encode(), salt=salt, n=1 << 14, r=8, p=1)
    encoded = (base64.b64encode(part).rstrip(b"=").decode() for part in (salt, digest))
    return "$scrypt$ln=14,r=8,p=1$" + "$".join(encoded)


def of_the_cluster(running: Server, admin: tuple[str, ...], token: str) -> dict[str, tuple[str, ...]]:
    """Return credentials that the cluster issues: certificates, service account tokens, a bootstrap token, a login."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    bound = running.request("POST", f"{accounts}/default/token", {"spec": {}})["status"]["token"]
    return {
        "client certificate": admin,
        "service account, bound token": ("-token", bound),
        "bootstrap token": ("-token", token),
    }


def allow(running: Server) -> None:
    """Bind the group of all callers to a role that may read the object."""
    groups = (GROUP, "system:serviceaccounts", "system:bootstrappers")
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name} for name in groups]
    subjects.append({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stone"})
    running.request(
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "bench-ways"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": subjects,
        },
    )


Load = Callable[..., dict[str, float]]


def rows(
    load: Load, running: Server, sent: dict[str, tuple[str, ...]], say: Callable[[str], None]
) -> Iterator[tuple[str, str]]:
    """Yield (credential, figure) for each authenticator."""
    for what, arguments in sent.items():
        say(f"authenticated by {what}")
        found = load(running, "-n", REQUESTS, "-path", PATH, *arguments)
        yield f"GET by {what}, kept alive", f"{found['per_s']:,.0f} /s, p50 {found['p50_ms']:.1f} ms"
