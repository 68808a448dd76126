"""Builders of RBAC objects: subjects, roles, bindings, and the marks of the default policy.

Rules kept here (docs/protocol/rbac.md#default-roles): objects of the default policy carry the label
`kubernetes.io/bootstrapping: rbac-defaults` and the annotation `rbac.authorization.kubernetes.io/autoupdate: "true"`, which has
them reconciled at start.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import API_GROUP

API_VERSION = API_GROUP + "/v1"
DEFAULTS_LABEL = ("kubernetes.io/bootstrapping", "rbac-defaults")
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"


def user(name: str) -> Obj:
    return {"kind": "User", "apiGroup": API_GROUP, "name": name}


def group(name: str) -> Obj:
    return {"kind": "Group", "apiGroup": API_GROUP, "name": name}


def service_account(namespace: str, name: str) -> Obj:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def cluster_role(name: str, *rules: Obj) -> Obj:
    return _rbac_object("ClusterRole", name, rules=list(rules))


def role(namespace: str, name: str, *rules: Obj) -> Obj:
    return _rbac_object("Role", name, namespace, rules=list(rules))


def cluster_binding(name: str, role_name: str, *subjects: Obj) -> Obj:
    """Return a ClusterRoleBinding to a ClusterRole."""
    return _rbac_object(
        "ClusterRoleBinding", name, subjects=list(subjects), roleRef=_role_ref("ClusterRole", role_name)
    )


def binding(namespace: str, name: str, role_name: str, *subjects: Obj) -> Obj:
    """Return a RoleBinding to a Role of its namespace."""
    return _rbac_object("RoleBinding", name, namespace, subjects=list(subjects), roleRef=_role_ref("Role", role_name))


def default(obj: Obj, labels: Mapping[str, str] | None = None) -> Obj:
    """Return the object with the label and annotation of the default policy, and `labels`."""
    metadata = {
        **obj["metadata"],
        "labels": {DEFAULTS_LABEL[0]: DEFAULTS_LABEL[1], **(labels or {})},
        "annotations": {AUTOUPDATE: "true"},
    }
    return {**obj, "metadata": metadata}


def _role_ref(kind: str, name: str) -> Obj:
    return {"apiGroup": API_GROUP, "kind": kind, "name": name}


def _rbac_object(kind: str, name: str, namespace: str = "", **parts: object) -> Obj:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    present = {key: value for key, value in parts.items() if value}  # empty lists are left out
    return {"kind": kind, "apiVersion": API_VERSION, "metadata": metadata, **present}
