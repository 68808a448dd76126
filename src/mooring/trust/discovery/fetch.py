"""Discovery: fetching cluster-info from an API server, by a bootstrap token, within a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import Any, TypeVar

from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.pki.x509 import bundles
from mooring.trust.answertext import after_colon, answer_text, explained_by, in_brackets
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo, errors
from mooring.trust.discovery.clusterinfo import NAME, PATH, SUPERSEDED_KEY
from mooring.trust.discovery.errors import (
    CaHashMismatchError,
    ClusterInfoChangedError,
    DiscoveryError,
    ForbiddenAnswerError,
    SignatureMissingError,
    UnusableClusterInfoError,
)
from mooring.trust.discovery.pins import Pin, check_pins, pins_of
from mooring.trust.discovery.trustedcluster import TrustedCluster, published_cluster, trusted_cluster
from mooring.trust.httpexchange import (
    ACCEPT_JSON,
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_ASKED,
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
    Reply,
    Trust,
    Wait,
    send,
)
from mooring.trust.httpsurl import is_https, url_of
from mooring.trust.kubeconfig import Cluster, KubeconfigError, KubeconfigUser, address_of, discovery_cluster
from mooring.trust.kubeconfigtext import parse_kubeconfig

# Notice messages of discovery, and the type of its exchanges.

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user, without secrets. `keep`: the line stays on the terminal, as one about a failure does."""

    message: str
    keep: bool = False


DiscoveryExchange = Generator[HttpRequest | Wait | Notice, Reply, R]


# Polling of a cluster's servers until one passes discovery: rounds, budget, and repeated errors.

LEAST_SECONDS = 1.0
"""Seconds of a request, however little of the budget is left: one round is always made."""
P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polling:
    """Limits of polling: a round every `interval` seconds, for `total` seconds or `attempts` rounds.

    `jitter` is the fraction by which a wait may be longer or shorter, where the driver has entropy. `unsigned` limits the seconds
    after the first answer that has no signature for the token: the token may be unknown, or its signature late.
    """

    interval: float = 5.0
    total: float = 300.0
    attempts: int | None = None
    jitter: float = 0.0
    unsigned: float = inf

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("polling waits between its rounds: the interval is more than 0 seconds")


class Rounds:
    """Rounds of one discovery. Time is counted from the replies and the waits, not read from a clock."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self._spent = 0.0
        self._finished = 0
        self._unsigned_since: float | None = None
        self._left = inf
        self._reported = set[str]()

    def send(self, request: HttpRequest) -> Generator[HttpRequest, Reply, HttpResponse | HttpFailure]:
        """Yield one request, which has what is left of the budget, charge its duration, and return the reply."""
        left = max(LEAST_SECONDS, self._polling.total - self._spent)
        reply = yield from send(replace(request, within=min(request.within, left)))
        self._spent += reply.elapsed
        return reply

    def next_wait(self) -> Wait | None:
        """Finish a round: return the wait before the next one, or None when the budget is spent."""
        polling = self._polling
        end = polling.total
        if self._unsigned_since is not None:
            end = min(end, self._unsigned_since + polling.unsigned)
        self._finished += 1
        self._left = end - self._spent
        self._spent += polling.interval
        if self._spent > end or self._finished == polling.attempts:
            return None
        return Wait(polling.interval, polling.jitter)

    def first_that_passes(
        self, places: Iterable[P], attempt: Callable[[P], DiscoveryExchange[T]], *, drops_final: bool = True
    ) -> DiscoveryExchange[T]:
        """Return what `attempt` returns for the first place that passes, in as many rounds as there are.

        A final error ends the attempts on one place where `drops_final` is True. Raises the last error; the others are reported.
        """
        left = list(dict.fromkeys(places))
        while True:
            last: DiscoveryError | None = None
            unsigned: DiscoveryError | None = None
            for place in tuple(left):
                if last is not None:
                    yield self.report(last)
                try:
                    return (yield from attempt(place))
                except DiscoveryError as error:
                    last = error
                # Kept apart: it says more than the error of another address that is down.
                if isinstance(last, SignatureMissingError):
                    unsigned = last
                # Not asked again; the others are polled on.
                if last.final and drops_final:
                    left.remove(place)
            # There was a place, and none passed.
            assert last is not None
            if unsigned is None:
                self._unsigned_since = None
            elif self._unsigned_since is None:
                self._unsigned_since = self._spent
            wait = self.next_wait() if left else None
            if wait is None:
                raise unsigned or last
            yield self.report(last, retried=True)
            yield wait

    def report(self, error: DiscoveryError, *, retried: bool = False) -> Notice:
        """Return the notice of an error that does not end discovery. Only the first of equal notices is kept.

        `retried`: a round is over, and the notice says for how long more rounds follow.
        """
        message = str(error)
        first_time = message not in self._reported
        self._reported.add(message)
        if retried and self._polling.attempts is None and self._left < inf:
            left = format_duration(timedelta(seconds=round(self._left)))
            message = f"{message}; trying again for up to {left} more"
        return Notice(message, keep=first_time)


# Requests for the cluster-info ConfigMap, and what each response to them means.
#
# Rules kept here (docs/protocol/discovery-and-join.md):
# * A refusal is believed only from a Kubernetes server: the 404 page of a web server means that the address is wrong.
# * Over verified TLS, 401 and 403 prove the server as well as 200 does.

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
    # TLS has proved the server.
    with suppress(errors.ForbiddenAnswerError, errors.UnauthorizedAnswerError):
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


def read_public(step: str, reply: HttpResponse | HttpFailure) -> Mapping[str, str]:
    """Return the data as `read_cluster_info` does, for a member or a person: the advice where it is not public is not a join's."""
    try:
        return read_cluster_info(step, reply)
    except (ForbiddenAnswerError, errors.UnauthorizedAnswerError) as error:
        raise errors.NotPublicError(step, reply.status, *error.values) from None


