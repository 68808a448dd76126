"""Membership of a node: whether it has ended, and which certificates may use the name, from its NodeIdentity and its Node.

Rules kept here:
* Membership is a state and no event: it has ended while the identity names the uid of a Node, and no Node with that uid exists. The
  uid is recorded before the Node is deleted, so that a server which is killed in between leaves a state that is true.
* A Node that somebody creates again by hand has another uid, and gives the old keys no access.
* Where machines may create their Nodes again (`--node-deletion=reregisters`), the record says so. The name is then free until the
  machine returns, and its certificate is accepted all the time.
* A name without an identity, or whose identity has no keys, restricts no certificate.
"""

from __future__ import annotations

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.group import API_VERSION
from mooring.api.mooring.nodeidentity import keys_of
from mooring.apimachinery.schema import Obj


def node_uid(node: Obj | None) -> str:
    """Return the uid of a Node; "" when there is none."""
    return str(node["metadata"].get("uid", "")) if node is not None else ""


def was_deleted(identity: Obj | None, node: Obj | None) -> bool:
    """Return true when the Node that belongs to the identity was deleted. `node` is the Node of that name, if there is one."""
    recorded = spec_of(identity).get("nodeUID", "") if identity is not None else ""
    return bool(recorded) and recorded != node_uid(node)


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


def with_node_recorded(identity: Obj | None, node: Obj, *, reregisters: bool = False) -> Obj | None:
    """Return the identity that names the uid of `node`; None when it does so already.

    `reregisters`: the machine may create the Node again.
    """
    uid = node_uid(node)
    if identity is None:
        return new_identity(node["metadata"]["name"], nodeUID=uid, reregisters=reregisters)
    recorded = with_spec(identity, nodeUID=uid, reregisters=reregisters)
    return None if recorded["spec"] == spec_of(identity) else recorded
