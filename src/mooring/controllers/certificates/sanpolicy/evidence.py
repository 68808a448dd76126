"""Evidence about names: which Node, API server or Service has one, and which certificates machines got for it earlier."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import urlsplit

from mooring.api.mooring.authorizedmachine import PLURAL as MACHINES
from mooring.api.mooring.authorizedmachine import serving_names_of
from mooring.api.mooring.membership import has_ended
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import certified_names_of
from mooring.api.objectmeta import spec_of
from mooring.api.view import NamespacedName, View, ViewFollower, Views, readable
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.certificates.inventory import MachineIndex, is_for_holder
from mooring.controllers.certificates.sanpolicy.rules import CONTROL_PLANE
from mooring.errors import UnreadableObjectError
from mooring.pki.x509.canonicalnames import Name, canonical
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY
from mooring.trust.kubeconfig import KubeconfigError
from mooring.trust.kubeconfigtext import parse_kubeconfig

# Evidence about names: which Node, API server or Service has a DNS name or an address.
#
# Rules kept here:
# * A Node has its own name, and reports the names and addresses of its `status.addresses`.
# * An identity has its own name, and those of its unexpired certificates (`spec.certifiedNames`), whatever its Node reports: a Node
#   reports nothing while it registers, and never a name that a person approved. Others may have them once the membership has ended.
#   Another machine may have an address that the identity has left. No Service may: its clients would take the first machine for it.
# * API servers have the names of their serving certificates. Each server publishes its own in a ConfigMap of kube-system, and those
#   count until the certificate expires, because its key exists until then. Names of a replaced certificate stay in the record.
# * What is derived from a view is kept until the view changes.

NODES, SERVICES, ENDPOINTS, CONFIG_MAPS = "nodes", "services", "endpoints", "configmaps"
PUBLISHED_NAMESPACE = "kube-system"
PUBLISHED_PREFIX = "mooring-serving-names-"
"""Begin of the names of the ConfigMaps in which servers publish the names of their serving certificates."""
NAMES_KEY, END_KEY, FORMER_KEY = "names", "notAfter", "former"
MAX_FORMER = 256
"""Names of replaced certificates in the record of one server. Those that end last are kept."""
MAX_REPORTED = 256
"""Addresses of a Node that count. A node writes them, and each change is read."""
_SERVICE = ("kubernetes", "default")


def node_addresses(node: Obj) -> frozenset[Name]:
    """Return the names and addresses that a Node reports."""
    listed = ((node.get("status") or {}).get("addresses") or ())[:MAX_REPORTED]
    return frozenset(canonical(one["address"]) for one in listed if one.get("address"))


def serving_names_config_map(server: str, names: Iterable[str], not_after: datetime) -> Obj:
    """Return the ConfigMap in which a server publishes the names of its serving certificate. `server` is its lasting identity."""
    digest = hashlib.sha256(server.encode()).hexdigest()[:16]
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": f"{PUBLISHED_PREFIX}{digest}", "namespace": PUBLISHED_NAMESPACE},
        "data": {NAMES_KEY: "\n".join(sorted(set(names))), END_KEY: rfc3339(not_after)},
    }


def published_names(record: Obj) -> frozenset[Name]:
    """Return the names in a server's record, apart from former ones."""
    (_, names), *_ = _published_names(record)
    return names


def reserves(record: Obj, wanted: Obj) -> bool:
    """Return whether a server's record has all names of `wanted` until they end, be it as former ones."""
    (end, names), *_ = _published_names(wanted)
    return names <= frozenset().union(*(others for other_end, others in _published_names(record) if other_end >= end))


def with_former_names(wanted: Obj, existing: Obj | None, now: datetime) -> Obj:
    """Return the ConfigMap that keeps names of replaced certificates of the server, each with its end, until then."""
    (end, names), *_ = _published_names(wanted)
    until: dict[Name, datetime] = {}
    for other_end, others in _published_names(existing) if existing is not None else ():
        for name in others:
            if other_end >= now and (name not in names or other_end > end):
                until[name] = max(other_end, until.get(name, other_end))
    if not until:
        return wanted
    last = sorted(until.items(), key=lambda item: (item[1], str(item[0])))[-MAX_FORMER:]
    former = "\n".join(sorted(f"{name} {rfc3339(until_then)}" for name, until_then in last))
    return {**wanted, "data": {**wanted["data"], FORMER_KEY: former}}


