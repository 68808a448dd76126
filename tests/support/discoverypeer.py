"""An in-memory cluster for discovery: answers requests of `mooring.trust.discovery.fetch` as an API server and a TLS stack would.

It serves a real ConfigMap with real signatures; faults are set as fields, not mocked calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from mooring.apimachinery.schema import Obj
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.fetch import Notice
from mooring.trust.httpexchange import (
    CERTIFICATE,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Reply,
    Trust,
    Wait,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
R = TypeVar("R")


def make_ca(name: str) -> bytes:
    """Return a self-signed CA as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


CA = make_ca("kubernetes")
OTHER_CA = make_ca("somebody else")


def token_secret(token: BootstrapToken) -> Obj:
    return tokensecret.to_secret(tokensecret.new_record(token, NOW))


@dataclass
class Server:
    """One API server. `serving_ca` signed its certificate. `override` returns the response instead, or None."""

    config_map: Obj | None
    serving_ca: bytes = CA
    override: Callable[[int, HttpRequest], HttpResponse | HttpFailure | None] = lambda count, request: None
    elapsed: float = 0.0
    requests: list[HttpRequest] = field(default_factory=list)

    def answer(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        self.requests.append(request)
        overridden = self.override(len(self.requests), request)
        if overridden is not None:
            return overridden
        trust = request.target
        assert isinstance(trust, Trust)
        if trust.verify and trust.ca_pem and self.serving_ca not in trust.ca_pem:
            return HttpFailure(CERTIFICATE, "unable to get local issuer certificate")
        if urlsplit(request.url).path != clusterinfo.PATH or self.config_map is None:
            return status(404)
        return HttpResponse(200, json.dumps(self.config_map).encode(), elapsed=self.elapsed)


def status(code: int) -> HttpResponse:
    return HttpResponse(code, json.dumps({"kind": "Status", "apiVersion": "v1", "code": code}).encode())


def signed_cluster_info(*tokens: BootstrapToken, server: str = "https://cluster.test:6443", ca: bytes = CA) -> Obj:
    config_map = clusterinfo.config_map(server, ca)
    return clusterinfo.signed(config_map, [token_secret(token) for token in tokens], NOW) or config_map


@dataclass
class Network:
    """Servers by `host:port`; records the notices of discovery, those to keep, and its waits in seconds."""

    servers: dict[str, Server]
    notices: list[str] = field(default_factory=list)
    kept_notices: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    on_wait: Callable[[int], None] = lambda count: None

    def drive(self, generator: Generator[HttpRequest | Wait | Notice, Reply, R]) -> R:
        """Run an exchange to its end. Return its result, or raise its error."""
        reply: Reply = None
        try:
            while True:
                step = generator.send(reply)
                reply = None
                if isinstance(step, Notice):
                    self.notices.append(step.message)
                    self.kept_notices += [step.message] if step.keep else []
                elif isinstance(step, Wait):
                    self.waited.append(step.seconds)
                    self.on_wait(len(self.waited))
                else:
                    reply = self._fetch(step)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def _fetch(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        server = self.servers.get(urlsplit(request.url).netloc)
        return server.answer(request) if server else HttpFailure(UNREACHABLE, "connection refused")
