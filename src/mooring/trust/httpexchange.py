"""HTTP exchanges: client protocols of several requests, as generators that a driver performs (law 8).

An exchange performs no I/O. It yields `HttpRequest` and `Wait`, and may yield notices of its own for the user. A driver
(`mooring.client.http.requests`) performs each step and sends the reply back: a response or a failure for a request, None for
anything else. One exchange therefore runs on asyncio, in tests and under a fuzzer.

Contract of every driver:
* TLS is verified under exactly the trust of the request's target. Redirects are not followed, and cookies are not kept.
* A response with a body of more than `max_bytes` is a failure.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from mooring.secret import Secret
from mooring.trust.kubeconfig import KubeconfigUser

T = TypeVar("T")

UNREACHABLE = "unreachable"
TIMEOUT = "timeout"
NOT_ASKED = "not-asked"
"""No time was left for the request: others that share it were waited for."""
NOT_TLS = "not-tls"
TLS_ALERT = "tls-alert"
CERTIFICATE = "certificate"
CERTIFICATE_TIME = "certificate-time"
NOT_HTTP = "not-http"
TOO_LONG = "too-long"
PROXY = "proxy"
"""The proxy did not connect the server, or the setting of a proxy cannot be used."""

MAX_BODY = 1 << 20
"""Bytes read of a response unless the request says otherwise."""
REQUEST_TIMEOUT = 10.0
"""Seconds, as kubeadm's client allows."""
SHORTEST_WAIT = 0.5
"""Seconds of each request where many addresses share the time."""
ACCEPT_JSON = (("accept", "application/json, */*"),)


@dataclass(frozen=True, slots=True)
class Trust:
    """Verification of a server: by the CAs in `ca_pem`, by the system's roots when it is empty, or none; and the way to it.

    `is_k3s`: see `Cluster`.
    """

    ca_pem: bytes = b""
    verify: bool = True
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    is_k3s: bool = False


SYSTEM_ROOTS = Trust()
UNVERIFIED = Trust(verify=False)
"""Only for a response that proves itself, such as signed cluster-info. A request that carries a credential refuses it."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `target` is a name for which the driver knows the server and its trust, or the trust itself.

    An empty `url` means the URL of a named target. `timeout` is in seconds, for each of connecting, the TLS handshake and the
    response; `within` for all of them together. The driver reads `max_bytes` of the body at the most.
    `authorization` is the header of that name. `secret_headers` are further headers whose values are secret. `credentials` are
    those of a kubeconfig user, who may have a client certificate or an exec plugin.
    `secret_target`: path and query of the URL, which then ends with its host and port. No log and no error shows them.
    """

    target: str | Trust
    method: str = "GET"
    url: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = REQUEST_TIMEOUT
    max_bytes: int = MAX_BODY
    authorization: Secret | None = None
    credentials: KubeconfigUser | None = None
    secret_headers: tuple[tuple[str, Secret], ...] = ()
    secret_target: Secret | None = None
    within: float = field(default=inf, compare=False)

    def __post_init__(self) -> None:
        secrets = (self.credentials, self.authorization, self.secret_target)
        has_secret = bool(self.secret_headers) or any(secret is not None for secret in secrets)
        if has_secret and isinstance(self.target, Trust) and not self.target.verify:
            raise ValueError("credentials are never sent to a server whose certificate is not verified")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response of any status. Header names are in lower case. `elapsed` is in seconds."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    elapsed: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """No whole response. `kind` is one of the constants above; `message` is the transport's own text.

    `hint` says what may help, and is often empty. `elapsed` is in seconds. `broken`: the connection was established and ended
    before the response did, so that sending the request again may help. `unsent`: no server can have received the request.
    `status` is that of the response whose body cannot be read; 0 when no head of a response arrived.
    """

    kind: str
    message: str
    hint: str = ""
    elapsed: float = field(default=0.0, compare=False)
    broken: bool = False
    unsent: bool = False
    status: int = 0

    @property
    def text(self) -> str:
        """The message with the hint."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Wait:
    """Let `seconds` pass, longer or shorter by up to the fraction `jitter`, which spreads clients that were refused together."""

    seconds: float
    jitter: float = 0.0


Reply = HttpResponse | HttpFailure | None
"""None answers every step that is not a request."""
Exchange = Generator[HttpRequest | Wait, Reply, T]
"""A client protocol without notices. One with notices names them in a type of its own."""


def send(request: HttpRequest) -> Generator[HttpRequest, Reply, HttpResponse | HttpFailure]:
    """Yield one request and return the reply to it."""
    reply = yield request
    if reply is None:
        raise TypeError("a request is answered with a response or a failure")
    return reply
