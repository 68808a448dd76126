"""Refresh of a member's addresses and CAs from what the cluster publishes.

Rules kept here:
* cluster-info is read anonymously, with TLS verified under the CAs that the member knows. So a change of CA is authenticated by
  the previous CA.
* A cluster of another id is not followed: the CA of two clusters may be the same, and an address goes to another machine.
* The merge is a three-way merge. `MergeBase` is the content of cluster-info when the member's files were written. An address, a
  CA, a `tls-server-name` or a proxy that differs from it was set locally, for a load balancer for example, and stays as long as it
  works.
* The way to an address that kubelet.conf names changes only after a server responded by exactly the new way. An address that is
  new to the member takes over likewise, and stands behind those that do until then.
* An address whose proxy was learned from another address follows it: that proxy was not set locally.
* What was published and did not lead to a server is not part of the base: it is tried again, and not taken for a local change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.pki.x509 import bundles
from mooring.trust.discovery.errors import (
    AnotherClusterError,
    CertificateError,
    DiscoveryError,
    NotAskedError,
)
from mooring.trust.discovery.fetch import (
    DiscoveryExchange,
    Notice,
    fetch_published,
    prove_server,
)
from mooring.trust.discovery.trustedcluster import (
    TrustedCluster,
    check_same_cluster,
    learned_beside,
)
from mooring.trust.httpsurl import url_of
from mooring.trust.kubeconfig import Cluster, address_of

BASE = "mooring.dev/cluster-info"
"""Extension of the cluster in kubelet.conf."""
_MERGED = ("tls_server_name", "proxy_url", "disable_compression")
"""Fields of a way that are merged one by one. The CA is that of the whole cluster."""


@dataclass(frozen=True, slots=True)
class MergeBase:
    """Addresses in cluster-info, and the SHA-256 of both its bundles, as far as the member's files took them over.

    `ways` are the addresses with which cluster-info named more than a URL: `tls-server-name`, `proxy-url` or `disable-compression`.
    They have no name and no CA. `learned` are the addresses that are reached by the proxy of another one, each with that proxy.
    `cluster_id` is the id of the cluster; "" when it has published none.
    """

    servers: tuple[str, ...]
    ca: str
    client_ca: str
    ways: tuple[Cluster, ...] = ()
    learned: tuple[Cluster, ...] = ()
    cluster_id: str = ""

    @classmethod
    def of(cls, found: TrustedCluster) -> MergeBase | None:
        """Return the base for the files of a new member; None when cluster-info was not read, and no document named the cluster."""
        if not found.published:
            # As without a base, nothing counts as published. The CA counts as taken over, so that a later one replaces it.
            return cls((), digest(found.ca_pem), "", cluster_id=found.cluster_id) if found.cluster_id else None
        servers = tuple(one.server for one in found.published)
        ways = tuple(replace(one.way, ca_pem=b"") for one in found.published)
        ways = tuple(one for one in ways if one != Cluster("", one.server))
        return cls(
            servers, digest(found.published[0].ca_pem), digest(found.client_ca_pem), ways, cluster_id=found.cluster_id
        )

    def way(self, server: str) -> Cluster:
        """Return what cluster-info named with the URL of a server."""
        return next((one for one in self.ways if one.server == server), Cluster("", server))

    def has_learned(self, way: Cluster) -> bool:
        """Return True when the proxy of `way` is that of another address, and was not set locally."""
        return Cluster("", way.server, proxy_url=way.proxy_url) in self.learned

    def extension(self) -> Obj:
        """Return the base as an extension of kubelet.conf."""
        content: Obj = {
            "servers": list(self.servers),
            "certificate-authority": self.ca,
            "client-certificate-authority": self.client_ca,
        }
        if self.cluster_id:
            content["cluster-id"] = self.cluster_id
        for key, ways in (("ways", self.ways), ("learned", self.learned)):
            if ways:
                content[key] = [
                    {
                        "server": one.server,
                        "tls-server-name": one.tls_server_name,
                        "proxy-url": one.proxy_url,
                        "disable-compression": one.disable_compression,
                    }
                    for one in ways
                ]
        return {"name": BASE, "extension": content}


def merge_base(cluster: Cluster) -> MergeBase | None:
    """Return the base in kubelet.conf; None when there is none that can be read."""
    for extension in cluster.extensions:
        content: Any = extension.get("extension")
        if extension.get("name") == BASE and isinstance(content, dict):
            servers = content.get("servers")
            digests = content.get("certificate-authority"), content.get("client-certificate-authority")
            if isinstance(servers, list) and all(isinstance(text, str) for text in (*servers, *digests)):
                ways, learned = _read_ways(content.get("ways")), _read_ways(content.get("learned"))
                known_id = content.get("cluster-id")
                known_id = known_id if isinstance(known_id, str) else ""
                return MergeBase(tuple(servers), str(digests[0]), str(digests[1]), ways, learned, known_id)
    return None


def _read_ways(content: Any) -> tuple[Cluster, ...]:
    return tuple(filter(None, map(_read_way, content if isinstance(content, list) else ())))


def _read_way(content: Any) -> Cluster | None:
    if not isinstance(content, dict):
        return None
    texts = [content.get(key) for key in ("server", "tls-server-name", "proxy-url")]
    compression = content.get("disable-compression")
    if not all(isinstance(text, str) for text in texts) or not isinstance(compression, bool):
        return None
    server, name, proxy = map(str, texts)
    return Cluster("", server, tls_server_name=name, proxy_url=proxy, disable_compression=compression)


def digest(ca_pem: bytes) -> str:
    """Return the SHA-256 of a bundle, in hexadecimal digits."""
    return hashlib.sha256(ca_pem).hexdigest()


@dataclass(frozen=True, slots=True)
class MergedAddresses:
    """Addresses of the cluster, first the one to use, and the base of the next merge; None when cluster-info was not read."""

    clusters: tuple[Cluster, ...]
    base: MergeBase | None


@dataclass(frozen=True, slots=True)
class Refreshed(MergedAddresses):
    """Merged addresses with the present content of cluster-info."""

    published: TrustedCluster


def refresh_cluster(
    known: Sequence[Cluster], base: MergeBase | None, endpoints: Sequence[str] = ()
) -> DiscoveryExchange[Refreshed]:
    """Read cluster-info again and merge it. `known` are the addresses of a member, `endpoints` further ones to try.

    Raises DiscoveryError when no address responds under the CAs that the member knows, or none under those published now.
    """
    # Under the CAs that the member knows: what was read is the cluster's own.
    known_id = "" if base is None else base.cluster_id
    responding, published, foreign = yield from _ask(_candidates(known, endpoints), known_id)
    known = [one for one in known if one.server not in foreign] or [responding]
    merged = yield from merge_published(known, base, published, responding)
    return Refreshed(merged.clusters, merged.base, published)


def follow_cluster(
    known: Sequence[Cluster], base: MergeBase | None, known_id: str = ""
) -> DiscoveryExchange[Refreshed]:
    """Read cluster-info and merge it with the addresses in a kubeconfig that any program may have written.

    Without a base nothing tells what was set locally. A CA that cluster-info does not name stays where the server has no
    certificate of those that it names: the entry is about something in front of the server. `known_id`: that of the cluster, where
    no base has it. Raises as `refresh_cluster` does.
    """
    endpoints = [] if base is None else [address_of(server) for server in base.servers]
    known_id = known_id or ("" if base is None else base.cluster_id)
    responding, published, foreign = yield from _ask(_candidates(known, endpoints), known_id)
    known = [one for one in known if one.server not in foreign] or [responding]
    if base is None and not bundles.have_common(known[0].ca_pem, published.ca_pem):
        try:
            yield from prove_server(replace(responding, ca_pem=published.ca_pem))
        except CertificateError:
            base = MergeBase((), "", "", cluster_id=known_id)
    merged = yield from merge_published(known, base, published, responding)
    return Refreshed(merged.clusters, merged.base, published)


def _candidates(known: Sequence[Cluster], endpoints: Sequence[str]) -> Sequence[Cluster]:
    typed = [Cluster(endpoint, url_of(endpoint), known[0].ca_pem) for endpoint in endpoints]
    return [*known, *(one for one in typed if one.server not in {k.server for k in known})]


def merge_published(
    known: Sequence[Cluster], base: MergeBase | None, published: TrustedCluster, responding: Cluster | None = None
) -> DiscoveryExchange[MergedAddresses]:
    """Return the addresses of a member after a merge, first one that has responded. `responding` did so before.

    Raises DiscoveryError when none responds under the CAs published now, nor under those that the member knows.
    """
    current = known[0]
    # A CA that is not the one of the last merge was set locally, and stays.
    ca_pem = current.ca_pem if base is not None and digest(current.ca_pem) != base.ca else published.ca_pem
    listed = list(published.clusters)
    same = next((one for one in listed if one.server == current.server), None)
    if same is not None:
        listed.remove(same)
        # The address in use comes first, so that a merge that changes nothing moves no connection.
        listed.insert(0, same)
    elif base is None or current.server not in base.servers:
        listed.insert(0, current)
    listed += _set_here(known[1:], base, listed)
    # Ways that have responded are not tried again.
    proved = [] if responding is None else [responding.way]
    last: DiscoveryError | None = None
    # The new CAs first. If no server has a certificate of them yet, those that are known go on.
    for bundle in dict.fromkeys((ca_pem, current.ca_pem)):
        addresses = [_ways_to(one, bundle, known, base, responding) for one in listed]
        for turn, address in enumerate(addresses):
            try:
                first = yield from _first_way(address, proved)
            except DiscoveryError as error:
                last = error
                continue
            further = (*addresses[:turn], *addresses[turn + 1 :])
            clusters = (first, *(yield from _further_ways(further, proved)))
            # The base has what was taken over, and not what was published: the next merge tries the rest again.
            taken = published.ca_pem if bundle == ca_pem else current.ca_pem
            return MergedAddresses(clusters, _next_base(published, base, taken, addresses, clusters))
    # Cluster-info names an address at least.
    assert last is not None
    raise last


def _set_here(known: Sequence[Cluster], base: MergeBase | None, listed: Sequence[Cluster]) -> list[Cluster]:
    """Return the addresses among `known` that were set locally: those neither published before nor listed now."""
    names = {address_of(one.server) for one in listed}
    before = () if base is None else base.servers
    return [one for one in known if one.server not in before and address_of(one.server) not in names]


def _next_base(
    published: TrustedCluster,
    base: MergeBase | None,
    ca_pem: bytes,
    addresses: Sequence[_Ways],
    chosen: Sequence[Cluster],
) -> MergeBase | None:
    """Return the base for files with the `chosen` ways: of an address whose published way is not among them the base of before."""
    found = MergeBase.of(published)
    if found is None:
        return None
    left = {ways.published.server for ways in addresses if ways.here != ways.merged and ways.here in chosen}
    before = replace(found, ways=base.ways if base is not None else ())
    ways = tuple((before if server in left else found).way(server) for server in found.servers)
    followed = {ways.published.server: ways.published.proxy_url for ways in addresses if ways.is_following}
    learned = tuple(
        Cluster("", one.server, proxy_url=one.proxy_url)
        for one in chosen
        if one.proxy_url and one.proxy_url != followed.get(one.server, one.proxy_url)
    )
    return replace(
        found,
        ca=digest(ca_pem),
        ways=tuple(one for one in ways if one != Cluster("", one.server)),
        learned=learned,
        # An edited cluster-info may have lost it.
        cluster_id=found.cluster_id or (base.cluster_id if base is not None else ""),
    )


@dataclass(frozen=True, slots=True)
class _Ways:
    """Ways to one address: merged from both sides, as kubelet.conf has it (None when it has no such address), as published.

    `is_following`: where cluster-info names no proxy, it is that of another address.
    """

    merged: Cluster
    here: Cluster | None
    published: Cluster
    is_following: bool


def _ways_to(
    published: Cluster, bundle: bytes, known: Sequence[Cluster], base: MergeBase | None, responding: Cluster | None
) -> _Ways:
    """Return the ways to a published address, each verified by `bundle`."""

    def under_bundle(way: Cluster) -> Cluster:
        return replace(way.way, name=address_of(way.server), ca_pem=bundle)

    here = next((one for one in known if one.server == published.server), None)
    is_following = here is None or (base is not None and base.has_learned(here))
    merged = published if responding is None or not is_following else learned_beside(responding, published)
    if here is None:
        return _Ways(under_bundle(merged), None, under_bundle(published), is_following)
    before = base.way(published.server) if base is not None else Cluster("")
    if is_following and responding is not None:
        before = replace(before, proxy_url=here.proxy_url)
    changed = {name: getattr(here, name) for name in _MERGED if getattr(here, name) != getattr(before, name)}
    return _Ways(under_bundle(replace(merged, **changed)), under_bundle(here), under_bundle(published), is_following)


def _first_way(ways: _Ways, proved: list[Cluster]) -> DiscoveryExchange[Cluster]:
    """Return the first way by which a server responds. Raises DiscoveryError.

    The published way replaces one that was set locally only where that one leads to a server that it does not verify: a proxy that
    rests is not left.
    """
    last: DiscoveryError | None = None
    for way in (ways.merged, ways.here):
        if way is not None:
            try:
                return (yield from _prove(way, proved))
            except DiscoveryError as error:
                last = error
    if ways.here is None or isinstance(last, CertificateError):
        return (yield from _prove(ways.published, proved))
    # The merged way failed.
    assert last is not None
    raise last


def _further_ways(addresses: Sequence[_Ways], proved: list[Cluster]) -> DiscoveryExchange[tuple[Cluster, ...]]:
    """Return a way to each address after the first. That of kubelet.conf changes only when the merged one leads there."""
    chosen: tuple[Cluster, ...] = ()
    for ways in addresses:
        way = ways.merged
        if ways.here is not None and ways.here != way:
            try:
                yield from _prove(way, proved)
            except DiscoveryError:
                way = ways.here
        chosen = (*chosen, way)
    return chosen


def _prove(way: Cluster, proved: list[Cluster]) -> DiscoveryExchange[Cluster]:
    """Return a way by which the server has responded, now or before. Raises DiscoveryError."""
    if way.way not in proved:
        yield from prove_server(way)
        proved.append(way.way)
    return way


def first_published(addresses: Sequence[Cluster], known_id: str) -> DiscoveryExchange[tuple[Cluster, TrustedCluster]]:
    """Return the first address at which the known cluster responds, and its cluster-info. `known_id` is "" for any cluster.

    Raises DiscoveryError, and AnotherClusterError when another cluster responds at one of the addresses.
    """
    responding, published, _ = yield from _ask(addresses, known_id)
    return responding, published


def _ask(
    addresses: Sequence[Cluster], known_id: str
) -> DiscoveryExchange[tuple[Cluster, TrustedCluster, frozenset[str]]]:
    """Return what `first_published` does, and the servers before it that are of another cluster."""
    last: DiscoveryError | None = None
    foreign: frozenset[str] = frozenset()
    for one in addresses:
        if last is not None:
            yield Notice(str(last), keep=True)
        try:
            published = yield from fetch_published(one)
            check_same_cluster(one.server, known_id, published.cluster_id)
            return one, published, foreign
        except DiscoveryError as error:
            if isinstance(error, AnotherClusterError):
                foreign |= {one.server}
            # That of an address that was asked names a cause.
            keeps = isinstance(last, AnotherClusterError) or isinstance(error, NotAskedError)
            last = last if last is not None and keeps else error
    # A member knows an address at least.
    assert last is not None
    raise last
