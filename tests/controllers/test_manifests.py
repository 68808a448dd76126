"""Objects that `mooring controllers` needs in a cluster: least rights, a hardened Deployment, the kinds of mooring.dev."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.authz.rbac.authorizer import Rbac
from mooring.controllers.standalonetable import (
    HEALTH_PORT,
    LEASE,
    MEMBER_ENDER,
    NAME,
    STANDALONE,
    Installation,
    manifests,
    role_name,
    selected,
    watched_kinds,
)
from mooring.identity import UserInfo
from tests.support.rbac import rbac_views

TOGETHER = tuple(name for name in STANDALONE if name != MEMBER_ENDER)
"""Controllers that may run in one process."""


def made(*items: str) -> tuple[Obj, ...]:
    names = selected(items or ["*"])
    return manifests(Installation(controllers=names, namespace="trust", image="img:1"), watched_kinds(names))


def of_kind(objects: tuple[Obj, ...], kind: str) -> list[Obj]:
    return [obj for obj in objects if obj["kind"] == kind]


def rules(objects: tuple[Obj, ...]) -> Iterator[tuple[str, str]]:
    """Yield (namespace, `verbs group/resources names`) of every rule."""
    for obj in objects:
        for one in obj.get("rules", ()):
            names = " ".join(one.get("resourceNames", ()))
            resources = f"{','.join(one['apiGroups'])}/{','.join(one['resources'])}"
            yield obj["metadata"].get("namespace", ""), f"{','.join(one['verbs'])} {resources} {names}".strip()


def test_the_token_controllers_read_and_write_what_they_must() -> None:
    found = sorted(rules(made("bootstrapsigner", "tokencleaner")))
    assert found == [
        ("kube-public", "list,watch /configmaps cluster-info"),
        ("kube-public", "update /configmaps cluster-info"),
        ("kube-system", "delete /secrets"),
        ("kube-system", "list,watch /secrets"),
        ("trust", "create coordination.k8s.io/leases"),
        ("trust", "get,update coordination.k8s.io/leases mooring-standalone-controllers"),
    ]


def test_no_controller_that_runs_by_default_may_delete_secrets() -> None:
    """RBAC cannot limit the right to bootstrap tokens. The cleaner of tokens, which needs it, is chosen by name."""
    assert [one for one in rules(made()) if "secrets" in one[1]] == [
        ("kube-system", "list,watch /secrets"),
        ("kube-system", "update /secrets"),
    ]
    without_joins = rules(made("*", "-inventory-approver"))
    assert [one for one in without_joins if "secrets" in one[1]] == [("kube-system", "list,watch /secrets")]


def test_no_controller_may_delete_nodes_but_the_one_that_is_chosen_for_it() -> None:
    """A Node that was silent during an outage, of the machine or of the servers, stays until a person deletes it."""
    found = [
        text.partition(" ")[0] for _, text in rules(made("*", *TOGETHER)) if "/nodes" in text.replace("/nodes/", "")
    ]
    assert found
    assert [verbs for verbs in found if "delete" in verbs or "*" in verbs] == []


def test_what_the_controller_of_silent_machines_may_do() -> None:
    found = set(rules(made(MEMBER_ENDER)))
    written = {text for _, text in found if not text.startswith("list,watch")}
    assert {text for text in written if "leases" not in text and "customresourcedefinitions" not in text} == {
        "delete /nodes",
        "update mooring.dev/nodeidentities",
        "create /configmaps",
        "update /configmaps mooring-silence",
        "create /events",
    }
    assert ("kube-system", "list,watch /configmaps mooring-silence") in found


def test_two_installations_share_no_object_but_the_kinds() -> None:
    def keys(namespace: str) -> set[tuple[str, str, str]]:
        installation = Installation(controllers=selected(["*", "csrsigner"]), namespace=namespace, image="img:1")
        objects = manifests(installation, watched_kinds(installation.controllers))
        return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects}

    shared = keys("one") & keys("two")
    assert {kind for kind, _, _ in shared} == {"CustomResourceDefinition"}


def test_the_approver_of_serving_certificates_reads_what_it_compares() -> None:
    found = set(rules(made("kubelet-serving-approver")))
    assert ("default", "list,watch /services kubernetes") in found
    assert ("default", "list,watch /endpoints kubernetes") in found
    assert ("", "list,watch /nodes") in found
    assert ("", "approve certificates.k8s.io/signers kubernetes.io/kubelet-serving") in found
    assert ("", "list,watch mooring.dev/certificaterevocations") in found


def test_no_rule_grants_everything_and_none_comes_twice() -> None:
    found = list(rules(made(*TOGETHER)))
    assert len(set(found)) == len(found)
    assert [one for one in found if "*" in one[1]] == []


def test_every_role_is_bound_to_the_account_alone() -> None:
    objects = made(*TOGETHER)
    roles = {(obj["kind"], obj["metadata"].get("namespace")) for obj in objects if "rules" in obj}
    bound = {(obj["roleRef"]["kind"], obj["metadata"].get("namespace")) for obj in objects if "roleRef" in obj}
    assert roles == bound
    assert {obj["roleRef"]["name"] for obj in objects if "roleRef" in obj} == {role_name("trust")}
    subjects = [subject for obj in objects for subject in obj.get("subjects", ())]
    assert all(one == {"kind": "ServiceAccount", "name": NAME, "namespace": "trust"} for one in subjects)


def test_kinds_of_mooring_are_defined_where_a_controller_uses_them() -> None:
    assert of_kind(made("tokencleaner"), "CustomResourceDefinition") == []
    (found,) = of_kind(made("revocation-cleaner"), "CustomResourceDefinition")
    assert found["metadata"]["name"] == "certificaterevocations.mooring.dev"


def test_the_deployment_meets_the_restricted_pod_security_standard() -> None:
    objects = made()
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["image"] == "img:1"
    assert container["args"] == [
        "controllers",
        "--controllers=bootstrap-signer-controller,kubelet-serving-approver,machine-inventory-approver,node-identity-controller",
        "--leader-elect-resource-namespace=trust",
        "--healthz-bind-address=$(POD_IP)",
        f"--healthz-port={HEALTH_PORT}",
    ]
    assert "volumes" not in pod


def test_the_ca_of_the_signer_is_a_secret_that_is_not_printed() -> None:
    objects = made("csrsigner")
    assert of_kind(objects, "Secret") == []
    pod = of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"] == {"secretName": "mooring-signing-ca", "defaultMode": 0o440}
    assert pod["containers"][0]["args"][-2:] == [
        "--cluster-signing-cert-file=/etc/mooring/signing/tls.crt",
        "--cluster-signing-key-file=/etc/mooring/signing/tls.key",
    ]


@pytest.mark.parametrize("items", [["*"], list(TOGETHER)], ids=["by default", "all"])
def test_objects_come_in_an_order_in_which_they_can_be_created(items: list[str]) -> None:
    kinds = [obj["kind"] for obj in made(*items)]
    assert kinds.index("Namespace") < kinds.index("ServiceAccount") < kinds.index("Role") < kinds.index("Deployment")
    assert kinds[0] in ("CustomResourceDefinition", "Namespace")


CSRS, APIS = "certificatesigningrequests", "certificates.k8s.io"
ALLOWED = [
    ("list", "", "secrets", "", "kube-system", ""),
    ("update", "", "secrets", "", "kube-system", "bootstrap-token-abcdef"),
    ("delete", "", "secrets", "", "kube-system", "bootstrap-token-abcdef"),
    ("watch", "", "configmaps", "", "kube-public", "cluster-info"),
    ("update", "", "configmaps", "", "kube-public", "cluster-info"),
    ("update", APIS, CSRS, "approval", "", "c"),
    ("update", APIS, CSRS, "status", "", "c"),
    ("delete", APIS, CSRS, "", "", "c"),
    ("approve", APIS, "signers", "", "", "kubernetes.io/kube-apiserver-client-kubelet"),
    ("sign", APIS, "signers", "", "", "kubernetes.io/kube-apiserver-client"),
    ("create", "authorization.k8s.io", "subjectaccessreviews", "", "", ""),
    ("update", "", "nodes", "", "", "n"),
    ("update", "", "nodes", "status", "", "n"),
    ("list", "coordination.k8s.io", "leases", "", "kube-node-lease", ""),
    ("delete", "mooring.dev", "certificaterevocations", "", "", "r"),
    ("update", "mooring.dev", "authorizedmachines", "", "", "m"),
    ("get", "apiextensions.k8s.io", "customresourcedefinitions", "", "", "certificaterevocations.mooring.dev"),
    ("create", "coordination.k8s.io", "leases", "", "trust", ""),
    ("update", "coordination.k8s.io", "leases", "", "trust", LEASE),
]
"""(verb, group, resource, subresource, namespace, name) of requests that the controllers make."""
REFUSED = [
    ("list", "", "secrets", "", "", ""),
    ("get", "", "secrets", "", "kube-system", "bootstrap-token-abcdef"),
    ("list", "", "configmaps", "", "kube-public", ""),
    ("update", "", "configmaps", "", "kube-public", "another"),
    ("create", APIS, CSRS, "", "", ""),
    ("approve", APIS, "signers", "", "", "kubernetes.io/kube-apiserver-client"),
    ("sign", APIS, "signers", "", "", "example.com/own"),
    ("delete", "", "nodes", "", "", "n"),
    ("update", "coordination.k8s.io", "leases", "", "kube-node-lease", "n"),
    ("update", "coordination.k8s.io", "leases", "", "trust", "another"),
    ("create", "rbac.authorization.k8s.io", "clusterroles", "", "", ""),
    ("get", "apiextensions.k8s.io", "customresourcedefinitions", "", "", "others.example.com"),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions", "", "", ""),
]


@pytest.mark.parametrize(
    ("request_line", "allowed"),
    [*((one, True) for one in ALLOWED), *((one, False) for one in REFUSED)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_account_may_do_what_the_controllers_do_and_no_more(
    request_line: tuple[str, str, str, str, str, str], allowed: bool
) -> None:
    verb, group, resource, subresource, namespace, name = request_line
    user = UserInfo(f"system:serviceaccount:trust:{NAME}", groups=("system:serviceaccounts",))
    attributes = Attributes(
        user=user, verb=verb, group=group, resource=resource, subresource=subresource, namespace=namespace, name=name
    )
    roles = [obj for obj in made(*TOGETHER) if obj["apiVersion"].startswith("rbac.")]
    assert Rbac().authorize(attributes, rbac_views(roles)).allowed is allowed


@pytest.mark.parametrize("items", [["csrapprover"], ["csrapprover", "-node-identity-controller"], ["*"]])
def test_the_deployment_runs_the_chosen_controllers(items: list[str]) -> None:
    (deployment,) = of_kind(made(*items), "Deployment")
    (argument,) = (
        one
        for one in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        if one.startswith("--controllers=")
    )
    assert selected(argument.removeprefix("--controllers=").split(",")) == selected(items)
