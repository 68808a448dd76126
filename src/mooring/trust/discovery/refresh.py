"""Refresh of a member's addresses and CAs from what the cluster publishes.

Rules kept here:
* cluster-info is read anonymously, with TLS verified under the CAs that the member knows. So a change of CA is authenticated by
  the previous CA.
* The merge is a three-way merge. `MergeBase` is the content of cluster-info when the member's files were written. An address or CA
  that differs from it was set locally, for a load balancer for example, and stays as long as it works. So do a proxy and a
  `tls-server-name` where cluster-info names none.
* New addresses and CAs take over only after a server responded with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.trust.discovery import jws
from mooring.trust.discovery.clusterinfo import SUPERSEDED_KEY
from mooring.trust.discovery.errors import DiscoveryError, UnusableClusterInfoError
from mooring.trust.discovery.fetch import cluster_info_request, prove_server, read_cluster_info, trust_of
from mooring.trust.discovery.notices import DiscoveryExchange, Notice
from mooring.trust.discovery.trustedcluster import TrustedCluster, published_cluster, trusted_cluster
from mooring.trust.httpexchange import send
from mooring.trust.kubeconfig.model import Cluster, address_of

BASE = "mooring.dev/cluster-info"
"""Extension of the cluster in kubelet.conf."""


@dataclass(frozen=True, slots=True)
class MergeBase:
    """Addresses in cluster-info, and the SHA-256 of both its bundles, when the member's files were written."""

    servers: tuple[str, ...]
    ca: str
    client_ca: str

    @classmethod
    def of(cls, found: TrustedCluster) -> MergeBase | None:
        """Return the base for the files of a new member; None when cluster-info was not read."""
        if not found.published_servers:
            return None
        return cls(found.published_servers, digest(found.published_ca_pem), digest(found.client_ca_pem))

    def extension(self) -> Obj:
        """Return the base as an extension of kubelet.conf."""
        content = {
            "servers": list(self.servers),
            "certificate-authority": self.ca,
            "client-certificate-authority": self.client_ca,
        }
        return {"name": BASE, "extension": content}


def merge_base(cluster: Cluster) -> MergeBase | None:
    """Return the base in kubelet.conf; None when there is none that can be read."""
    for extension in cluster.extensions:
        content: Any = extension.get("extension")
        if extension.get("name") == BASE and isinstance(content, dict):
            servers = content.get("servers")
            digests = content.get("certificate-authority"), content.get("client-certificate-authority")
            if isinstance(servers, list) and all(isinstance(text, str) for text in (*servers, *digests)):
                return MergeBase(tuple(servers), str(digests[0]), str(digests[1]))
    return None


def digest(ca_pem: bytes) -> str:
    """Return the SHA-256 of a bundle, in hexadecimal digits."""
    return hashlib.sha256(ca_pem).hexdigest()


@dataclass(frozen=True, slots=True)
class Refreshed:
    """Addresses of the cluster, first the one to use, and the present content of cluster-info."""

    clusters: tuple[Cluster, ...]
    published: TrustedCluster


def refresh_cluster(
    known: Sequence[Cluster], base: MergeBase | None, endpoints: Sequence[str] = ()
) -> DiscoveryExchange[Refreshed]:
    """Read cluster-info again and merge it. `known` are the addresses of a member, `endpoints` further ones to try.

    Raises DiscoveryError when no address responds under the CAs that the member knows, or none under those published now.
    """
    current = known[0]
    typed = [Cluster(endpoint, f"https://{endpoint}", current.ca_pem) for endpoint in endpoints]
    candidates = [*known, *(one for one in typed if one.server not in {k.server for k in known})]
    responding, published = yield from _first_published(candidates)
    ca_pem = current.ca_pem if base is not None and digest(current.ca_pem) != base.ca else published.ca_pem
    listed = list(published.clusters)
    same = next((one for one in listed if one.server == current.server), None)
    if same is not None:
        listed.remove(same)
        listed.insert(0, same)
    elif base is None or current.server not in base.servers:
        listed.insert(0, current)
    last: DiscoveryError | None = None
    for bundle in dict.fromkeys((ca_pem, current.ca_pem)):
        plain = [replace(one, name=address_of(one.server), ca_pem=bundle) for one in listed]
        clusters = [_as_set_here(one, known) for one in plain]
        for turn, here in enumerate(clusters):
            for one in (here,) if here == plain[turn] else (here, plain[turn]):
                try:
                    if (one.server, trust_of(one)) != (
                        responding.server,
                        trust_of(responding),
                    ):  # else it has just responded
                        yield from prove_server(one)
                except DiscoveryError as error:
                    last = error
                    continue
                return Refreshed((one, *clusters[:turn], *clusters[turn + 1 :]), published)
    assert last is not None  # cluster-info names an address at least
    raise last


def _as_set_here(published: Cluster, known: Sequence[Cluster]) -> Cluster:
    """Return a published address with the way to it that kubelet.conf has and cluster-info leaves open."""
    here = next((one for one in known if one.server == published.server), published)
    return replace(
        published,
        tls_server_name=published.tls_server_name or here.tls_server_name,
        proxy_url=published.proxy_url or here.proxy_url,
        disable_compression=published.disable_compression or here.disable_compression,
    )


def _first_published(addresses: Sequence[Cluster]) -> DiscoveryExchange[tuple[Cluster, TrustedCluster]]:
    """Return the first address that responds, and its cluster-info."""
    last: DiscoveryError | None = None
    for one in addresses:
        if last is not None:
            yield Notice(str(last), keep=True)
        try:
            return one, (yield from _fetch_published(one))
        except DiscoveryError as error:
            last = error
    assert last is not None  # a member knows an address at least
    raise last


def _fetch_published(cluster: Cluster) -> DiscoveryExchange[TrustedCluster]:
    """Return the cluster-info of a server that the CAs of `cluster` verify. Raises DiscoveryError."""
    step = f"fetching cluster-info from {cluster.server} with TLS verified"
    data = read_cluster_info(step, (yield from send(cluster_info_request(cluster.server, trust_of(cluster)))))
    if jws.KUBECONFIG_KEY not in data:
        raise UnusableClusterInfoError(step, f'it has no key "{jws.KUBECONFIG_KEY}"')
    config, found = published_cluster(step, data[jws.KUBECONFIG_KEY])
    superseded = frozenset(data.get(SUPERSEDED_KEY, "").split(",")) - {""}
    return replace(trusted_cluster(step, config, found, "member"), superseded=superseded)
