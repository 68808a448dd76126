"""Requests for the cluster-info ConfigMap, and what each response to them means.

Rules kept here (docs/protocol/discovery-and-join.md):
* A refusal is believed only from a Kubernetes server: the 404 page of a web server means that the address is wrong.
* Over verified TLS, 401 and 403 prove the server as well as 200 does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from mooring.pki.x509 import bundles
from mooring.trust.answertext import after_colon, answer_text, explained_by, in_brackets
from mooring.trust.discovery import clusterinfo, errors
from mooring.trust.discovery.clusterinfo import NAME, PATH
from mooring.trust.discovery.errors import DiscoveryError, ForbiddenAnswerError, UnusableClusterInfoError
from mooring.trust.discovery.pins import Pin, check_pins
from mooring.trust.discovery.polling import DiscoveryExchange, Notice
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpexchange import (
    ACCEPT_JSON,
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_TLS,
    PROXY,
    TIMEOUT,
    TOO_LONG,
    UNREACHABLE,
    UNVERIFIED,
    Exchange,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
    send,
)
from mooring.trust.kubeconfig.model import Cluster, KubeconfigError, KubeconfigUser, discovery_cluster
from mooring.trust.kubeconfig.text import parse_kubeconfig

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


# Verification of a server by the pins of its CA alone, for a user with credentials of their own and no bootstrap token.
#
# Steps (docs/protocol/discovery-and-join.md; the numbers in error messages are the same):
#  1. fetch cluster-info without verification and without credentials: it names the CA of the server;
#  2. compare that CA with the pins;
#  3. fetch cluster-info again, TLS verified under the pinned certificates alone: the server at this address has the pinned CA.
# Everything else in cluster-info is ignored: it is not signed by a token that the user has.


def pinned_ca(server: str, pins: Collection[Pin]) -> Exchange[bytes]:
    """Return the pinned certificates of the CA of `server` (an https URL), as PEM. Raises DiscoveryError."""
    step = f"fetching cluster-info from {server} (step 1)"
    data = read_cluster_info(step, (yield from send(cluster_info_request(server, UNVERIFIED))))
    try:
        cluster = discovery_cluster(parse_kubeconfig(data.get(clusterinfo.KUBECONFIG_KEY, "")))
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error)) from None

    pinned = check_pins(cluster.ca_pem, pins, f"comparing the CA of {server} with the pins (step 2)")
    ca_pem = bundles.certificates_pem(pinned)

    step = f"fetching cluster-info from {server} with TLS verified (step 3)"
    reply = yield from send(cluster_info_request(server, Trust(ca_pem)))
    with suppress(ForbiddenAnswerError):  # TLS has proved the server
        read_cluster_info(step, reply)
    return ca_pem


# Proof of the way to a discovered cluster, for a file that another program uses: exactly what is written is tried first.


def led_by_proved(found: TrustedCluster) -> DiscoveryExchange[TrustedCluster]:
    """Return the cluster with the first address in front that responds by the way to it. Raises the last DiscoveryError."""
    last: DiscoveryError | None = None
    for turn, one in enumerate(found.clusters):
        if last is not None:
            yield Notice(f"warning: {last}; {one.server} is tried instead", keep=True)
        try:
            yield from prove_server(one)
        except DiscoveryError as error:
            last = error
        else:
            return found.led_by(turn)
    assert last is not None  # a cluster has an address
    raise last
