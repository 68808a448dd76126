"""Names and addresses of Nodes and of the control plane, against which serving certificates are checked.

Rules kept here:
* A Node has the names and addresses of its `status.addresses`, and its own name. Names are compared in lower case.
* An address that two Nodes report belongs to neither for certain.
* A Node reports its own addresses. One that was taken over can report those of the API server, whose CA may be the one that signs
  serving certificates. Names and addresses of the control plane are therefore listed apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from mooring.api.view import View, ViewFollower, Views
from mooring.apimachinery.schema import Obj
from mooring.pki.x509.names import IPAddress
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.jws import KUBECONFIG_KEY
from mooring.trust.kubeconfig.model import KubeconfigError
from mooring.trust.kubeconfig.text import parse_kubeconfig

Owned = str | IPAddress
"""A DNS name in lower case, or an IP address."""

CONTROL_PLANE_KINDS = ("configmaps", "endpoints", "services")
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
"""Label of Nodes that share the addresses of the API server. NodeRestriction lets no node set it."""
_SERVICE = ("kubernetes", "default")


def owned(text: str) -> Owned:
    """Return an address in the form in which owners are compared."""
    try:
        return ip_address(text)
    except ValueError:
        return text.lower().rstrip(".")


def node_addresses(node: Obj) -> frozenset[Owned]:
    """Return the names and addresses that a Node reports."""
    listed = (node.get("status") or {}).get("addresses") or ()
    return frozenset(owned(one["address"]) for one in listed if one.get("address"))


class AddressIndex:
    """Nodes by name and address, kept up to date from the view of Nodes."""

    __slots__ = ("_follower", "_nodes", "_of")

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._nodes: dict[Owned, set[str]] = {}
        self._of: dict[str, frozenset[Owned]] = {}

    def others(self, address: Owned, node: str, view: View) -> tuple[str, ...]:
        """Return the Nodes other than `node` that have this name or address."""
        self._follow(view)
        return tuple(sorted(self._nodes.get(address, set()) - {node}))

    def _follow(self, view: View) -> None:
        changes = self._follower.changes(view)
        if changes is None:
            return
        start_over, changed = changes
        if start_over:
            self._nodes, self._of = {}, {}
        for (_, name), node in changed:
            self._put(name, node)

    def _put(self, name: str, node: Obj | None) -> None:
        for address in self._of.pop(name, ()):
            nodes = self._nodes[address]
            nodes.discard(name)
            if not nodes:
                del self._nodes[address]
        if node is not None:
            self._of[name] = node_addresses(node) | {owned(name)}
            for address in self._of[name]:
                self._nodes.setdefault(address, set()).add(name)


def control_plane(views: Views) -> frozenset[Owned]:
    """Return the names and addresses under which clients reach the API server, apart from loopback addresses."""
    found = {owned(text) for text in _control_plane(views) if text}
    return frozenset(one for one in found if isinstance(one, str) or not one.is_loopback)


def api_servers(views: Views) -> Iterator[str]:
    """Yield the addresses that API servers have themselves, without those of balancers before them."""
    endpoints = views["endpoints"].get(*_SERVICE)
    for subset in (endpoints or {}).get("subsets") or ():
        yield from (one.get("ip", "") for one in subset.get("addresses") or ())


def _control_plane(views: Views) -> Iterator[str]:
    service = views["services"].get(*_SERVICE)
    if service is not None:
        yield from (service.get("spec") or {}).get("clusterIPs") or ()
    yield from api_servers(views)
    info = views["configmaps"].get(clusterinfo.NAME, clusterinfo.NAMESPACE)
    if info is not None:
        yield from published_hosts((info.get("data") or {}).get(KUBECONFIG_KEY, ""))


@lru_cache(4)
def published_hosts(kubeconfig: str) -> Iterable[str]:
    """Return the hosts of the servers in a kubeconfig; none when it cannot be read."""
    try:
        return tuple(urlsplit(one.server).hostname or "" for one in parse_kubeconfig(kubeconfig).clusters)
    except (KubeconfigError, ValueError):
        return ()
