"""ca.crt and kubelet.conf of a member: update them to the addresses and CAs that the cluster publishes.

Rules kept here:
* `mooring.trust.discovery.refresh` decides what changes, verified by the CAs that the member knows. No credential is sent.
* A file is written only when it changes. The written files are returned for messages.
* ca.crt holds the CAs that sign client certificates: those that the cluster names, else its only CA when that signed the member's
  certificate.
* kubelet.conf names the load balancer only after a server proved itself through it. From then on it stays.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.pairfiles import Pair
from mooring.agent.registration import MembershipEndedError
from mooring.agent.state import NodeState, through
from mooring.agent.steps import described, reason_of
from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import drive_fetching, ignore
from mooring.clock import Clock
from mooring.errors import ConfigError, MooringError
from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.verify import ClientTrust
from mooring.reminders import LastingProblem
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import Notice, prove_server
from mooring.trust.discovery.pins import pin_of
from mooring.trust.discovery.refresh import MergeBase, refresh_cluster
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.kubeconfig import Cluster, address_of

log = logging.getLogger("mooring.agent")

REFRESH_SECONDS = 300.0
"""Seconds between two refreshes: an administrator who changes a CA waits this long for every machine."""

FIRST_SECONDS = 1.0
"""Seconds before the first refresh, so that the heartbeat starts first."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Addresses of the cluster, first the one to use, and the files that were written."""

    clusters: tuple[Cluster, ...]
    written: tuple[Path, ...]
    superseded: bool = False
    """A rollover of the CA asks this member to renew its certificate."""
    retired: bool = False
    """The cluster publishes CAs of clients, and the one that signed the certificate is not among them."""


async def refresh(
    state: NodeState,
    pair: Pair,
    clock: Clock,
    endpoints: Sequence[str] = (),
    notify: Callable[[Notice], None] = ignore,
) -> Refresh:
    """Read cluster-info again and bring the files of a member up to date. Raises DiscoveryError, ConfigError."""
    known = state.read_clusters()
    if not known:
        raise ConfigError(f"{state.kubeconfig} cannot be used; join again to have it written")
    found = await drive_fetching(refresh_cluster(known, state.read_base(), endpoints), clock, notify)
    written = await write(state, pair, found.clusters, found.published, clock, merged=found.base)
    superseded = is_superseded(pair, found.published)
    return Refresh(found.clusters, written, superseded, is_retired(pair, found.published))


async def write(
    state: NodeState,
    pair: Pair,
    clusters: Sequence[Cluster],
    published: TrustedCluster,
    clock: Clock,
    *,
    merged: MergeBase | None = None,
    from_scratch: bool = False,
) -> tuple[Path, ...]:
    """Write ca.crt and kubelet.conf where they change. Return the written files. Raises ConfigError.

    `merged`: the base of a merge; None when the files take over all that is published.
    """
    before = state.read_base()
    balanced = state.balancer is not None and (
        await _leads_to_a_server(state.balancer, clusters, clock, is_in_use=state.is_balanced() and not from_scratch)
    )
    signing = client_cas(published, pair, clock.now())
    written = [state.ca] if state.write_ca(signing, before) else []
    base = merged or MergeBase.of(published) or (None if from_scratch else before)
    if base is not None and before is not None and not signing:
        # The CA is not taken over now, and so is taken over once it signs for this member.
        base = replace(base, client_ca=before.client_ca)
    if state.write_kubeconfig(clusters, base, from_scratch=from_scratch, balanced=balanced):
        written.append(state.kubeconfig)
    return tuple(written)


async def _leads_to_a_server(
    balancer: LoadBalancer, clusters: Sequence[Cluster], clock: Clock, *, is_in_use: bool
) -> bool:
    """Give the servers to the load balancer. Return True when a kubelet reaches one of them through it, or uses it already."""
    # Before the proof, which goes through the load balancer.
    balancer.update([address_of(one.server) for one in clusters])
    if is_in_use:
        return True
    # The certificates of the servers may lack the name that a kubelet verifies there.
    proved = through(balancer, clusters[0])
    try:
        await drive_fetching(prove_server(proved), clock)
    except DiscoveryError as error:
        log.warning(
            "load balancer: kubelet.conf names a server itself, as none proved through %s that it is %s: %s",
            balancer.address,
            proved.tls_server_name,
            error,
        )
        return False
    log.info("load balancer: kubelet.conf names %s; a kubelet that runs reads it when it is restarted", balancer.url)
    return True


def client_cas(published: TrustedCluster, pair: Pair, now: datetime) -> bytes:
    """Return the CAs that sign client certificates, as PEM; empty when the one that signed `pair` is not published."""
    known = published.client_ca_pem
    # An only CA that is not named as that of clients may sign servers alone: it counts once it has signed for this
    # member.
    return known if known and (published.client_ca_named or signed_by(pair, known, now)) else b""


def is_superseded(pair: Pair, published: TrustedCluster) -> bool:
    """Return True when the CA that signed the certificate is one whose certificates are to be renewed."""
    issuer = _issuer_among(published.client_ca_pem, pair) if published.superseded else None
    return issuer is not None and str(pin_of(issuer)) in published.superseded


def is_retired(pair: Pair, published: TrustedCluster) -> bool:
    """Return True when the cluster names its CAs, and none of them signed the certificate."""
    return bool(published.client_ca_pem) and _issuer_among(published.client_ca_pem, pair) is None


def _issuer_among(ca_pem: bytes, pair: Pair) -> Certificate | None:
    return next((ca for ca in bundles.certificates_among(ca_pem) if pair.leaf.is_issued_by(ca)), None)


def signed_by(pair: Pair, ca_pem: bytes, now: datetime) -> bool:
    """Return True when the certificate verifies under these CAs."""
    try:
        verify(pair, ca_pem, now)
    except PeerCertificateError:
        return False
    return True


def verify(pair: Pair, ca_pem: bytes, now: datetime) -> None:
    """Verify a client certificate. Raises PeerCertificateError."""
    trust = ClientTrust(bundles.certificates_among(ca_pem))
    trust.verify([one.der for one in pair.chain], now)


async def follow(
    state: NodeState,
    clock: Clock,
    client: ClusterClient,
    endpoints: Sequence[str],
    on_refreshed: Callable[[tuple[Cluster, ...]], Awaitable[None]],
    on_superseded: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Refresh the files of a member until cancelled, and give the addresses to `client`.

    `on_refreshed` is called with the addresses after each refresh, whether it changed a file or not. It may raise
    MembershipEndedError. `on_superseded` is called when a rollover of the CA asks for another certificate.
    """
    problem = LastingProblem(
        log.warning, "cluster-info could not be read again, addresses and CAs stay as they are: %s"
    )
    await clock.sleep(FIRST_SECONDS)
    while True:
        pair = state.client.read_pair()
        try:
            if pair is not None:
                found = await refresh(state, pair, clock, endpoints)
                if found.written:
                    log.info("the cluster published other addresses or CAs; wrote %s", listed(found.written))
                await client.use(found.clusters)
                problem.note("")
                if found.superseded:
                    on_superseded()
                await on_refreshed(found.clusters)
        except MembershipEndedError:
            raise
        except MooringError as error:
            problem.note(reason_of(error), described(error))
        await clock.sleep(REFRESH_SECONDS)


def listed(paths: Sequence[Path]) -> str:
    """Return paths as text for a message."""
    return ", ".join(str(path) for path in paths)
