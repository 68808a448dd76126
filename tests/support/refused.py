"""Requests that a real server refuses; tests/server/test_reasons.py has the reason of each.

Rules kept here: a `Case` drives a whole server (`tests.support.serverroom`) and returns the refusal; outside services are replaced
by ones with a fixed response.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from mooring.api.mooring.certificaterevocation import entry_name
from mooring.apimachinery.schema import Obj
from mooring.authn import plugin
from mooring.authn.oidc.authenticator import Published
from mooring.authn.serviceaccountsettings import DEFAULT_ISSUER
from mooring.clock import rfc3339
from mooring.identity import NODES
from mooring.pki.jwt.keyset import parse_key_set
from mooring.pki.jwt.serviceaccount import LEGACY_ISSUER, Bound, LegacyToken, bound_claims
from mooring.pki.jwt.token import TokenSigner
from mooring.pki.keys import generate_key
from mooring.pki.x509 import names
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpRequest, HttpResponse
from tests.support.jwtsigner import key_for, key_set, public, signed
from tests.support.manualclock import ManualClock
from tests.support.serverroom import Reply, Server, connection
from tests.support.testca import Pair, ThrowawayCA

SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKEN = "abcdef.0123456789abcdef"
IDP = "https://idp.example"
Drive = Callable[[Server], Awaitable[Reply]]


@dataclass(frozen=True)
class Case:
    """A refused request, and the server's options that it needs."""

    drive: Drive
    options: Callable[[Path], Mapping[str, Any]] = lambda directory: {}
    """Keywords of `open_server`, given a directory for files."""
    status: int = 401


def token(text: str) -> Case:
    """Send a bearer unchanged."""
    return Case(lambda server: server.get(SECRETS, token=text))


def nothing(anonymous: str = "{enabled: false}") -> Case:
    """Send no credential, where anonymous requests are off, or allowed on other paths only."""

    def options(directory: Path) -> Mapping[str, Any]:
        file = directory / "authentication.yaml"
        file.write_text(
            f"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {anonymous}\n"
        )
        return {"authentication_config": str(file)}

    return Case(lambda server: server.get(SECRETS, via=connection()), options)


def from_elsewhere() -> Case:
    """Send no credential from a network whose anonymous requests are refused."""
    return Case(
        lambda server: server.get(SECRETS, via=connection()), lambda directory: {"anonymous_allow_cidr": ["10.0.0.0/8"]}
    )


# ── bootstrap tokens ─────────────────────────────────────────────────────────────────────────────────────────────


def restricted(networks: str) -> Case:
    """Send a bearer whose Secret allows the given networks."""

    async def drive(server: Server) -> Reply:
        await server.bootstrap_token(TOKEN)
        patched = await server.call(
            "PATCH",
            f"{SECRETS}/bootstrap-token-abcdef",
            body={"metadata": {"annotations": {"mooring.dev/allowed-cidrs": networks}}},
            content_type="application/merge-patch+json",
        )
        assert patched.status == 200, patched.text
        return await server.get(SECRETS, token=TOKEN)

    return Case(drive)


def bootstrap(bearer: str = TOKEN, later: int = 0, **data: str) -> Case:
    """Send a bearer after changes to its Secret's data, `later` seconds on."""

    async def drive(server: Server) -> Reply:
        await server.bootstrap_token(TOKEN)
        if data:
            encoded = {key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in data.items()}
            patched = await server.call(
                "PATCH",
                f"{SECRETS}/bootstrap-token-abcdef",
                body={"data": encoded},
                content_type="application/merge-patch+json",
            )
            assert patched.status == 200, patched.text
        await server.clock.advance(later)
        return await server.get(SECRETS, token=bearer)

    return Case(drive)


async def on_its_way_out(server: Server) -> Reply:
    await server.bootstrap_token(TOKEN)
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    path = f"{SECRETS}/bootstrap-token-abcdef"
    await server.call("PATCH", path, body=held, content_type="application/merge-patch+json")
    assert (await server.call("DELETE", path)).status == 200
    return await server.get(SECRETS, token=TOKEN)


async def an_ordinary_secret(server: Server) -> Reply:
    obj = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "Opaque", "stringData": {"token-id": "abcdef"}}
    assert (await server.post(SECRETS, obj)).status == 201
    return await server.get(SECRETS, token=TOKEN)


# ── certificates ─────────────────────────────────────────────────────────────────────────────────────────────────

