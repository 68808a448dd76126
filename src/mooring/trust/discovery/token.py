"""Discovery by token: trust cluster-info because it is signed by a bootstrap token, and its CA because it is pinned.

Steps (docs/protocol/discovery-and-join.md; the numbers in error messages are the same):
 1. fetch cluster-info without verification and without credentials, from each address in turn, until it holds what step 2 needs;
 2. verify its signature by the token: from here on the text is the cluster's own;
 3. read the kubeconfig in it and choose the cluster;
 4. compare its CA with the pins, and with the hash in a token of k3s's form; without either, which needs a flag named unsafe, the
    signature is the only proof;
 5. fetch cluster-info again, TLS verified under the pinned certificates alone, by the way that cluster-info names to this address;
 6. both texts must be equal to the byte, and the second must be signed as well.

A final error ends the attempts on one server; the others are polled on. When none is left or the budget is spent, the last error
is raised. Every error before it is reported by a notice.
kubeadm trusts the whole bundle in step 5, which lets a thief of the token put a CA of his own beside the pinned one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from mooring.errors import ConfigError
from mooring.pki.x509 import bundles
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.errors import (
    CaHashMismatchError,
    ClusterInfoChangedError,
    UnusableClusterInfoError,
)
from mooring.trust.discovery.fetch import cluster_info_request, read_cluster_info, trust_of
from mooring.trust.discovery.pins import Pin, check_pins
from mooring.trust.discovery.polling import DiscoveryExchange, Notice, Polling, Rounds
from mooring.trust.discovery.trustedcluster import TrustedCluster, published_cluster, trusted_cluster
from mooring.trust.httpexchange import UNVERIFIED
from mooring.trust.httpsurl import url_of
from mooring.trust.kubeconfig.model import address_of

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
    reply = yield from rounds.send(cluster_info_request(server, UNVERIFIED))
    data = read_cluster_info(step, reply)

    text = clusterinfo.verify(data, token, f"verifying cluster-info from {endpoint} (step 2)")
    yield Notice(f"Cluster-info from {endpoint} is signed by token {token.id}")

    step = f"reading the kubeconfig of cluster-info from {endpoint} (step 3)"
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
    way = next(one for one in found.clusters if address_of(one.server) == endpoint)
    reply = yield from rounds.send(cluster_info_request(way.server, replace(trust_of(way), ca_pem=trusted)))
    data = read_cluster_info(step, reply)

    step = f"comparing both copies of cluster-info from {endpoint} (step 6)"
    if data.get(clusterinfo.KUBECONFIG_KEY, text) != text:
        raise ClusterInfoChangedError(step)
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
