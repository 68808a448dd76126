"""k3s-node-password-controller: ties the Secret of a node password to its Node, and deletes one whose machine never became a Node.

Rules kept here (docs/protocol/k3s.md#node-passwords):
* The Secret of a Node has an owner reference to it, so that the garbage collector deletes both. The Secret is immutable in its data
  only.
* A Secret without a Node is deleted ten minutes after its creation, unless a machine obtained a certificate by its password: the
  NodeIdentity then records it, and the name stays with that machine. k3s deletes it all the same, and so gives the name away.
* The delete carries uid and resourceVersion. k3s looks each minute; here the key is planned at the moment when it falls due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.membership import was_deleted
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue, Update
from mooring.trust.k3s.nodepassword import NAMESPACE, node_of, secret_name

NODES, SECRETS = "nodes", "secrets"
ORPHANED_AFTER = timedelta(minutes=10)
"""Time from the first certificate of a machine to its Node: the container runtime and the kubelet start in between."""


@dataclass(frozen=True, slots=True)
class NodePasswordController:
    """Keeps the Secrets of node passwords."""

    name: str = "k3s-node-password-controller"
    watches: tuple[str, ...] = (SECRETS, NODES, IDENTITIES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural in (NODES, IDENTITIES):
            name = obj["metadata"]["name"]
            return (("", name),) if views[SECRETS].get(secret_name(name), NAMESPACE) is not None else ()
        name = "" if deleted else node_of(obj)
        return (("", name),) if name else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        secret, node = views[SECRETS].get(secret_name(key[1]), NAMESPACE), views[NODES].get(key[1])
        if secret is None or not node_of(secret) or secret["metadata"].get("deletionTimestamp"):
            return ()
        if node is not None:
            return _owned(secret, node)
        if _is_of_a_member(secret, views[IDENTITIES].get(key[1])):
            return ()
        due = _created(secret)
        if due is None:
            return ()
        due += ORPHANED_AFTER
        return (Delete.of(SECRETS, secret),) if due <= now else (Requeue(due),)


def _owned(secret: Obj, node: Obj) -> Sequence[Action]:
    """Return the action that makes the Node the owner; none when it is.

    A reference to a former Node of the name is replaced: the machine proved its password again before it made this Node.
    """
    metadata = secret["metadata"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    present = metadata.get("ownerReferences") or []
    if any(one.get("uid") == reference["uid"] for one in present):
        return ()
    others = [one for one in present if one.get("kind") != "Node"]
    return (Update(SECRETS, {**secret, "metadata": {**metadata, "ownerReferences": [*others, reference]}}),)


def _is_of_a_member(secret: Obj, identity: Obj | None) -> bool:
    """Return true when the password of the Secret has obtained a certificate, and the membership has not ended."""
    if identity is None or was_deleted(identity, None) or not keys_of(identity):
        return False
    return bool(spec_of(identity).get("nodePasswordUID") == secret["metadata"].get("uid"))


def _created(secret: Obj) -> datetime | None:
    try:
        return parse_rfc3339(secret["metadata"].get("creationTimestamp") or "")
    except ValueError:
        return None  # written by another server, since this one sets the time