def _refusal(step: str, reply: HttpResponse, credentials: KubeconfigUser | None) -> errors.DiscoveryError:
    """Return the error for an answer other than 200, with what the server says."""
    text = _text(reply.body, credentials)
    try:
        is_status = _json_object(step, reply.body).get("kind") == "Status"
    except errors.NotKubernetesError:
        is_status = False
    # Before the status is believed: the 404 page of a web server means that the address is wrong.
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
    # The server may repeat what it was sent.
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
    if failure.kind == NOT_ASKED:
        return errors.NotAskedError(step, reason)
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


# Verification of a server by the pins of its CA alone, for a user or a machine with credentials of its own and no bootstrap token.
#
# Steps (docs/protocol/discovery-and-join.md; the numbers in error messages are the same):
#  1. fetch cluster-info without verification and without credentials: it names the CA of the server;
#  2. compare that CA with the pins;
#  3. fetch cluster-info again, TLS verified under the pinned certificates alone: the server at this address has the pinned CA.
# Everything else in cluster-info is ignored: it is not signed by a token that the user has.


def _named_ca(server: str) -> Exchange[bytes]:
    """Return the CA that an unverified cluster-info names, as PEM. Raises DiscoveryError."""
    step = f"fetching cluster-info from {server} (step 1)"
    # Nothing is sent that could be stolen, and nothing is believed but the CA, which is compared next.
    data = read_public(step, (yield from send(cluster_info_request(server, UNVERIFIED))))
    try:
        return discovery_cluster(parse_kubeconfig(data.get(clusterinfo.KUBECONFIG_KEY, ""))).ca_pem
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error)) from None


def named_pins(server: str) -> Exchange[tuple[Pin, ...]]:
    """Return the pins of the CA that whatever answers at `server` names, for a person to compare. Nothing proves them.

    Raises DiscoveryError, PkiError.
    """
    return pins_of((yield from _named_ca(server)))


def _named_and_pinned(server: str, pins: Collection[Pin]) -> Exchange[bytes]:
    """Return those certificates of the CA that an unverified cluster-info names that are pinned, as PEM. Raises DiscoveryError."""
    pinned = check_pins((yield from _named_ca(server)), pins, f"comparing the CA of {server} with the pins (step 2)")
    # Without other certificates of the bundle: one beside the pinned CA may be an attacker's.
    return bundles.certificates_pem(pinned)