class _Index:
    """Objects of one kind by the names that they have, kept up to date from their view."""

    __slots__ = ("_by_name", "_follower", "_of", "_plural", "_read")

    def __init__(self, plural: str, read: Callable[[Obj], frozenset[Name]]) -> None:
        self._plural = plural
        self._read = read
        self._follower = ViewFollower()
        self._by_name: dict[Name, set[NamespacedName]] = {}
        self._of: dict[NamespacedName, frozenset[Name]] = {}

    def having(self, name: Name, views: Views) -> Collection[NamespacedName]:
        """Return the objects that have a name. One that cannot be read has the names that were read last, and its own."""
        view = readable(views[self._plural])
        changes = self._follower.changes(view)
        if changes is not None:
            start_over, changed = changes
            known = self._of
            if start_over:
                self._by_name, self._of = {}, {}
                for key in view.unreadable():
                    self._put(key, known.get(key, frozenset()) | {canonical(key[1])})
            for key, obj in changed:
                if obj is not None:
                    self._put(key, self._read(obj))
                elif view.problem(key[1], key[0]):
                    self._put(key, known.get(key, frozenset()) | {canonical(key[1])})
                else:
                    self._put(key, frozenset())
        return self._by_name.get(name, frozenset())

    def _put(self, key: NamespacedName, names: frozenset[Name]) -> None:
        for name in self._of.pop(key, ()):
            self._by_name[name].discard(key)
            if not self._by_name[name]:
                del self._by_name[name]
        if names:
            self._of[key] = names
        for name in names:
            self._by_name.setdefault(name, set()).add(key)


def certified_names(identity: Obj | None, now: datetime) -> frozenset[Name]:
    """Return the names and addresses for which an identity has unexpired certificates."""
    listed = certified_names_of(identity) if identity is not None else ()
    return frozenset(
        canonical(one["name"]) for one in listed if one.get("name") and not has_passed(one.get("notAfter"), now)
    )


def held_names(identity: Obj | None, now: datetime) -> frozenset[Name]:
    """Return those of `certified_names` that the identity has not left."""
    listed = certified_names_of(identity) if identity is not None else ()
    return certified_names(identity, now) - {canonical(one.get("name", "")) for one in listed if one.get("leftAt")}


class Holders:
    """Nodes by name and address."""

    __slots__ = ("_certified", "_reported")

    def __init__(self) -> None:
        self._reported = _Index(NODES, lambda node: node_addresses(node) | {canonical(node["metadata"]["name"])})
        self._certified = _Index(IDENTITIES, _names_of_identity)

    def reporters(self, name: Name, node: str, views: Views, now: datetime) -> frozenset[str]:
        """Return the other nodes that have or report a name, or are certified for it."""
        reported = {other for _, other in self._reported.having(name, views)}
        return self._members_having(name, node, views, now) | reported - {node}

    def holders(self, name: Name, node: str, views: Views, now: datetime) -> frozenset[str]:
        """Return those of `reporters` that are certified for a name, or whose own name it is."""
        own = {other for other in self.reporters(name, node, views, now) if other == name}
        return self._members_having(name, node, views, now) | own

    def certified(self, name: Name, views: Views, now: datetime) -> frozenset[str]:
        """Return the nodes that have a name, or are certified for a name or an address, and whose membership has not ended."""
        return self._members_having(name, "", views, now, certified_names)

    def _members_having(
        self,
        name: Name,
        node: str,
        views: Views,
        now: datetime,
        names_of: Callable[[Obj | None, datetime], frozenset[Name]] = held_names,
    ) -> frozenset[str]:
        """Return the other identities that have a name, and whose membership has not ended."""
        certified = {other for _, other in self._certified.having(name, views)} - {node}
        return frozenset(other for other in certified if _has_as_member(name, other, views, now, names_of))


