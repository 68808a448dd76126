"""Requests for the cluster-info ConfigMap, and what each response to them means.

Rules kept here (docs/protocol/discovery-and-join.md):
* A refusal is believed only from a Kubernetes server: the 404 page of a web server means that the address is wrong.
* Over verified TLS, 401 and 403 prove the server as well as 200 does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mooring.trust.answertext import after_colon, answer_text, in_brackets
from mooring.trust.auditid import explained_by
from mooring.trust.discovery import errors
from mooring.trust.discovery.clusterinfo import NAME, PATH
from mooring.trust.discovery.notices import DiscoveryExchange
from mooring.trust.httpexchange import (
    ACCEPT_JSON,
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_TLS,
    PROXY,
    TIMEOUT,
    TOO_LONG,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
    send,
)
from mooring.trust.kubeconfig.model import Cluster, KubeconfigUser

MAX_BODY = 4 << 20
"""Bytes: a ConfigMap holds at most 1 MiB; JSON escapes can double that, metadata and indentation need a little more."""

BALANCER_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses of a load balancer or proxy that cannot pass a request on now."""
_TIME_WORDS = ("not yet valid", "has expired", "not-yet-valid", "expired")


def cluster_info_url(server: str) -> str:
    """Return the URL of cluster-info on `server`, an https URL."""
    return server.rstrip("/") + PATH


def cluster_info_request(server: str, trust: Trust, credentials: KubeconfigUser | None = None) -> HttpRequest:
    """Return the request for cluster-info on `server`."""
    url = cluster_info_url(server)
    return HttpRequest(trust, url=url, headers=ACCEPT_JSON, credentials=credentials, max_bytes=MAX_BODY)


def trust_of(cluster: Cluster) -> Trust:
    """Return the verification that a kubeconfig's cluster means."""
    return Trust(
        cluster.ca_pem,
        tls_server_name=cluster.tls_server_name,
        proxy_url=cluster.proxy_url,
        is_k3s=cluster.is_k3s,
    )


def prove_server(cluster: Cluster) -> DiscoveryExchange[None]:
    """Prove that the CAs of `cluster` verify the server at its address. Raises DiscoveryError."""
    step = f"asking {cluster.server} with the CA that cluster-info names"
    reply = yield from send(cluster_info_request(cluster.server, trust_of(cluster)))
    with suppress(errors.ForbiddenAnswerError, errors.UnauthorizedAnswerError):  # TLS has proved the server
        read_cluster_info(step, reply)


def read_cluster_info(
    step: str, reply: HttpResponse | HttpFailure, credentials: KubeconfigUser | None = None
) -> Mapping[str, str]:
    """Return the data of the cluster-info ConfigMap in a reply. Raises the DiscoveryError that fits anything else.

    `credentials` are those of the request.
    """
    if isinstance(reply, HttpFailure):
        raise connection_error(step, reply)
    if reply.status != 200:
        raise _refusal(step, reply, credentials)
    obj = _json_object(step, reply.body)
    metadata = obj.get("metadata")
    if obj.get("kind") != "ConfigMap" or not isinstance(metadata, dict) or metadata.get("name") != NAME:
        raise errors.NotKubernetesError(step, f"JSON, but not the ConfigMap {NAME}")
    data = obj.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(value, str | None) for value in data.values()):
        raise errors.NotKubernetesError(step, f"the ConfigMap {NAME} has data that is not text")
    return {key: value or "" for key, value in data.items()}


def _refusal(step: str, reply: HttpResponse, credentials: KubeconfigUser | None) -> errors.DiscoveryError:
    """Return the error for an answer other than 200, with what the server says."""
    text = _text(reply.body, credentials)
    try:
        is_status = _json_object(step, reply.body).get("kind") == "Status"
    except errors.NotKubernetesError:
        is_status = False
    if not is_status:
        if reply.status in BALANCER_STATUSES:
            return errors.BalancerAnswerError(step, reply.status, text)
        return errors.NotKubernetesError(step, f"status {reply.status} without a Kubernetes Status{after_colon(text)}")
    bracketed, explained = in_brackets(text), explained_by(reply.headers.get("audit-id", ""))
    if reply.status == 401:
        return errors.UnauthorizedAnswerError(step, bracketed, explained)
    if reply.status == 403:
        return errors.ForbiddenAnswerError(step, bracketed, explained)
    if reply.status == 404:
        return errors.ClusterInfoMissingError(step, bracketed)
    return errors.RefusedAnswerError(step, reply.status, text)


def _text(body: bytes, credentials: KubeconfigUser | None) -> str:
    """Return what the server says; "" when it repeats a secret of the request, or may: that of a plugin is not known here."""
    if credentials is None:
        return answer_text(body)
    if credentials.exec is not None:
        return ""
    secrets = [one for one in (credentials.token, credentials.password) if one]
    return answer_text(body, secrets, (credentials.username,))


def connection_error(step: str, failure: HttpFailure) -> errors.DiscoveryError:
    """Return the error for a request that failed."""
    reason = failure.text
    if failure.kind == CERTIFICATE_TIME or (
        failure.kind == CERTIFICATE and any(word in reason for word in _TIME_WORDS)
    ):
        return errors.ClockSkewError(step, reason)
    if failure.kind == CERTIFICATE:
        return errors.CertificateError(step, reason)
    if failure.kind == NOT_TLS:
        return errors.NotTlsError(step, reason)
    if failure.kind == TIMEOUT:
        return errors.EndpointTimeoutError(step, reason)
    if failure.kind == UNREACHABLE:
        return errors.EndpointDownError(step, reason)
    if failure.kind == PROXY:
        return errors.ProxyRefusalError(step, reason)
    if failure.kind == TOO_LONG:
        return errors.AnswerTooLongError(step, reason)
    return errors.FetchError(step, reason)


def _json_object(step: str, body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise errors.NotKubernetesError(step, "not JSON") from None
    if not isinstance(value, dict):
        raise errors.NotKubernetesError(step, "JSON, but no object")
    return value