def pinned_ca(server: str, pins: Collection[Pin]) -> Exchange[bytes]:
    """Return the pinned certificates of the CA of `server` (an https URL), as PEM. Raises DiscoveryError."""
    ca_pem = yield from _named_and_pinned(server, pins)
    step = f"fetching cluster-info from {server} with TLS verified (step 3)"
    reply = yield from send(cluster_info_request(server, Trust(ca_pem)))
    # TLS has proved the server.
    with suppress(ForbiddenAnswerError):
        read_cluster_info(step, reply)
    return ca_pem


def fetch_published(cluster: Cluster) -> DiscoveryExchange[TrustedCluster]:
    """Return the cluster-info of a server that the CAs of `cluster` verify. Raises DiscoveryError."""
    if not is_https(cluster.server) or cluster.insecure_skip_tls_verify:
        raise DiscoveryError(
            f"reading cluster-info of {cluster.server}",
            "nothing proves what it publishes, because TLS is not used or not verified; correct the address of the server",
        )
    step = f"fetching cluster-info from {cluster.server} with TLS verified"
    data = read_public(step, (yield from send(cluster_info_request(cluster.server, trust_of(cluster)))))
    if clusterinfo.KUBECONFIG_KEY not in data:
        raise UnusableClusterInfoError(step, f'it has no key "{clusterinfo.KUBECONFIG_KEY}"')
    config, found = published_cluster(step, data[clusterinfo.KUBECONFIG_KEY])
    superseded = frozenset(data.get(SUPERSEDED_KEY, "").split(",")) - {""}
    return replace(trusted_cluster(step, config, found, "member"), superseded=superseded)


UNPROVED = "nothing yet"
"""`TrustedCluster.via` of a cluster that a person has to compare."""


def discover_by_pins(
    endpoints: Sequence[str], pins: Collection[Pin], polling: Polling = Polling()
) -> DiscoveryExchange[TrustedCluster]:
    """Discover a cluster by the pins of its CA alone. `endpoints` are `host:port`, tried in turn. Raises DiscoveryError.

    What cluster-info says is believed in step 3, where a server with the pinned CA says it. Without pins nothing proves the CA.
    """

    def attempt(endpoint: str) -> DiscoveryExchange[TrustedCluster]:
        server = url_of(endpoint)
        ca_pem = yield from _named_and_pinned(server, pins) if pins else _named_ca(server)
        return replace((yield from fetch_published(Cluster("", server, ca_pem))), via="pins" if pins else UNPROVED)

    return (yield from Rounds(polling).first_that_passes(endpoints, attempt))


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
    # A cluster has an address.
    assert last is not None
    raise last


# Discovery by token: trust cluster-info because it is signed by a bootstrap token, and its CA because it is pinned.
#
# Steps (docs/protocol/discovery-and-join.md; the numbers in error messages are the same):
#  1. fetch cluster-info without verification and without credentials, from each address in turn, until it holds what step 2
#     needs;
#  2. verify its signature by the token: from here on the text is the cluster's own;
#  3. read the kubeconfig in it and choose the cluster;
#  4. compare its CA with the pins, and with the hash in a token of k3s's form; without either, which needs a flag named unsafe,
#     the signature is the only proof;
#  5. fetch cluster-info again, TLS verified under the pinned certificates alone, by the way that cluster-info names to this
#     address;
#  6. both texts must be equal to the byte, and the second must be signed as well.
#
# A final error ends the attempts on one server; the others are polled on. When none is left or the budget is spent, the last
# error is raised. Every error before it is reported by a notice.

SIGNATURE_ALONE = "token"
"""`TrustedCluster.via` without pins."""


VouchedCas = Callable[[bytes], bytes]
"""Returns the CAs of a bundle that a hash vouches for, as PEM. Raises ConfigError (`mooring.trust.k3s.cahash.check_ca_hash`)."""


