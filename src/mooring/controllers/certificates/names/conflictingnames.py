"""Serving certificates that machines got for names before an API server had them.

Rules kept here:
* The gate of names gives no machine a name that an API server has. A certificate from before is good until it ends, and clients
  that trust its CA take the machine for the API server by that name.
* The end of a membership changes nothing about that.
* A machine that runs an API server has its names in both certificates. An administrator has said so by an entry of the inventory,
  or by the label of the Node, which stands for its own name and its addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.authorizedmachine import PLURAL as MACHINES
from mooring.api.mooring.authorizedmachine import serving_names_of
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import certified_names_of
from mooring.api.view import Views, readable
from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.inventory import MachineIndex, is_for_holder
from mooring.controllers.certificates.names.nameevidence import NODES, has_passed
from mooring.pki.x509.canonicalnames import Name, canonical
from mooring.pki.x509.namegate import CONTROL_PLANE


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
