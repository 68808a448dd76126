"""What discovery asks of whoever drives it, and how an answer is understood.

Rules kept here (docs/protocol/discovery-and-join.md):
* Discovery performs nothing itself (law 8): it yields `Fetch`, `Wait` and `Told`; the driver answers a Fetch with
  `HttpResponse` or `HttpFailure`, and the other two with None.
* A Fetch over TLS that is not verified carries no credential: such a Fetch cannot be made.
* The driver verifies TLS under exactly the trust given, follows no redirect, and reads no more than `max_bytes`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from mooring.trust.discovery import failures
from mooring.trust.discovery.clusterinfo import NAME, PATH
from mooring.trust.httpexchange import (
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_TLS,
    TIMEOUT,
    UNREACHABLE,
    HttpFailure,
    HttpResponse,
    Reply,
    Wait,
)
from mooring.trust.kubeconfig.model import User

FETCH_TIMEOUT = 10.0
"""Seconds for one exchange, as kubeadm's client allows."""
MAX_BODY = 4 << 20
"""A ConfigMap holds at most 1 MiB; JSON escapes can double that, metadata and indentation need a little more."""

SYSTEM_ROOTS = "system"

_TIME_WORDS = ("not yet valid", "has expired", "not-yet-valid", "expired")


@dataclass(frozen=True, slots=True)
class Fetch:
    """GET `url`. Trust: the CAs in `ca_pem`; else the machine's roots when `roots` is "system"; else TLS is not verified."""

    url: str
    ca_pem: bytes | None = None
    timeout: float = FETCH_TIMEOUT
    credentials: User | None = None
    roots: str = ""
    tls_server_name: str = ""
    proxy_url: str = ""
    max_bytes: int = MAX_BODY

    def __post_init__(self) -> None:
        if self.credentials is not None and not self.verified:
            raise ValueError("credentials are never sent to a server whose certificate is not verified")

    @property
    def verified(self) -> bool:
        """Whether the driver verifies the server's certificate and name."""
        return self.ca_pem is not None or self.roots == SYSTEM_ROOTS


@dataclass(frozen=True, slots=True)
class Told:
    """Progress for whoever watches; one line without secrets. `kept`: to be read afterwards as well, as a failure is."""

    message: str
    kept: bool = False


Step = Fetch | Wait | Told


def fetch(request: Fetch) -> Generator[Step, Reply, HttpResponse | HttpFailure]:
    """Yield one Fetch and return what came of it."""
    reply = yield request
    if reply is None:
        raise TypeError("a Fetch is answered with a response or a failure")
    return reply


def failure(step: str, failed: HttpFailure) -> failures.DiscoveryError:
    """The error for an exchange that gave no answer."""
    why = failed.text
    if failed.kind == CERTIFICATE_TIME or (failed.kind == CERTIFICATE and any(word in why for word in _TIME_WORDS)):
        return failures.ClockSkewError(step, why)
    if failed.kind == CERTIFICATE:
        return failures.CertificateError(step, why)
    if failed.kind == NOT_TLS:
        return failures.NotTlsError(step, why)
    if failed.kind == TIMEOUT:
        return failures.EndpointTimeoutError(step, why)
    if failed.kind == UNREACHABLE:
        return failures.EndpointDownError(step, why)
    return failures.FetchError(step, why)


def json_object(step: str, body: bytes) -> Mapping[str, Any]:
    """The JSON object in `body`. Raises NotKubernetesError."""
    if len(body) > MAX_BODY:
        raise failures.NotKubernetesError(step, f"longer than {MAX_BODY} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise failures.NotKubernetesError(step, "not JSON") from None
    if not isinstance(value, dict):
        raise failures.NotKubernetesError(step, "JSON, but no object")
    return value


def cluster_info_data(step: str, reply: HttpResponse | HttpFailure) -> Mapping[str, str]:
    """The data of the cluster-info ConfigMap in an answer. Raises the DiscoveryError that fits anything else.

    A status that refuses is believed only from a Kubernetes server: a web server's 404 page means the address is wrong.
    """
    if isinstance(reply, HttpFailure):
        raise failure(step, reply)
    obj = json_object(step, reply.body)
    if reply.status != 200:
        if obj.get("kind") != "Status":
            raise failures.NotKubernetesError(step, f"status {reply.status} without a Kubernetes Status")
        if reply.status == 401:
            raise failures.UnauthorizedAnswerError(step)
        if reply.status == 403:
            raise failures.ForbiddenAnswerError(step)
        if reply.status == 404:
            raise failures.ClusterInfoMissingError(step)
        raise failures.RefusedAnswerError(step, reply.status)
    metadata = obj.get("metadata")
    if obj.get("kind") != "ConfigMap" or not isinstance(metadata, dict) or metadata.get("name") != NAME:
        raise failures.NotKubernetesError(step, f"JSON, but not the ConfigMap {NAME}")
    data = obj.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise failures.NotKubernetesError(step, f"the ConfigMap {NAME} has data that is not text")
    return data


def cluster_info_url(server: str) -> str:
    """Where `server` (an https URL) publishes cluster-info."""
    return server.rstrip("/") + PATH