class Reserved:
    """Names of API servers and of Services."""

    __slots__ = ("_published", "_services")

    def __init__(self) -> None:
        self._services = _Index(SERVICES, _names_of_service)
        self._published: tuple[View | None, int, tuple[tuple[datetime, frozenset[Name]], ...]] = (None, -1, ())

    def service(self, name: Name, views: Views) -> str:
        """Return the Service that has a name or an address, as namespace/name; "" when none has."""
        return next((f"{namespace}/{found}" for namespace, found in sorted(self._services.having(name, views))), "")

    def api_servers(self, views: Views, now: datetime) -> frozenset[Name]:
        """Return the names and addresses under which clients reach API servers, apart from those of loopback and of Services."""
        found = {canonical(text) for text in _published_hosts(views) if text}
        for not_after, names in self._server_names(views[CONFIG_MAPS]):
            if now <= not_after:
                found |= names
        return frozenset(name for name in found if not is_loopback(name))

    def _server_names(self, view: View) -> tuple[tuple[datetime, frozenset[Name]], ...]:
        """Return the names that each server has published, with the end of its certificate."""
        if self._published[0] is not view or self._published[1] != view.revision:
            for _, name in view.unreadable(PUBLISHED_NAMESPACE):
                if name.startswith(PUBLISHED_PREFIX):
                    view.get(
                        name, PUBLISHED_NAMESPACE
                    )  # raises: nothing is certified while the names of a server are unknown
            found = tuple(
                published
                for one in readable(view).list(PUBLISHED_NAMESPACE)
                if one["metadata"]["name"].startswith(PUBLISHED_PREFIX)
                for published in _published_names(one)
            )
            self._published = view, view.revision, found
        return self._published[2]


def is_loopback(name: Name) -> bool:
    """Return true for an address of loopback, and for `localhost`."""
    return name == "localhost" if isinstance(name, str) else name.is_loopback


def has_passed(text: str | None, now: datetime) -> bool:
    """Return true for a time before `now`; a text that is not a time never passes."""
    try:
        return parse_rfc3339(text or "") < now
    except ValueError:
        return False


def own_addresses(views: Views) -> Iterator[Name]:
    """Yield the addresses that API servers have themselves, without those of balancers before them."""
    endpoints = views[ENDPOINTS].get(*_SERVICE)
    for subset in (endpoints or {}).get("subsets") or ():
        yield from (canonical(one["ip"]) for one in subset.get("addresses") or () if one.get("ip"))


def _has_as_member(
    name: Name, node: str, views: Views, now: datetime, names_of: Callable[[Obj | None, datetime], frozenset[Name]]
) -> bool:
    """Return true unless the membership or the certificate has ended. What cannot be read has not ended."""
    if views[IDENTITIES].problem(node) or views[NODES].problem(node):
        return True
    identity = views[IDENTITIES].get(node)
    return not has_ended(identity, views[NODES].get(node)) and (name == node or name in names_of(identity, now))


def _names_of_identity(identity: Obj) -> frozenset[Name]:
    certified = (canonical(one["name"]) for one in certified_names_of(identity) if one.get("name"))
    return frozenset({identity["metadata"]["name"], *certified})


def _names_of_service(service: Obj) -> frozenset[Name]:
    name, namespace = service["metadata"]["name"], service["metadata"].get("namespace", "")
    spec = service.get("spec") or {}
    addresses = {*(spec.get("clusterIPs") or ()), spec.get("clusterIP") or ""} - {"", "None"}
    return frozenset({name, f"{name}.{namespace}", *map(canonical, addresses)})


def _published_hosts(views: Views) -> Iterator[str]:
    service = views[SERVICES].get(*_SERVICE)
    if service is not None:
        yield from (service.get("spec") or {}).get("clusterIPs") or ()
    yield from map(str, own_addresses(views))
    info = views[CONFIG_MAPS].get(clusterinfo.NAME, clusterinfo.NAMESPACE)
    if published := ((info or {}).get("data") or {}).get(KUBECONFIG_KEY):
        yield from published_hosts(published)


