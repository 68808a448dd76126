"""The result of discovery: addresses, CAs and credentials of a cluster that passed every check.

Rules kept here:
* Server addresses are https and verified, because a joining machine sends credentials there.
* The addresses used afterwards are those that cluster-info names, first the one that responded. An address that was given by the
  user and is not published comes last.
* The CA of the servers and the CA of client certificates are kept apart.
* The way to a server is one value, a `Cluster`. An address that is learned beside another is reached through the same proxy,
  unless it names one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.trust.discovery.errors import AnotherClusterError, UnusableClusterInfoError
from mooring.trust.httpsurl import url_of
from mooring.trust.kubeconfig import (
    Cluster,
    Kubeconfig,
    KubeconfigError,
    KubeconfigUser,
    address_of,
    client_cas,
    cluster_id,
    discovery_cluster,
    other_addresses,
)
from mooring.trust.kubeconfigtext import parse_kubeconfig

_HTTPS_SERVER = re.compile(r"(?i:https)://[^\s/?#@]+(/[^\s?#]*)?")


@dataclass(frozen=True, slots=True)
class TrustedCluster:
    """A cluster that passed discovery. `cluster` is the first address. An empty `ca_pem` means the system's roots."""

    cluster: Cluster
    client_credentials: KubeconfigUser | None
    warnings: tuple[str, ...]
    via: str
    """`token+pins`, `token`, `file`, `url` or `member`."""
    others: tuple[Cluster, ...] = ()
    """Further addresses of the cluster, in the order in which they are to be tried."""
    client_ca_pem: bytes = b""
    """CAs that sign client certificates; empty when they are not known."""
    published: tuple[Cluster, ...] = ()
    """Addresses that cluster-info names, as it names them; empty when it was not read."""
    superseded: frozenset[str] = frozenset()
    """Pins of CAs whose certificates members are asked to renew. Only a member reads them, from a server that it verified."""
    client_ca_named: bool = False
    """True when cluster-info names the CAs of client certificates. Otherwise they are those of its servers, as kubeadm assumes."""
    cluster_id: str = ""
    """Id of the cluster; "" when it publishes none."""

    @property
    def server(self) -> str:
        """URL of the first address."""
        return self.cluster.server

    @property
    def ca_pem(self) -> bytes:
        """CAs of the servers."""
        return self.cluster.ca_pem

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Every address, first the one to use."""
        return (self.cluster, *self.others)

    def led_by(self, turn: int) -> TrustedCluster:
        """Return the same cluster with the address at index `turn` of `clusters` in front."""
        first = self.clusters[turn]
        return replace(self, cluster=first, others=(*self.clusters[:turn], *self.clusters[turn + 1 :]))

    def led_by_endpoint(self, endpoint: str) -> TrustedCluster:
        """Return the same cluster with `endpoint` (host:port) in front, or at the end when it is not published."""
        for turn, one in enumerate(self.clusters):
            if address_of(one.server) == endpoint:
                return self.led_by(turn)
        return replace(self, others=(*self.others, Cluster(endpoint, url_of(endpoint), self.ca_pem)))


def trusted_cluster(
    step: str,
    config: Kubeconfig,
    cluster: Cluster,
    via: str,
    user: KubeconfigUser | None = None,
    warnings: tuple[str, ...] = (),
) -> TrustedCluster:
    """Return the addresses and CAs in a kubeconfig that the cluster published. Raises UnusableClusterInfoError."""
    try:
        named = client_cas(cluster)
        if named:
            bundles.certificates(named)
    except (KubeconfigError, PkiError) as error:
        raise UnusableClusterInfoError(step, f"its CA of client certificates cannot be read: {error}") from None
    first, others = replace(cluster, extensions=()), other_addresses(config, cluster)
    return TrustedCluster(
        first,
        user,
        warnings,
        via,
        others,
        named or cluster.ca_pem,
        published=(first, *others),
        client_ca_named=bool(named),
        cluster_id=cluster_id(cluster),
    )


def check_same_cluster(server: str, known_id: str, published_id: str) -> None:
    """Raise AnotherClusterError when a cluster is not the known one. An id that is not known, or not published, decides nothing."""
    if known_id and published_id and known_id != published_id:
        raise AnotherClusterError(f"comparing the cluster of {server}", published_id, known_id)


def learned_beside(known: Cluster, found: Cluster) -> Cluster:
    """Return `found`, an address of the same cluster, by the proxy through which `known` is reached unless it names one."""
    return replace(found, proxy_url=found.proxy_url or known.proxy_url)


def published_cluster(step: str, text: str) -> tuple[Kubeconfig, Cluster]:
    """Return the kubeconfig in cluster-info and the cluster that it means. Raises UnusableClusterInfoError."""
    try:
        config = parse_kubeconfig(text)
        cluster = discovery_cluster(config)
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error)) from None
    check_server(step, cluster)
    check_ca(step, cluster.ca_pem)
    if cluster.ca_file:
        raise UnusableClusterInfoError(step, "it names a file as its CA, which this machine does not have")
    return config, cluster


def check_server(step: str, cluster: Cluster) -> None:
    """Raise UnusableClusterInfoError unless the server is https and verified."""
    if _HTTPS_SERVER.fullmatch(cluster.server) is None:
        raise UnusableClusterInfoError(step, "its server is not an https URL")
    if cluster.insecure_skip_tls_verify:
        raise UnusableClusterInfoError(step, "it says insecure-skip-tls-verify, so nothing would prove the server")


def check_ca(step: str, ca_pem: bytes) -> None:
    """Raise UnusableClusterInfoError unless the bundle is empty or holds certificates."""
    try:
        _ = bundles.certificates_among(ca_pem) if ca_pem else ()
    except PkiError as error:
        raise UnusableClusterInfoError(step, f"its CA cannot be read: {error}") from None
