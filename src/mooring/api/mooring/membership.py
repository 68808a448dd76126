"""Membership of a node: whether it has ended, and which certificates may use the name, from its NodeIdentity and its Node.

Rules kept here:
* Membership is a state and no event: it has ended while the identity names the uid of a Node, and no Node with that uid exists. The
  uid is recorded before the Node is deleted, so that a server which is killed in between leaves a state that is true.
* A Node with a deletionTimestamp counts as deleted: finalizers of a machine, or of anything else, do not prolong its membership.
* A Node that is created again by hand has another uid, and gives the old keys no access.
* Where machines may create their Nodes again (`--node-deletion=reregisters`), the record says so. The name is then free until the
  machine returns, and its certificate is accepted all the time.
* A name without an identity, or whose identity has no keys, restricts no certificate.
* `spec.changedAt` is the moment at which the name last changed hands. A request that was made before it proves nothing any more.
* `lapse` is the one judge of a machine by its name: authentication, authorization and admission call it. What cannot be read is not
  absent, and a Node that was deleted before the store was restored stays deleted until that is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mooring.api.mooring import tombstones
from mooring.api.mooring.nodeidentity import PLURAL, companions_of, keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.paths import API_VERSION
from mooring.api.view import FixedView, View, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import moment_of, rfc3339

NODES = "nodes"
READS = (PLURAL, NODES, tombstones.CONFIG_MAPS)
MAY_BE_SILENT = "mooring.dev/may-be-silent"
"""Annotation of a Node whose machine is not removed for silence. Machines may not set it."""
_EMPTY = FixedView()


@dataclass(frozen=True, slots=True)
class Lapse:
    """Reason for which a machine does not count as a member."""

    detail: str
    is_undecided: bool = False
    """True while an object on which the membership depends cannot be read."""


def lapse(name: str, views: Views) -> Lapse | None:
    """Return why the machine of a name is not a member, or may not be one; None for a member, and for a name without a record."""
    # First: the store may be older than the deletion, and its objects would say that the machine is a member.
    remembered = tombstones.ended(views, tombstones.Tombstone.NODE, name)
    if remembered is not None:
        return Lapse(f"the Node with uid {remembered.get('uid')} was deleted before the store was restored")
    identities, nodes = views.get(PLURAL, _EMPTY), views.get(NODES, _EMPTY)
    identity = identities.get(name)
    if identity is None:
        return _undecided(PLURAL, name, identities) or _undecided_tombstones(views)
    if has_ended(identity, nodes.get(name)):
        uid = spec_of(identity).get("nodeUID", "")
        detail = f"{PLURAL}/{name}: the Node with uid {uid} was deleted" if uid else f"nodes/{name} is being deleted"
        return _undecided(NODES, name, nodes) or Lapse(detail)
    return _undecided_tombstones(views)


def _undecided(plural: str, name: str, view: View) -> Lapse | None:
    problem = view.problem(name)
    return Lapse(f"{plural}/{name} cannot be read: {problem}", is_undecided=True) if problem else None


def _undecided_tombstones(views: Views) -> Lapse | None:
    problem = tombstones.unknown(views, tombstones.Tombstone.NODE)
    return Lapse(problem, is_undecided=True) if problem else None


def node_uid(node: Obj | None) -> str:
    """Return the uid of a Node; "" when there is none."""
    return str(node["metadata"].get("uid", "")) if node is not None else ""


def may_be_silent(node: Obj) -> bool:
    """Return true for a Node that stays, however long its machine is silent."""
    return bool((node["metadata"].get("annotations") or {}).get(MAY_BE_SILENT) == "true")


def is_terminating(node: Obj | None) -> bool:
    """Return true for a Node that was deleted and that finalizers still hold."""
    return node is not None and bool(node["metadata"].get("deletionTimestamp"))


def was_deleted(identity: Obj | None, node: Obj | None) -> bool:
    """Return true when the Node that belongs to the identity was deleted. `node` is the Node of that name, if there is one."""
    if identity is None:
        return False
    if recorded := spec_of(identity).get("nodeUID", ""):
        return bool(is_terminating(node) or recorded != node_uid(node))
    return is_terminating(node) and not _changed_since_deletion(identity, node)


def was_made_before_change(made: Obj, identity: Obj | None) -> bool:
    """Return true for an object that was created before the name of the identity last changed hands.

    An object without a readable creationTimestamp counts as made before every change.
    """
    changed = changed_at(identity)
    if changed is None:
        return False
    created = moment_of(made["metadata"].get("creationTimestamp"))
    return created is None or created < changed


def changed_at(identity: Obj | None) -> datetime | None:
    """Return when the name last changed hands; None when that was not recorded."""
    return moment_of(spec_of(identity).get("changedAt")) if identity is not None else None


def is_of_holder(public_key: str, recorded_at: str | None, identity: Obj | None) -> bool:
    """Return true when a key that was recorded for a name, `sha256:<hex>`, is that of the machine which has the name now.

    It is when the name has not changed hands since. Where that is not known, the name must belong to the key still.
    """
    if identity is None:
        return False
    changed, recorded = changed_at(identity), moment_of(recorded_at)
    if changed is None:
        return any(key.get("publicKey") == public_key for key in keys_of(identity))
    return recorded is not None and recorded >= changed


def _changed_since_deletion(identity: Obj, node: Obj | None) -> bool:
    """Return true when somebody decided about the name after the deletion of a Node that finalizers still hold."""
    changed = changed_at(identity)
    deleted = moment_of(node["metadata"]["deletionTimestamp"]) if node is not None else None
    return changed is not None and deleted is not None and changed >= deleted


def has_ended(identity: Obj | None, node: Obj | None) -> bool:
    """Return true when the deletion of the Node ended the membership."""
    return identity is not None and was_deleted(identity, node) and not spec_of(identity).get("reregisters")


def may_use_name(identity: Obj | None, public_key: str, certificate: str) -> bool:
    """Return true when the name belongs to a key, or has no owner. Both arguments are fingerprints, `sha256:<hex>`."""
    if identity is None:
        return True
    keys = keys_of(identity)
    if not keys or any(key.get("publicKey") == public_key for key in keys):
        return True
    return bool(certificate) and spec_of(identity).get("formerCertificate") == certificate


def has_companion(identity: Obj, public_key: str) -> bool:
    """Return true when the machine has a certificate of a shared user for a key, `sha256:<hex>`."""
    return any(key.get("publicKey") == public_key for key in companions_of(identity))


def new_identity(name: str, **spec: object) -> Obj:
    """Return a NodeIdentity with these fields, without the empty ones."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeIdentity",
        "metadata": {"name": name},
        "spec": {field: value for field, value in spec.items() if value},
    }


def with_spec(identity: Obj, **changed: object) -> Obj:
    """Return a copy with these fields of the spec; empty ones are removed."""
    spec = {**spec_of(identity), **changed}
    return {**identity, "spec": {field: value for field, value in spec.items() if value}}


def with_node_recorded(
    identity: Obj | None, node: Obj, *, reregisters: bool = False, deleted_at: datetime | None = None
) -> Obj | None:
    """Return the identity that names the uid of `node`; None when it does so already, or when the name changed hands since the
    deletion of this Node began.

    `reregisters`: the machine may create the Node again. `deleted_at`: the Node is deleted at this moment.
    """
    uid, changed = node_uid(node), {} if deleted_at is None else {"changedAt": rfc3339(deleted_at)}
    if identity is None:
        return new_identity(node["metadata"]["name"], nodeUID=uid, reregisters=reregisters, **changed)
    if is_terminating(node) and _changed_since_deletion(identity, node):
        return None
    recorded = with_spec(identity, nodeUID=uid, reregisters=reregisters)
    return None if recorded["spec"] == spec_of(identity) else with_spec(recorded, **changed)
