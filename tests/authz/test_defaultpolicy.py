"""Permissions of the default policy and of kubeadm's objects, and their reconciliation.

Source: docs/protocol/kubeadm-init.md, docs/protocol/rbac.md#default-roles.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from mooring import identity
from mooring.apimachinery.codec.yaml import read_yaml
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.authz.rbac import bootstrappolicy
from mooring.authz.rbac.authorizer import Rbac, cluster_binding, cluster_role, path_rule, rule, service_account
from mooring.authz.rbac.bootstrappolicy import default_policy, join_request_policy, k3s_policy, kubeadm_policy
from mooring.authz.rbac.escalation import AUTOUPDATE, reconcile
from mooring.identity import ANONYMOUS_USER, UserInfo, service_account_groups, service_account_username
from mooring.pki.x509.profiles import CLUSTER_ADMINS
from mooring.pki.x509.signers import K3S_CONTROLLER
from mooring.trust.bootstraptoken import token as bootstraptoken
from mooring.trust.k3s import token as k3stoken
from tests.support.rbac import NOT_OF_KUBERNETES, default, group, rbac_views, user

POLICY_FILES = Path(bootstrappolicy.__file__).parent / "policy"
POLICY = default_policy()
EVERYTHING = (*POLICY, *kubeadm_policy(), *k3s_policy())
CSR = {"group": "certificates.k8s.io", "resource": "certificatesigningrequests"}
SIGNERS = {"group": "certificates.k8s.io", "resource": "signers"}
POD_REQUESTS = {"group": "certificates.k8s.io", "resource": "podcertificaterequests", "namespace": "x"}

JANE = UserInfo("jane", groups=("system:authenticated",))
MASTER = UserInfo("root", groups=("system:masters", "system:authenticated"))
ADMIN = UserInfo("kubernetes-admin", groups=("kubeadm:cluster-admins", "system:authenticated"))
JOINER = UserInfo(
    "system:bootstrap:abcdef",
    groups=("system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"),
)
K3S_JOINER = UserInfo(
    "system:bootstrap:abcdef",
    groups=("system:bootstrappers", "system:bootstrappers:k3s:default-node-token", "system:authenticated"),
)
BARE = UserInfo("system:bootstrap:abcdef", groups=("system:bootstrappers", "system:authenticated"))
NODE = UserInfo("system:node:n1", groups=("system:nodes", "system:authenticated"))


def account(name: str) -> UserInfo:
    groups = (*service_account_groups("kube-system"), "system:authenticated")
    return UserInfo(service_account_username("kube-system", name), groups=groups)


CERTIFICATES = account("certificate-controller")
SIGNER = account("bootstrap-signer")
CLEANER = account("token-cleaner")
POD_REQUEST_CLEANER = account("podcertificaterequestcleaner")
KUBE_PROXY = account("kube-proxy")
RBAC = Rbac()
VIEWS = rbac_views(EVERYTHING)


@pytest.mark.parametrize(
    ("who", "verb", "what", "allowed"),
    [
        pytest.param(ANONYMOUS_USER, "get", {"path": "/healthz"}, True, id="anybody reads /healthz"),
        pytest.param(ANONYMOUS_USER, "get", {"path": "/version"}, True, id="anybody reads /version"),
        pytest.param(ANONYMOUS_USER, "get", {"path": "/api"}, False, id="anonymous does not read /api"),
        pytest.param(ANONYMOUS_USER, "get", {"path": "/apis"}, False, id="anonymous does not read /apis"),
        pytest.param(JANE, "get", {"path": "/apis/apps/v1"}, True, id="the authenticated discover"),
        pytest.param(JANE, "get", {"path": "/openapi/v3"}, True, id="the authenticated read OpenAPI"),
        pytest.param(JANE, "get", {"path": "/metrics"}, False, id="the authenticated do not read metrics"),
        pytest.param(
            JANE, "get", {"path": "/openid/v1/jwks"}, False, id="the authenticated do not read the issuer's keys"
        ),
        pytest.param(SIGNER, "get", {"path": "/openid/v1/jwks"}, True, id="service accounts read the issuer's keys"),
        pytest.param(
            JANE,
            "create",
            {"group": "authorization.k8s.io", "resource": "selfsubjectaccessreviews"},
            True,
            id="anyone may ask about themselves",
        ),
        pytest.param(
            JANE,
            "create",
            {"group": "authentication.k8s.io", "resource": "selfsubjectreviews"},
            True,
            id="and who they are",
        ),
        pytest.param(
            JANE,
            "create",
            {"group": "authorization.k8s.io", "resource": "subjectaccessreviews"},
            False,
            id="but not about others",
        ),
        pytest.param(
            JANE, "get", {"resource": "secrets", "namespace": "default"}, False, id="nobody reads Secrets by default"
        ),
        pytest.param(MASTER, "delete", {"resource": "nodes", "name": "n"}, True, id="system:masters may do anything"),
        pytest.param(ADMIN, "post", {"path": "/anything"}, True, id="kubeadm's admins may do anything"),
        pytest.param(
            ANONYMOUS_USER,
            "get",
            {"resource": "configmaps", "namespace": "kube-public", "name": "cluster-info"},
            True,
            id="anonymous reads cluster-info",
        ),
        pytest.param(
            JOINER,
            "get",
            {"resource": "configmaps", "namespace": "kube-public", "name": "cluster-info"},
            False,
            id="a joiner reads cluster-info only as anonymous",
        ),
        pytest.param(JOINER, "create", CSR, True, id="a joiner asks for a certificate"),
        pytest.param(
            JOINER, "create", {**CSR, "subresource": "nodeclient"}, True, id="a joiner's certificate is approved"
        ),
        pytest.param(JOINER, "create", {**CSR, "subresource": "selfnodeclient"}, False, id="a joiner renews nothing"),
        pytest.param(JOINER, "get", {"resource": "nodes", "name": "n1"}, True, id="a joiner looks for its Node"),
        pytest.param(JOINER, "list", {"resource": "nodes"}, False, id="a joiner lists no Nodes"),
        pytest.param(
            JOINER,
            "get",
            {"resource": "configmaps", "namespace": "kube-system", "name": "kubeadm-config"},
            True,
            id="a joiner reads kubeadm-config",
        ),
        pytest.param(
            JOINER,
            "get",
            {"resource": "configmaps", "namespace": "kube-system", "name": "kube-proxy"},
            True,
            id="a joiner reads kube-proxy's configuration",
        ),
        pytest.param(
            JOINER,
            "get",
            {"resource": "secrets", "namespace": "kube-system", "name": "kubeadm-certs"},
            True,
            id="a joiner reads the uploaded certificates, which are encrypted",
        ),
        pytest.param(KUBE_PROXY, "list", {"resource": "nodes"}, True, id="kube-proxy's ServiceAccount lists Nodes"),
        pytest.param(
            JOINER, "get", {"resource": "secrets", "namespace": "kube-system"}, False, id="a joiner reads no Secret"
        ),
        pytest.param(BARE, "create", CSR, False, id="the bare bootstrappers' group gets nothing"),
        pytest.param(
            NODE, "create", {**CSR, "subresource": "selfnodeclient"}, True, id="a node renews its certificate"
        ),
        pytest.param(
            NODE, "create", {**CSR, "subresource": "nodeclient"}, False, id="a node gets no other certificate approved"
        ),
        pytest.param(
            NODE, "get", {"resource": "secrets", "namespace": "ns", "name": "s"}, False, id="system:node binds nobody"
        ),
        pytest.param(
            CERTIFICATES,
            "approve",
            {**SIGNERS, "name": "kubernetes.io/kube-apiserver-client-kubelet"},
            True,
            id="the approver approves kubelets' clients",
        ),
        pytest.param(
            CERTIFICATES,
            "approve",
            {**SIGNERS, "name": "kubernetes.io/kube-apiserver-client"},
            False,
            id="the approver approves no other client",
        ),
        pytest.param(
            CERTIFICATES,
            "sign",
            {**SIGNERS, "name": "kubernetes.io/kubelet-serving"},
            True,
            id="the signer signs serving ones",
        ),
        pytest.param(
            CERTIFICATES, "sign", {**SIGNERS, "name": "acme.com/x"}, False, id="the signer signs for no stranger"
        ),
        pytest.param(
            CERTIFICATES, "update", {**CSR, "subresource": "approval"}, True, id="the approver writes approvals"
        ),
        pytest.param(
            SIGNER,
            "update",
            {"resource": "configmaps", "namespace": "kube-public", "name": "cluster-info"},
            True,
            id="the bootstrap signer signs cluster-info",
        ),
        pytest.param(
            SIGNER,
            "update",
            {"resource": "configmaps", "namespace": "kube-public", "name": "other"},
            False,
            id="the bootstrap signer writes nothing else",
        ),
        pytest.param(
            SIGNER,
            "list",
            {"resource": "secrets", "namespace": "kube-system"},
            True,
            id="the bootstrap signer reads tokens",
        ),
        pytest.param(SIGNER, "list", {"resource": "secrets"}, False, id="the bootstrap signer reads no other Secrets"),
        pytest.param(
            CLEANER,
            "delete",
            {"resource": "secrets", "namespace": "kube-system", "name": "x"},
            True,
            id="the cleaner deletes",
        ),
        pytest.param(
            account("clusterrole-aggregation-controller"),
            "escalate",
            {"group": "rbac.authorization.k8s.io", "resource": "clusterroles", "name": "admin"},
            True,
            id="the aggregator may escalate",
        ),
        pytest.param(
            account("root-ca-cert-publisher"),
            "create",
            {"resource": "configmaps", "namespace": "x"},
            True,
            id="the publisher",
        ),
        pytest.param(
            account("service-account-controller"),
            "create",
            {"resource": "serviceaccounts", "namespace": "x"},
            True,
            id="the account maker",
        ),
        pytest.param(
            account("namespace-controller"),
            "update",
            {"resource": "namespaces", "subresource": "finalize"},
            True,
            id="the namespace controller finalizes",
        ),
        pytest.param(
            account("generic-garbage-collector"),
            "delete",
            {"resource": "x", "group": "y"},
            True,
            id="the collector deletes",
        ),
        pytest.param(
            UserInfo("kube-apiserver-kubelet-client"),
            "create",
            {"resource": "nodes", "subresource": "proxy"},
            True,
            id="kubelet API",
        ),
        *(
            pytest.param(POD_REQUEST_CLEANER, verb, POD_REQUESTS, allowed, id=f"the cleaner of Pods' requests: {verb}")
            for verb, allowed in [("get", True), ("list", True), ("watch", True), ("delete", True), ("update", False)]
        ),
        pytest.param(UserInfo("m", groups=("system:monitoring",)), "get", {"path": "/metrics"}, True, id="monitoring"),
        pytest.param(
            UserInfo("system:kube-scheduler"),
            "get",
            {"resource": "configmaps", "namespace": "kube-system", "name": "extension-apiserver-authentication"},
            True,
            id="the scheduler reads how to authenticate",
        ),
    ],
)
def test_permissions_of_the_default_policy(who: UserInfo, verb: str, what: dict[str, str], allowed: bool) -> None:
    assert RBAC.authorize(Attributes(user=who, verb=verb, **what), VIEWS).allowed is allowed


KUBERNETES = Path(__file__).parents[1] / "vectors/authz/kubernetes-1.36.txt"
"""Roles and bindings that kube-apiserver 1.36.2 creates with its default feature gates, one object or rule a line."""
GATED = {
    "  get,list,watch | certificates.k8s.io | clustertrustbundles",
    "  create,get,list,watch | certificates.k8s.io | podcertificaterequests",
}
"""Rules of nodes that kube-apiserver 1.37 has, and 1.36 with the feature gates ClusterTrustBundle and PodCertificateRequest."""
AGGREGATED = {"admin", "edit", "view"}
"""The aggregation controller fills their rules, from the roles that the table holds."""
_PARTS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")


def described(obj: Obj) -> list[str]:
    metadata = obj["metadata"]
    rules = (" | ".join(",".join(one.get(part, ())) for part in _PARTS).rstrip(" |") for one in obj.get("rules", ()))
    subjects = (
        " ".join(filter(None, (one["kind"], one.get("namespace"), one["name"]))) for one in obj.get("subjects", ())
    )
    head = " ".join(filter(None, (obj["kind"], metadata.get("namespace"), metadata["name"])))
    return [head, *(f"  {line}" for line in (*rules, *subjects))]


def test_every_role_and_binding_is_the_one_of_kubernetes() -> None:
    described_here = (described(obj) for obj in POLICY if obj["metadata"]["name"] not in NOT_OF_KUBERNETES | AGGREGATED)
    ours = [[line for line in lines if line not in GATED] for lines in described_here]
    theirs: list[list[str]] = []
    for line in KUBERNETES.read_text().splitlines():
        if line.startswith(" "):
            theirs[-1].append(line)
        else:
            theirs.append([line])
    assert sorted(ours) == sorted(theirs)


def aggregated(name: str) -> set[tuple[str, str, str]]:
    """Return (verb, group, resource) of all roles aggregated into `name`."""
    label = f"rbac.authorization.k8s.io/aggregate-to-{name}"
    found = set()
    for obj in POLICY:
        if obj["metadata"].get("labels", {}).get(label) != "true":
            continue
        if "aggregationRule" in obj:
            found |= aggregated(obj["metadata"]["name"])
        for one in obj.get("rules", ()):
            found |= {(v, g, r) for v in one["verbs"] for g in one["apiGroups"] for r in one["resources"]}
    return found


@pytest.mark.parametrize(
    ("role_name", "grant", "held"),
    [
        pytest.param("view", ("get", "", "configmaps"), True, id="view reads ConfigMaps"),
        pytest.param("view", ("watch", "events.k8s.io", "events"), True, id="view watches Events of both groups"),
        pytest.param("edit", ("create", "events.k8s.io", "events"), True, id="edit writes Events of both groups"),
        pytest.param("admin", ("delete", "events.k8s.io", "events"), True, id="admin deletes Events of both groups"),
        pytest.param("view", ("get", "", "secrets"), False, id="view reads no Secret"),
        pytest.param("view", ("get", "rbac.authorization.k8s.io", "roles"), False, id="view reads no roles"),
        pytest.param("edit", ("get", "", "configmaps"), True, id="edit includes view"),
        pytest.param("edit", ("get", "", "secrets"), True, id="edit reads Secrets"),
        pytest.param("edit", ("update", "", "secrets"), True, id="edit writes Secrets"),
        pytest.param("edit", ("impersonate", "", "serviceaccounts"), True, id="edit impersonates service accounts"),
        pytest.param("edit", ("create", "", "serviceaccounts/token"), True, id="edit makes their tokens"),
        pytest.param("edit", ("create", "rbac.authorization.k8s.io", "roles"), False, id="edit makes no roles"),
        pytest.param("admin", ("create", "rbac.authorization.k8s.io", "rolebindings"), True, id="admin makes bindings"),
        pytest.param("admin", ("update", "", "secrets"), True, id="admin includes edit"),
        pytest.param(
            "admin", ("create", "authorization.k8s.io", "localsubjectaccessreviews"), True, id="admin asks about others"
        ),
        pytest.param("admin", ("create", "", "namespaces"), False, id="admin makes no namespaces"),
        pytest.param(
            "admin",
            ("create", "certificates.k8s.io", "podcertificaterequests"),
            False,
            id="admin requests no certificates of Pods",
        ),
    ],
)
def test_user_facing_roles(role_name: str, grant: tuple[str, str, str], held: bool) -> None:
    assert (grant in aggregated(role_name)) is held


@pytest.mark.parametrize(
    ("binding", "groups_or_user"),
    [
        ("cluster-admin", [identity.MASTERS]),
        ("system:discovery", [identity.AUTHENTICATED]),
        ("system:public-info-viewer", [identity.AUTHENTICATED, identity.UNAUTHENTICATED]),
        ("system:service-account-issuer-discovery", [identity.SERVICE_ACCOUNTS]),
        ("mooring:recovering-node", [identity.RECOVERING_NODES]),
        ("mooring:leave", [identity.NODES]),
        ("kubeadm:get-nodes", list(bootstraptoken.DEFAULT_GROUPS)),
        ("kubeadm:nodes-kubeadm-config", [*bootstraptoken.DEFAULT_GROUPS, identity.NODES]),
        ("kubeadm:bootstrap-signer-clusterinfo", [identity.ANONYMOUS]),
        ("kubeadm:cluster-admins", [CLUSTER_ADMINS]),
        ("mooring:k3s:get-nodes", list(k3stoken.DEFAULT_GROUPS)),
        (K3S_CONTROLLER, [K3S_CONTROLLER]),
    ],
)
def test_subjects_have_the_names_that_the_code_gives_to_callers(binding: str, groups_or_user: list[str]) -> None:
    (found,) = (obj for obj in EVERYTHING if (obj["metadata"]["name"], "subjects" in obj) == (binding, True))
    assert [subject["name"] for subject in found["subjects"]] == groups_or_user


@pytest.mark.parametrize("file", sorted(POLICY_FILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_no_object_has_a_key_twice(file: Path) -> None:
    assert read_yaml(file.read_bytes()).duplicates == ()


def test_every_default_object_is_marked_and_every_binding_finds_its_role() -> None:
    roles = {
        (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]) for o in EVERYTHING if "roleRef" not in o
    }
    for obj in POLICY:
        assert obj["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
        assert obj["metadata"]["annotations"] == {AUTOUPDATE: "true"}
    for obj in EVERYTHING:
        assert obj["apiVersion"] == "rbac.authorization.k8s.io/v1"
        if "roleRef" in obj:
            reference = obj["roleRef"]
            namespace = obj["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
            assert (reference["kind"], namespace, reference["name"]) in roles


def test_objects_come_in_the_order_they_can_be_written_in() -> None:
    kinds = list(dict.fromkeys(obj["kind"] for obj in POLICY))
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


KUBE_SYSTEM_SECRET = {"resource": "secrets", "namespace": "kube-system", "name": "kubeadm-certs"}


@pytest.mark.parametrize(
    ("verb", "what", "of_k3s", "of_kubeadm"),
    [
        pytest.param("create", CSR, True, True, id="asks for a certificate"),
        pytest.param("create", {**CSR, "subresource": "nodeclient"}, True, True, id="its certificate is approved"),
        pytest.param("create", {**CSR, "subresource": "selfnodeclient"}, False, False, id="renews nothing"),
        pytest.param("get", {"resource": "nodes", "name": "n1"}, True, True, id="looks for its Node"),
        *(
            pytest.param(
                "get",
                {"resource": "configmaps", "namespace": "kube-system", "name": name},
                True,
                True,
                id=f"reads {name}",
            )
            for name in ("kubeadm-config", "kubelet-config", "kube-proxy")
        ),
        pytest.param("get", KUBE_SYSTEM_SECRET, False, True, id="reads the certificates of a control plane"),
    ],
)
def test_a_token_of_k3s_joins_a_machine_as_one_of_kubeadm_does(
    verb: str, what: dict[str, str], of_k3s: bool, of_kubeadm: bool
) -> None:
    assert RBAC.authorize(Attributes(user=K3S_JOINER, verb=verb, **what), VIEWS).allowed is of_k3s
    assert RBAC.authorize(Attributes(user=JOINER, verb=verb, **what), VIEWS).allowed is of_kubeadm


def test_no_object_is_declared_twice() -> None:
    places = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in EVERYTHING]
    assert len(places) == len(set(places))


def test_each_call_returns_new_copies() -> None:
    default_policy()[0]["rules"].clear()
    kubeadm_policy()[0]["rules"].clear()
    k3s_policy()[0]["subjects"].clear()
    assert default_policy()[0]["rules"]
    assert kubeadm_policy()[0]["rules"]
    assert k3s_policy()[0]["subjects"]


def test_kubeadm_objects_carry_no_default_policy_mark() -> None:
    assert all(set(obj["metadata"]) <= {"name", "namespace"} for obj in kubeadm_policy())


PODS, PATHS = rule("get,list", "", "pods"), path_rule("get", "/a")
ROLE = default(cluster_role("r", PODS, PATHS), {"more": "label"})
BINDING = default(cluster_binding("b", "r", user("a"), group("g")))
SUM: Obj = {**default(cluster_role("s")), "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}


def stored(obj: Obj, **changed: object) -> Obj:
    """Return `obj` as stored, with fields replaced."""
    metadata = {**obj["metadata"], "uid": "u", "resourceVersion": "7"}
    return {**deepcopy(obj), "metadata": metadata, **changed}


def marked(obj: Obj, **metadata: object) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


@pytest.mark.parametrize(
    "wanted", [ROLE, BINDING, SUM, default(cluster_binding("empty", "r"))], ids=["role", "binding", "sum", "empty"]
)
def test_an_object_equal_to_the_default_is_not_written(wanted: Obj) -> None:
    assert reconcile(stored(wanted), wanted) is None


def test_a_missing_object_is_created() -> None:
    made = reconcile(None, ROLE)
    assert made == ROLE
    assert made is not ROLE


EXTRA = rule("get", "", "secrets")


@pytest.mark.parametrize(
    ("existing", "wanted", "key", "value"),
    [
        pytest.param(
            stored(ROLE, rules=[EXTRA, PATHS]), ROLE, "rules", [EXTRA, PATHS, PODS], id="a missing rule is appended"
        ),
        pytest.param(
            stored(ROLE, rules=[rule("get", "", "pods"), PATHS]),
            ROLE,
            "rules",
            [rule("get", "", "pods"), PATHS, PODS],
            id="a narrowed rule is appended",
        ),
        pytest.param(stored(ROLE, rules=None), ROLE, "rules", [PODS, PATHS], id="an emptied role is filled"),
        pytest.param(
            stored(BINDING, subjects=[user("x"), group("g")]),
            BINDING,
            "subjects",
            [user("x"), group("g"), user("a")],
            id="a missing subject is appended",
        ),
        pytest.param(
            {k: v for k, v in stored(BINDING).items() if k != "subjects"},
            BINDING,
            "subjects",
            [user("a"), group("g")],
            id="lost subjects come back",
        ),
        pytest.param(
            stored(SUM, aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]}),
            SUM,
            "aggregationRule",
            {"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}, {"matchLabels": {"a": "b"}}]},
            id="a missing selector is appended",
        ),
        pytest.param(
            {k: v for k, v in stored(SUM).items() if k != "aggregationRule"},
            SUM,
            "aggregationRule",
            SUM["aggregationRule"],
            id="a role aggregates again",
        ),
        pytest.param(stored(ROLE, aggregationRule={}), ROLE, "aggregationRule", None, id="a role stops aggregating"),
    ],
)
def test_reconciliation_adds(existing: Obj, wanted: Obj, key: str, value: object) -> None:
    before = deepcopy(existing)
    result = reconcile(existing, wanted)
    assert result is not None
    assert result.get(key) == value
    assert result["metadata"]["resourceVersion"] == "7"
    assert existing == before
    assert reconcile(result, wanted) is None


@pytest.mark.parametrize(
    "existing",
    [
        pytest.param(stored(ROLE, rules=[*ROLE["rules"], EXTRA]), id="more rules stay"),
        pytest.param(stored(ROLE, rules=[rule("*", "*", "*"), path_rule("*", "*")]), id="wider rules are enough"),
        pytest.param(
            stored(marked(ROLE, labels={**ROLE["metadata"]["labels"], "more": "mine"})), id="a changed label stays"
        ),
        pytest.param(
            stored(marked(ROLE, annotations={AUTOUPDATE: "false"}), rules=[]), id="what must not be updated stays"
        ),
    ],
)
def test_reconciliation_keeps_changes_of_an_administrator(existing: Obj) -> None:
    assert reconcile(existing, ROLE) is None


def test_rules_of_an_aggregated_role_are_the_controllers() -> None:
    assert reconcile(stored(SUM, rules=[EXTRA]), SUM) is None


def test_removed_marks_are_restored() -> None:
    result = reconcile(stored({**ROLE, "metadata": {"name": "r", "labels": {"mine": "x"}, "annotations": None}}), ROLE)
    assert result is not None
    assert result["metadata"]["labels"] == {**ROLE["metadata"]["labels"], "mine": "x"}
    assert result["metadata"]["annotations"] == {AUTOUPDATE: "true"}


def test_an_unmarked_object_gets_no_empty_marks() -> None:
    wanted = cluster_binding("b", "r", user("a"))
    result = reconcile(stored(wanted, subjects=[]), wanted)
    assert result is not None
    assert set(result["metadata"]) == {"name", "uid", "resourceVersion"}


def test_a_binding_to_another_role_is_replaced() -> None:
    result = reconcile(stored(cluster_binding("b", "other", service_account("x", "y"))), BINDING)
    assert result == BINDING
    assert "resourceVersion" not in BINDING["metadata"]


def test_a_machine_without_a_credential_may_make_a_request_and_read_it_by_its_name() -> None:
    role, bound = join_request_policy()
    assert role["rules"] == [
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "get"]}
    ]
    assert (bound["roleRef"]["name"], bound["subjects"][0]["name"]) == (role["metadata"]["name"], "system:anonymous")
