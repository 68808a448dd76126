"""RBAC views built from objects, and builders of subjects and marks, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import API_GROUP
from mooring.authz.rbac.escalation import AUTOUPDATE

PLURALS = {
    "Role": "roles",
    "ClusterRole": "clusterroles",
    "RoleBinding": "rolebindings",
    "ClusterRoleBinding": "clusterrolebindings",
}
NOT_OF_KUBERNETES = {
    "mooring:certificate-revocation-list",
    "mooring:leave",
    "mooring:login",
    "mooring:status",
    "system:cluster-trust-bundle-discovery",
    "system:controller:kube-apiserver-serving-clustertrustbundle-publisher",
    "mooring:recovering-node",
    "system:controller:kubelet-serving-approver",
    "system:controller:machine-inventory-approver",
    "system:controller:podcertificaterequestcleaner",
    "system:controller:revocation-cleaner",
}
"""Objects of the default policy that kube-apiserver has not, or has with other feature gates than its default."""


def rbac_views(objects: Iterable[Obj] = (), revision: int = 1) -> dict[str, View]:
    """Return the four views that RBAC reads, with `objects`."""
    everything = list(objects)
    return {
        plural: FixedView([obj for obj in everything if obj["kind"] == kind], revision)
        for kind, plural in PLURALS.items()
    }


def user(name: str) -> Obj:
    return {"kind": "User", "apiGroup": API_GROUP, "name": name}


def group(name: str) -> Obj:
    return {"kind": "Group", "apiGroup": API_GROUP, "name": name}


def default(obj: Obj, labels: Mapping[str, str] | None = None) -> Obj:
    """Return the object with the label and annotation of the default policy, and `labels`."""
    marks = {
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults", **(labels or {})},
        "annotations": {AUTOUPDATE: "true"},
    }
    return {**obj, "metadata": obj["metadata"] | marks}