def discover_by_token(
    endpoints: Sequence[str],
    token: BootstrapToken,
    pins: Collection[Pin],
    *,
    vouched: VouchedCas | None = None,
    unsafe_skip_ca_verification: bool = False,
    polling: Polling = Polling(),
) -> DiscoveryExchange[TrustedCluster]:
    """Discover a cluster by token. `endpoints` are `host:port`, tried in turn. With pins and `vouched` the CA must pass both.

    Raises DiscoveryError; ValueError when called without endpoints, or without pins, `vouched` and the unsafe flag.
    """
    if not endpoints:
        raise ValueError("discovery by token needs the address of an API server")
    if not pins and vouched is None and not unsafe_skip_ca_verification:
        raise ValueError("discovery by token needs pins, or the flag unsafe_skip_ca_verification")
    rounds = Rounds(polling)
    return (
        yield from rounds.first_that_passes(
            endpoints, lambda endpoint: _try_endpoint(endpoint, token, pins, vouched, rounds)
        )
    )


def _try_endpoint(
    endpoint: str, token: BootstrapToken, pins: Collection[Pin], vouched: VouchedCas | None, rounds: Rounds
) -> DiscoveryExchange[TrustedCluster]:
    server = url_of(endpoint)

    yield Notice(f"Fetching cluster-info from {endpoint} without trust, to check it by token {token.id}")
    step = f"fetching cluster-info from {endpoint} (step 1)"
    # Without verification and without credentials: the signature proves the text.
    reply = yield from rounds.send(cluster_info_request(server, UNVERIFIED))
    data = read_cluster_info(step, reply)

    text = clusterinfo.verify(data, token, f"verifying cluster-info from {endpoint} (step 2)")
    yield Notice(f"Cluster-info from {endpoint} is signed by token {token.id}")

    step = f"reading the kubeconfig of cluster-info from {endpoint} (step 3)"
    # Only after the signature was verified.
    config, cluster = published_cluster(step, text)
    warnings = ("cluster-info carries users, which were ignored",) if config.users else ()
    found = trusted_cluster(step, config, cluster, SIGNATURE_ALONE, warnings=warnings).led_by_endpoint(endpoint)
    is_pinned = bool(pins) or vouched is not None
    if is_pinned and not cluster.ca_pem:
        raise UnusableClusterInfoError(
            step, "it names no CA, so its servers are verified with a machine's own roots and there is nothing to pin",
            "join with --discovery-file, or have the administrator name the CA in cluster-info",
        )  # fmt: skip
    if not is_pinned:
        yield Notice("The CA was not compared with a pin: the token alone vouches for the cluster")
        return found

    trusted = _pinned_cas(cluster.ca_pem, pins, vouched, endpoint)
    yield Notice("The CA of the cluster is pinned; fetching cluster-info again with TLS verified")

    step = f"fetching cluster-info from {endpoint} with TLS verified (step 5)"
    # By the way that is written into kubelet.conf, so that what passes here works later.
    way = next(one for one in found.clusters if address_of(one.server) == endpoint)
    # Under the pinned certificates alone. kubeadm trusts the whole bundle here, in which a thief of the token could put
    # a CA of his own.
    reply = yield from rounds.send(cluster_info_request(way.server, replace(trust_of(way), ca_pem=trusted)))
    data = read_cluster_info(step, reply)

    step = f"comparing both copies of cluster-info from {endpoint} (step 6)"
    # What is used was read without verification. It must be what the verified server says, to the byte.
    if data.get(clusterinfo.KUBECONFIG_KEY, text) != text:
        raise ClusterInfoChangedError(step)
    # The token may have ended in between.
    clusterinfo.verify(data, token, step)
    return replace(found, via="token+pins")


def _pinned_cas(ca_pem: bytes, pins: Collection[Pin], vouched: VouchedCas | None, endpoint: str) -> bytes:
    """Return, as PEM, the certificates that both the hash and the pins name. Raises DiscoveryError."""
    if vouched is not None:
        try:
            ca_pem = vouched(ca_pem)
        except ConfigError as error:
            step = f"comparing the CA from {endpoint} with the hash in the token (step 4)"
            raise CaHashMismatchError(step, str(error)) from None
    if pins:
        pinned = check_pins(ca_pem, pins, f"comparing the CA from {endpoint} with the pins (step 4)")
        ca_pem = bundles.certificates_pem(pinned)
    return ca_pem
