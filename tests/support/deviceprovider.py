"""An OpenID provider with the device grant, code grant with PKCE, and refresh tokens that are used once.

Rules kept here: it follows RFC 8628 section 3, RFC 7636 section 4.6 and RFC 6749 section 6, errors included. It is a function from
a request to a response, so that pure tests need no socket; `serving` puts it behind TLS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from mooring.pki.jwt.keyset import jwks_document
from mooring.pki.jwt.token import TokenSigner
from mooring.pki.keys import generate_key
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, Reply, Wait
from mooring.trust.oidc.grants import DevicePrompt
from tests.support.httphandler import HttpHandler
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

R = TypeVar("R")
Answered = tuple[int, dict[str, Any]]


@dataclass
class DeviceProvider:
    """The provider's state. `approve_after`: token requests until the user has typed the code; before it `errors` are returned."""

    issuer: str = "https://provider.example"
    approve_after: int = 1
    errors: list[str] = field(default_factory=list)
    secret: str = ""
    life: int = 3600
    device: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    refresh_tokens: set[str] = field(default_factory=set)
    codes: dict[str, str] = field(default_factory=dict)
    """State of the code grant: code → challenge."""
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signer = TokenSigner(generate_key(), self.issuer)

    def answer(self, path: str, form: dict[str, str] | None, authorization: str = "") -> Answered:
        self.requests.append(path if form is None else form.get("grant_type", path))
        if form is None:
            return self._document(path)
        if self.secret and not self._knows(form, authorization):
            return 401, {"error": "invalid_client"}
        if path == "/device":
            return 200, {
                "device_code": "device-code-1",
                "user_code": "WDJB-MJHT",
                "verification_uri": f"{self.issuer}/activate",
                "verification_uri_complete": f"{self.issuer}/activate?code=WDJB-MJHT",
                "expires_in": 1800,
                "interval": 5,
            } | self.device
        assert path == "/token"
        by_grant = {"refresh_token": self._refreshed, "authorization_code": self._redeemed}
        return by_grant.get(form["grant_type"], self._granted)(form)

    def _document(self, path: str) -> Answered:
        if path == "/jwks":
            return 200, jwks_document([self.signer.public_key])
        if path != "/.well-known/openid-configuration":
            return 404, {}
        return 200, {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/jwks",
            "token_endpoint": f"{self.issuer}/token",
            "device_authorization_endpoint": f"{self.issuer}/device",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "id_token_signing_alg_values_supported": ["ES256"],
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
        } | self.configuration

    def _knows(self, form: dict[str, str], authorization: str) -> bool:
        if authorization:
            user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            return (unquote(user), unquote(password)) == (form["client_id"], self.secret)
        return form.get("client_secret") == self.secret

    def _granted(self, form: dict[str, str]) -> Answered:
        if form["device_code"] != "device-code-1":
            return 400, {"error": "invalid_grant"}
        if self.errors:
            return 400, {"error": self.errors.pop(0)}
        if self.approve_after > 0:
            self.approve_after -= 1
            return 400, {"error": "authorization_pending"}
        return 200, self._tokens()

    def _refreshed(self, form: dict[str, str]) -> Answered:
        if form["refresh_token"] not in self.refresh_tokens:
            return 400, {"error": "invalid_grant"}
        self.refresh_tokens.discard(form["refresh_token"])
        return 200, self._tokens()

    def _redeemed(self, form: dict[str, str]) -> Answered:
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if self.codes.pop(form["code"], "") != challenge:
            return 400, {"error": "invalid_grant"}
        return 200, self._tokens()

    def log_in(self, url: str) -> str:
        """Log in with a browser at `url`. Return the address that the browser is redirected to."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        code = f"code-{len(self.requests)}"
        self.codes[code] = query["code_challenge"]
        return f"{query['redirect_uri']}?code={code}&state={query['state']}"

    def _tokens(self) -> dict[str, Any]:
        now = int(datetime.now(UTC).timestamp())
        refresh_token = f"refresh-{len(self.requests)}"
        self.refresh_tokens.add(refresh_token)
        claims = {
            "iss": self.issuer,
            "sub": "jane",
            "aud": "kubernetes",
            "iat": now,
            "exp": now + self.life,
            "groups": ["dev"],
        }
        return {"id_token": self.signer.sign(claims), "refresh_token": refresh_token, "token_type": "Bearer"}


@dataclass
class Conversation:
    """Drives an exchange against a provider and records prompts, waits (seconds) and requests.

    `down`: requests left unanswered, once the first `answered` ones have a response.
    """

    provider: DeviceProvider
    down: int = 0
    answered: int = 0
    body: bytes | None = None
    """Body that answers every request, with `status`, in the provider's place."""
    status: int = 200
    shown: list[DevicePrompt] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    requests: list[HttpRequest] = field(default_factory=list)

    def drive(self, generator: Generator[HttpRequest | Wait | DevicePrompt, Reply, R]) -> R:
        reply: Reply = None
        try:
            while True:
                step = generator.send(reply)
                reply = None
                if isinstance(step, DevicePrompt):
                    self.shown.append(step)
                elif isinstance(step, Wait):
                    self.waited.append(step.seconds)
                else:
                    reply = self._answer(step)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def _answer(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        self.requests.append(request)
        if self.down and len(self.requests) > self.answered:
            self.down -= 1
            return HttpFailure("timeout", "no answer within 15 s")
        if self.body is not None:
            return HttpResponse(self.status, self.body)
        authorization = request.authorization.reveal().decode() if request.authorization else ""
        path = request.url.removeprefix(self.provider.issuer)
        status, found = self.provider.answer(path, form_of(request), authorization)
        return HttpResponse(status, json.dumps(found).encode())


def form_of(request: HttpRequest) -> dict[str, str] | None:
    """Return the form that a request posts; None for a GET."""
    return None if request.body is None else dict(parse_qsl(request.body.decode(), strict_parsing=True))


@contextmanager
def serving(ca: ThrowawayCA, directory: Path) -> Iterator[DeviceProvider]:
    """Serve a provider over TLS on loopback, in a thread of its own."""
    port = free_port()
    provider = DeviceProvider(f"https://localhost:{port}")

    class Handler(HttpHandler):
        def do_GET(self) -> None:
            self._reply(*provider.answer(self.path, None))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {key: values[0] for key, values in parse_qs(body).items()}
            self._reply(*provider.answer(self.path, form, self.headers.get("authorization", "")))

        def _reply(self, status: int, found: dict[str, Any]) -> None:
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    certificate, key = ca.server("localhost", "127.0.0.1").write(directory, "provider")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