CA_BIT = (x509.BasicConstraints(True, None), True)
CLIENT = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
SERVER = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
STRANGE = (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
LIMITS = (x509.NameConstraints([x509.DirectoryName(names.subject("jane").for_builder())], None), False)
ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")
"""The OID ecdsa-with-SHA256 in DER."""


def presented(make: Callable[[ThrowawayCA], list[Pair | bytes]], **headers: str) -> Case:
    """Present a chain made with the server's CA or another one."""

    async def drive(server: Server) -> Reply:
        chain = [one if isinstance(one, bytes) else one.der for one in make(server.ca)]
        return await server.get(SECRETS, via=connection(chain), headers=tuple(headers.items()))

    return Case(drive)


def revoked(spec: Callable[[Pair], Mapping[str, Any]]) -> Case:
    """Present the certificate of a node after an administrator has revoked it in this way."""

    async def drive(server: Server) -> Reply:
        pair = server.ca.client("system:node:n1", NODES)
        obj = {"spec": dict(spec(pair))}
        path = "/apis/mooring.dev/v1alpha1/certificaterevocations"
        created = await server.post(path, {"metadata": {"name": entry_name(obj["spec"])}, **obj})
        assert created.status == 201, created.text
        return await server.get(SECRETS, via=connection([pair.der]))

    return Case(drive)


def member(spec: Obj) -> Case:
    """Present the certificate of a node whose NodeIdentity has this spec."""

    async def drive(server: Server) -> Reply:
        identity = {"metadata": {"name": "n1"}, "spec": spec}
        assert (await server.post("/apis/mooring.dev/v1alpha1/nodeidentities", identity)).status == 201
        return await server.get(SECRETS, via=connection([server.ca.client("system:node:n1", "system:nodes").der]))

    return Case(drive)


def below(make: Callable[[ThrowawayCA], Pair]) -> Case:
    """Present a client certificate issued by an intermediate."""

    def chain(ca: ThrowawayCA) -> list[Pair | bytes]:
        issuer = make(ca)
        return [ca.custom("jane", issuer=issuer), issuer]

    return presented(chain)


def deep(ca: ThrowawayCA) -> list[Pair | bytes]:
    upper = ca.intermediate("upper", path_length=0)
    lower = ca.custom("lower", issuer=upper, extensions=[CA_BIT])
    return [ca.custom("jane", issuer=lower), lower, upper]


# ── tokens of service accounts ───────────────────────────────────────────────────────────────────────────────────


def service_token(
    header: Mapping[str, Any] | None = None, later: int = 0, stranger: bool = False, change: Any = None, **claims: Any
) -> Case:
    """Send a bound token of an existing ServiceAccount with claims changed (None leaves one out)."""

    async def drive(server: Server) -> Reply:
        found = await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
        made = bound_claims(
            issuer=DEFAULT_ISSUER,
            namespace="default",
            service_account=Bound("robot", found.obj["metadata"]["uid"]),
            audiences=[DEFAULT_ISSUER],
            now=server.clock.now(),
            lifetime=timedelta(hours=1),
            jti="1",
        )
        if change is not None:
            change(made["kubernetes.io"])
        seconds = int(server.clock.now().timestamp())
        changed = {key: value + seconds if key in ("nbf", "iat") else value for key, value in claims.items()}
        whole = {key: value for key, value in (made | changed).items() if value is not None}
        key = generate_key() if stranger else server.token_key
        text = TokenSigner(key, DEFAULT_ISSUER).sign(whole)
        if header is not None:
            real = json.loads(base64.urlsafe_b64decode(text.split(".")[0] + "=="))
            encoded = base64.urlsafe_b64encode(json.dumps(real | header).encode()).rstrip(b"=").decode()
            text = ".".join([encoded, *text.split(".")[1:]])
        await server.clock.advance(later)
        return await server.get(SECRETS, token=text)

    return Case(drive)


def bound_to(kind: str, uid: str = "1", deleted: bool = False) -> Case:
    """Send a token bound to the object `held` of this kind."""

    async def drive(server: Server) -> Reply:
        if deleted:
            obj = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
            held = await server.create("secrets", obj)
            await server.call("DELETE", "/api/v1/namespaces/default/secrets/held")
            await server.clock.advance(120)
            wanted = held.obj["metadata"]["uid"]
        else:
            wanted = uid

        def change(private: dict[str, Any]) -> None:
            private[kind] = {"name": "held", "uid": wanted}

        return await service_token(change=change).drive(server)

    return Case(drive)


async def bound_to_another(server: Server) -> Reply:
    await server.create("secrets", {"metadata": {"name": "held"}})
    return await bound_to("secret", uid="another").drive(server)


# ── OpenID providers ─────────────────────────────────────────────────────────────────────────────────────────────

OIDC = {"oidc_issuer_url": IDP, "oidc_client_id": "us"}
RULES = """
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: https://idp.example, audiences: [us]}
  claimMappings: {username: {expression: "string(claims.name)"}, groups: {claim: groups, prefix: ""}}
  claimValidationRules: [{expression: "claims.good == true", message: be good}, {claim: team, requiredValue: blue}]
  userValidationRules: [{expression: "user.username != 'mallory'", message: not mallory}]
"""


class Nobody:
    """A provider that is down."""

    async def send(self, call: HttpRequest) -> HttpFailure:
        return HttpFailure(UNREACHABLE, "connection refused")

    async def close(self) -> None:
        pass


def id_token(ready: bool = True, rules: bool = False, kid: str = "k", **claims: Any) -> Case:
    """Send a token of the provider with claims changed (None leaves one out); `ready`: its keys have been fetched."""

    async def drive(server: Server) -> Reply:
        authentication = server.assembly.trust.authentication
        (issuer,) = server.authenticator("oidc").issuers
        authentication.host.targets[issuer.provider.target] = Nobody()
        if ready:
            keys = parse_key_set(key_set(public(key_for("RS256"))))
            issuer.learn(Published(keys, f"{IDP}/keys", timedelta(hours=1)), server.clock.now())
        seconds = int(server.clock.now().timestamp())
        usual = {"iss": IDP, "aud": "us", "sub": "jane", "exp": seconds + 600}
        usual |= {"good": True, "team": "blue", "name": "jane"} if rules else {}
        changed = {key: value for key, value in (usual | claims).items() if value is not None}
        return await server.get(SECRETS, token=signed(changed, key_for("RS256"), kid=kid))

    def options(directory: Path) -> Mapping[str, Any]:
        if not rules:
            email = {"oidc_username_claim": "email"} if "email" in claims else {}
            return OIDC | email
        file = directory / "authentication.yaml"
        file.write_text(RULES)
        return {"authentication_config": str(file)}

    return Case(drive, options)


def identity_token(*, sub: str, ended: bool = False) -> Case:
    """Send an identity token, where a join rule lets in the subject `machine`; `ended`: until a second ago."""

    async def drive(server: Server) -> Reply:
        now = server.clock.now()
        issuer = {"url": IDP, "jwks": key_set(public(key_for("RS256"))).decode()}
        spec: Obj = {"issuer": issuer, "audiences": ["us"], "claims": [{"claim": "sub", "value": "machine"}]}
        if ended:
            spec["expirationTimestamp"] = rfc3339(now - timedelta(seconds=1))
        made = await server.post("/apis/mooring.dev/v1alpha1/joinrules", {"metadata": {"name": "r"}, "spec": spec})
        assert made.status == 201, made.text
        claims = {"iss": IDP, "aud": "us", "sub": sub, "jti": "1", "exp": int(now.timestamp()) + 600}
        return await server.get(SECRETS, token=signed(claims, key_for("RS256"), kid="k"))

    return Case(drive)


# ── webhooks, Keystone, password files ───────────────────────────────────────────────────────────────────────────


class Answering:
    """A service with one response to all requests."""

    def __init__(self, answer: HttpResponse | HttpFailure) -> None:
        self._answer = answer

    async def send(self, call: HttpRequest) -> HttpResponse | HttpFailure:
        return self._answer

    async def close(self) -> None:
        pass


def answered(status: int, body: Any = None, **headers: str) -> HttpResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpResponse(status, body if isinstance(body, bytes) else json.dumps(body).encode(), named)


DOWN = HttpFailure(UNREACHABLE, "connection refused")
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://hook.example/review"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""


def hooked(answer: HttpResponse | HttpFailure, bearer: bytes = b"theirs") -> Case:
    """Send a bearer that goes to a webhook with this response."""

    async def drive(server: Server) -> Reply:
        server.assembly.trust.authentication.host.targets["webhook"] = Answering(answer)
        offered = [("Authorization", f"Bearer {bearer.decode('latin-1')}")]
        return await server.get(SECRETS, via=connection(), headers=offered)

    def options(directory: Path) -> Mapping[str, Any]:
        (directory / "hook.kubeconfig").write_text(KUBECONFIG)
        return {"authentication_token_webhook_config_file": str(directory / "hook.kubeconfig")}

    return Case(drive, options)


def reviewed(**status: Any) -> HttpResponse:
    return answered(200, {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1beta1", "status": status})


def basic(user: str, password: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}")]


def keystone(answer: HttpResponse | HttpFailure, user: str = "jane") -> Case:
    """Send a password that goes to a Keystone with this response."""

    async def drive(server: Server) -> Reply:
        server.assembly.trust.authentication.host.targets["keystone"] = Answering(answer)
        return await server.get(SECRETS, via=connection(), headers=basic(user, "hunter2"))

    return Case(drive, lambda directory: {"keystone_url": "https://keystone.example"})


def named(name: str) -> HttpResponse:
    return answered(201, {"token": {"user": {"id": "1", "name": name, "domain": {"name": "Default"}}}})


def password(user: str, offered: str = "hunter2") -> Case:
    """Send a wrong password, or a user that is not in the file; "" sends no user at all."""

    def options(directory: Path) -> Mapping[str, Any]:
        file = directory / "passwords.csv"
        file.write_text("secret,jane,1\n")
        file.chmod(0o600)
        return {"basic_auth_file": str(file)}

    return Case(lambda server: server.get(SECRETS, via=connection(), headers=basic(user, offered)), options)


class Negotiating:
    """A custom authenticator of one scheme that recognises no credential."""

    schemes = ("Negotiate",)

    def __init__(self, options: Mapping[str, Any]) -> None: ...

    def authenticate(self, offered: plugin.Offered) -> plugin.Result:
        return plugin.NotMine()


def unclaimed(authorization: str) -> Case:
    """Send a credential of a scheme that a custom authenticator declares."""
    headers = [("Authorization", authorization)]
    named = [{"name": "negotiating", "class": f"{__name__}:Negotiating"}]
    return Case(
        lambda server: server.get(SECRETS, via=connection(), headers=headers), lambda _: {"authenticators": named}
    )


async def long_unused(server: Server) -> Reply:
    """Send the token of a Secret that was marked invalid."""
    account = await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    uid = account.obj["metadata"]["uid"]
    text = TokenSigner(server.token_key, LEGACY_ISSUER).sign(LegacyToken("default", "old", "robot", uid).claims())
    metadata = {
        "name": "old",
        "labels": {"kubernetes.io/legacy-token-invalid-since": "2026-01-01"},
        "annotations": {"kubernetes.io/service-account.name": "robot", "kubernetes.io/service-account.uid": uid},
    }
    data = {"token": base64.b64encode(text.encode()).decode()}
    await server.create("secrets", {"metadata": metadata, "type": "kubernetes.io/service-account-token", "data": data})
    return await server.get(SECRETS, token=text)


# ── proxies and WebSockets ───────────────────────────────────────────────────────────────────────────────────────

PROXIES = ThrowawayCA("proxies", ManualClock().now())


def proxied(name: str, *headers: tuple[str, str]) -> Case:
    """Present a proxy's certificate with this common name."""

    async def drive(server: Server) -> Reply:
        proxy = PROXIES.custom(
            name,
            not_before=server.clock.now() - timedelta(hours=1),
            not_after=server.clock.now() + timedelta(hours=1),
        )
        return await server.get(SECRETS, via=connection([proxy.der]), headers=headers)

    def options(directory: Path) -> Mapping[str, Any]:
        now_valid = directory / "proxies.crt"
        now_valid.write_bytes(PROXIES.certificate_pem)
        return {
            "requestheader_client_ca_file": str(now_valid),
            "requestheader_allowed_names": ("front",),
            "requestheader_username_headers": ("X-Remote-User",),
        }

    return Case(drive, options)


def behind_crls(*revoked: Pair, days: int = 0, present: Pair, **flags: Any) -> Case:
    """Present a proxy's certificate while the CRL of its CA, which began so many days ago, lists these."""

    async def drive(server: Server) -> Reply:
        return await server.get(SECRETS, via=connection([present.der]), headers=(("X-Remote-User", "jane"),))

    def options(directory: Path) -> Mapping[str, Any]:
        cas, crls = directory / "proxies.crt", directory / "crls.pem"
        cas.write_bytes(PROXIES.certificate_pem + UNLISTED.certificate_pem)
        crls.write_bytes(PROXIES.crl(*revoked, begin=PROXIES.now - timedelta(days=days)))
        return {
            "requestheader_client_ca_file": str(cas),
            "requestheader_username_headers": ("X-Remote-User",),
            "client_crl_file": (str(crls),),
            **flags,
        }

    return Case(drive, options, 503 if flags else 401)


UNLISTED = ThrowawayCA("unlisted", PROXIES.now)
FRONT = PROXIES.client("front")


def subprotocols(*offered: str) -> Case:
    """Request a WebSocket with these subprotocols."""
    upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
    headers = [
        *upgrade,
        ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("Sec-WebSocket-Protocol", ", ".join(offered)),
    ]
    return Case(lambda server: server.get(f"{SECRETS}?watch=1", via=connection(), headers=headers))


BEARER = "base64url.bearer.authorization.k8s.io."