@lru_cache(4)
def published_hosts(kubeconfig: str) -> Sequence[str]:
    """Return the hosts of the servers in cluster-info. Raises UnreadableObjectError: nothing is certified then."""
    try:
        return tuple(urlsplit(one.server).hostname or "" for one in parse_kubeconfig(kubeconfig).clusters)
    except (KubeconfigError, ValueError) as error:
        place = f"configmaps {clusterinfo.NAMESPACE}/{clusterinfo.NAME}"
        raise UnreadableObjectError(f"{place} cannot be read: {KUBECONFIG_KEY}: {error}") from None


def _published_names(config_map: Obj) -> Sequence[tuple[datetime, frozenset[Name]]]:
    """Return the names that a server has published, and when its certificates end: that in force first, then replaced ones."""
    data = config_map.get("data") or {}
    in_force = _end(data.get(END_KEY)), frozenset(map(canonical, (data.get(NAMES_KEY) or "").split()))
    former = (line.partition(" ") for line in (data.get(FORMER_KEY) or "").splitlines() if line.strip())
    return in_force, *((_end(end), frozenset({canonical(name)})) for name, _, end in former)


def _end(text: str | None) -> datetime:
    """Return the end of a certificate. One that cannot be read never ends."""
    try:
        return parse_rfc3339(text or "")
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


# Serving certificates that machines got for names before an API server had them.
#
# Rules kept here:
# * The gate of names gives no machine a name that an API server has. A certificate from before is good until it ends, and clients
#   that trust its CA take the machine for the API server by that name.
# * The end of a membership changes nothing about that.
# * A machine that runs an API server has its names in both certificates. An administrator has said so by an entry of the
#   inventory, or by the label of the Node, which stands for its own name and its addresses.


@dataclass(frozen=True, slots=True)
class Conflict:
    """Names of API servers for which a machine has serving certificates, unless the signer refused what was approved."""

    node: str
    names: tuple[str, ...]
    not_after: str
    """Latest end of the certificates, as RFC 3339."""

    def __str__(self) -> str:
        listed = " ".join(f"--serving-name {name}" for name in self.names)
        return (
            f"Node {self.node} may have a serving certificate, until {self.not_after}, for {', '.join(self.names)}, where clients "
            "reach an API server: those that trust its CA take that machine for the API server. If the machine runs one, say so "
            f"(mooring machine authorize {self.node} {listed}); otherwise give the server another name, or replace the CA"
        )


def conflicts(names: Collection[Name], views: Views, now: datetime) -> Iterator[Conflict]:
    """Yield the machines with unexpired certificates for `names`, apart from those to which an administrator granted them."""
    texts = frozenset(map(str, names))
    machines = MachineIndex()
    for identity in readable(views[IDENTITIES]).list():
        held = {
            one["name"]: one.get("notAfter", "")
            for one in certified_names_of(identity)
            if one.get("name") in texts and not has_passed(one.get("notAfter"), now)
        }
        found = sorted(text for text in held if not _is_granted(canonical(text), identity, machines, views))
        if found:
            yield Conflict(identity["metadata"]["name"], tuple(found), max(held[text] for text in found))


def _is_granted(name: Name, identity: Obj, machines: MachineIndex, views: Views) -> bool:
    """Return true when an administrator has granted a name to the machine that has the name of an identity."""
    holder = identity["metadata"]["name"]
    node = readable(views[NODES]).get(holder)
    is_labelled = node is not None and CONTROL_PLANE in (node["metadata"].get("labels") or {})
    if is_labelled and (name == holder or not isinstance(name, str)):
        return True
    return any(
        name in map(canonical, serving_names_of(entry))
        for entry in machines.candidates(holder, views[MACHINES])
        if spec_of(entry).get("nodeName") == holder and is_for_holder(entry, identity)
    )
