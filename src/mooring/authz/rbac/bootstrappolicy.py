"""Default RBAC objects: those of kube-apiserver, of `kubeadm init`, and of k3s's way. They are the files of policy/.

Rules kept here:
* A file is a List in the form of Kubernetes' own test data, so that blocks of it can be copied; tests/upstream compares them.
* A file is read once, when a server starts: importing this module reads none.
* Objects are created in the order of their file. Namespaced ones need kube-system and kube-public to exist.
"""

from __future__ import annotations

from functools import cache
from pkgutil import get_data

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.codec.yaml import read_yaml
from mooring.apimachinery.schema import Obj


def default_policy() -> tuple[Obj, ...]:
    """Return new copies of the objects of every cluster: ClusterRoles, ClusterRoleBindings, Roles, RoleBindings."""
    return _copies("kube-apiserver")


def kubeadm_policy() -> tuple[Obj, ...]:
    """Return new copies of the objects of `kubeadm init`."""
    return _copies("kubeadm")


def k3s_policy() -> tuple[Obj, ...]:
    """Return new copies of the objects of k3s's way, which bind roles of `kubeadm_policy`."""
    return _copies("k3s")


def join_request_policy() -> tuple[Obj, ...]:
    """Return new copies of the objects that let machines without a credential ask for a certificate."""
    return _copies("joinrequests")


def node_rules() -> tuple[Obj, ...]:
    """Return new copies of the rules of the ClusterRole `system:node`, which the Node authorizer grants itself."""
    (role,) = (obj for obj in _objects("kube-apiserver") if (obj["kind"], obj["metadata"]["name"]) == _KEY_OF_NODE)
    return tuple(deep_copy(role["rules"]))


_KEY_OF_NODE = ("ClusterRole", "system:node")


def _copies(name: str) -> tuple[Obj, ...]:
    return tuple(deep_copy(_objects(name)))


@cache
def _objects(name: str) -> list[Obj]:
    text = get_data(__name__, f"policy/{name}.yaml")
    assert text is not None, "the loader of this package reads no data"
    objects: list[Obj] = read_yaml(text, anchors_and_tags=False).value["items"]
    return objects
