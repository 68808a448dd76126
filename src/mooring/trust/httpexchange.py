"""HTTP requests that a generator yields, and the responses that it is sent (law 8).

A client protocol of several steps is an `Exchange`: a generator that performs no I/O. It yields requests and waits. A driver
(`mooring.client.http.driver`) performs each step and sends the reply back: a response or a failure for a request, None for anything
else. One exchange therefore runs on asyncio, in tests and under a fuzzer.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

UNREACHABLE = "unreachable"
TIMEOUT = "timeout"
NOT_TLS = "not-tls"
CERTIFICATE = "certificate"
CERTIFICATE_TIME = "certificate-time"
TOO_LONG = "too-long"
FAILURE_KINDS = (UNREACHABLE, TIMEOUT, NOT_TLS, CERTIFICATE, CERTIFICATE_TIME, TOO_LONG)

MAX_BODY = 1 << 20
"""Bytes read of a response unless the request says otherwise."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. The driver knows the server and the trust that belong to the name `target`.

    An empty `url` means the URL of the target. `timeout` is in seconds. The driver reads `max_bytes` of the body at the most.
    """

    target: str
    method: str = "GET"
    url: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = 10.0
    max_bytes: int = MAX_BODY


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response of any status. Header names are in lower case. `elapsed` is in seconds."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """No whole response. `kind` is one of FAILURE_KINDS or a kind of the transport; `message` is the transport's own text.

    `hint` says what may help, and is often empty. `elapsed` is in seconds. `broken`: the connection was established and ended
    before the response did, so that sending the request again may help.
    """

    kind: str
    message: str
    hint: str = ""
    elapsed: float = 0.0
    broken: bool = False

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
Exchange = Generator[Any, Reply, T]
"""A client protocol. Each protocol names the steps that it yields beside `HttpRequest` and `Wait`."""
