"""Roles and bindings: validation, defaults, print columns.

Source: docs/protocol/rbac.md, docs/protocol/tables.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL
from tests.support.changes import NOW, created, updated

ROLE, CLUSTER_ROLE = BY_PLURAL["roles"], BY_PLURAL["clusterroles"]
BINDING, CLUSTER_BINDING = BY_PLURAL["rolebindings"], BY_PLURAL["clusterrolebindings"]
GROUP = "rbac.authorization.k8s.io"

Obj = dict[str, Any]

READ = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}
HEALTH = {"verbs": ["get"], "nonResourceURLs": ["/healthz"]}
MIXED = "rules cannot apply to both regular resources and non-resource URLs"


@pytest.mark.parametrize(
    ("kind", "rules", "errors"),
    [
        pytest.param(ROLE, [], [], id="no rules are fine"),
        pytest.param(ROLE, [READ], [], id="a rule about resources"),
        pytest.param(CLUSTER_ROLE, [READ, HEALTH], [], id="a rule about URLs in a ClusterRole"),
        pytest.param(
            ROLE,
            [HEALTH],
            [
                'rules[0].nonResourceURLs: Invalid value: ["/healthz"]: '
                "namespaced rules cannot apply to non-resource URLs"
            ],
            id="but not in a Role",
        ),
        pytest.param(
            CLUSTER_ROLE,
            [READ, {}],
            [
                "rules[1].verbs: Required value: verbs must contain at least one value",
                "rules[1].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[1].resources: Required value: resource rules must supply at least one resource",
            ],
            id="a rule is complete",
        ),
        *(
            pytest.param(
                CLUSTER_ROLE,
                [{**HEALTH, field: ["x"]}],
                [f'rules[0].nonResourceURLs: Invalid value: ["/healthz"]: {MIXED}'],
                id=f"URLs do not go with {field}",
            )
            for field in ("apiGroups", "resources", "resourceNames")
        ),
    ],
)
def test_rules(kind: Kind, rules: list[Obj], errors: list[str]) -> None:
    assert created(kind, {"rules": rules})[1] == errors


A = "aggregationRule.clusterRoleSelectors"
NO_SELECTOR = f"{A}[0]: Invalid value: null: invalid label selector."


@pytest.mark.parametrize(
    ("selectors", "errors"),
    [
        pytest.param([{"matchLabels": {"a.example/to-admin": "true"}}], [], id="labels select"),
        pytest.param(
            [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}], [], id="expressions select"
        ),
        pytest.param([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}], [], id="existence selects"),
        pytest.param(
            [],
            [f"{A}: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"],
            id="something must select",
        ),
        pytest.param(
            [{"matchLabels": {"/a": "b"}}],
            [f'{A}[0].matchLabels: Invalid value: "/a": prefix part must be non-empty', NO_SELECTOR],
            id="label keys are checked",
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "a", "operator": "NotIn"}]}],
            [
                f"{A}[0].matchExpressions[0].values: Required value: "
                "must be specified when `operator` is 'In' or 'NotIn'",
                NO_SELECTOR,
            ],
            id="NotIn needs values",
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": ["b"]}]}],
            [
                f"{A}[0].matchExpressions[0].values: Forbidden: "
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                NO_SELECTOR,
            ],
            id="DoesNotExist takes none",
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "/a", "operator": "Near", "values": ["b", "x" * 64]}]}],
            [
                f'{A}[0].matchExpressions[0].operator: Invalid value: "Near": not a valid selector operator',
                f'{A}[0].matchExpressions[0].key: Invalid value: "/a": prefix part must be non-empty',
                f'{A}[0].matchExpressions[0].values[1]: Invalid value: "{"x" * 64}": must be no more than 63 bytes',
                NO_SELECTOR,
            ],
            id="operators, keys and values are checked",
        ),
    ],
)
def test_aggregation(selectors: list[Obj], errors: list[str]) -> None:
    assert created(CLUSTER_ROLE, {"aggregationRule": {"clusterRoleSelectors": selectors}})[1] == errors


def test_a_role_prints_its_creation_time() -> None:
    obj = created(ROLE, {})[0]
    assert [column.cell(obj, NOW) for column in ROLE.resource.columns] == ["x", "2026-01-02T03:04:05Z"]
    assert [column.type for column in ROLE.resource.columns] == ["string", "date"]


REF = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"}


def test_api_groups_are_filled_in() -> None:
    given = {
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"kind": "User", "name": "jane"},
            {"kind": "Group", "name": "devs", "apiGroup": ""},
            {"kind": "User", "name": "joe", "apiGroup": GROUP},
            {"kind": "ServiceAccount", "name": "sa", "namespace": "ns"},
        ],
    }
    obj, errors = created(CLUSTER_BINDING, given)
    assert errors == []
    assert obj["roleRef"] == REF
    assert [subject.get("apiGroup") for subject in obj["subjects"]] == [GROUP, GROUP, GROUP, None]
    assert [column.cell(obj, NOW) for column in CLUSTER_BINDING.resource.columns] == [
        "x", "ClusterRole/view", "0s", "jane, joe", "devs", "ns/sa",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "role", "errors"),
    [
        pytest.param(BINDING, REF, [], id="a RoleBinding may grant a ClusterRole"),
        pytest.param(BINDING, REF | {"kind": "Role"}, [], id="or a Role"),
        pytest.param(
            CLUSTER_BINDING,
            REF | {"kind": "Role"},
            ['roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"'],
            id="a ClusterRoleBinding may not",
        ),
        pytest.param(
            BINDING,
            {"apiGroup": "a.example", "kind": "Pod", "name": "a/b"},
            [
                f'roleRef.apiGroup: Unsupported value: "a.example": supported values: "{GROUP}"',
                'roleRef.kind: Unsupported value: "Pod": supported values: "Role", "ClusterRole"',
                "roleRef.name: Invalid value: \"a/b\": may not contain '/'",
            ],
            id="a reference is checked",
        ),
        pytest.param(BINDING, {"kind": "Role"}, ["roleRef.name: Required value"], id="and named"),
        pytest.param(
            BINDING,
            None,
            [
                f'roleRef.apiGroup: Unsupported value: "": supported values: "{GROUP}"',
                'roleRef.kind: Unsupported value: "": supported values: "Role", "ClusterRole"',
                "roleRef.name: Required value",
            ],
            id="and there",
        ),
    ],
)
def test_role_references(kind: Kind, role: Obj | None, errors: list[str]) -> None:
    assert created(kind, {} if role is None else {"roleRef": role})[1] == errors


S = "subjects[0]"


@pytest.mark.parametrize(
    ("kind", "subject", "errors"),
    [
        pytest.param(BINDING, {"kind": "ServiceAccount", "name": "sa"}, [], id="a namespace defaults to the binding's"),
        pytest.param(
            CLUSTER_BINDING,
            {"kind": "ServiceAccount", "name": "sa"},
            [f"{S}.namespace: Required value"],
            id="but is required in a ClusterRoleBinding",
        ),
        pytest.param(
            BINDING,
            {"kind": "ServiceAccount", "apiGroup": GROUP},
            [f"{S}.name: Required value", f'{S}.apiGroup: Unsupported value: "{GROUP}": supported values: ""'],
            id="service accounts are of the core group",
        ),
        pytest.param(
            BINDING,
            {"kind": "ServiceAccount", "name": "a" * 254},
            [f'{S}.name: Invalid value: "{"a" * 254}": must be no more than 253 characters'],
            id="and named like one",
        ),
        pytest.param(
            BINDING,
            {"kind": "User", "apiGroup": "a.example"},
            [
                f"{S}.name: Required value",
                f'{S}.apiGroup: Unsupported value: "a.example": supported values: "{GROUP}"',
            ],
            id="a user has a name and the RBAC group",
        ),
        pytest.param(
            BINDING,
            {"kind": "Group", "name": ""},
            [f"{S}.name: Required value"],
            id="a group has a name",
        ),
        pytest.param(
            BINDING,
            {"kind": "Robot", "name": "r"},
            [f'{S}.kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"'],
            id="nobody else is a subject",
        ),
    ],
)
def test_subjects(kind: Kind, subject: Obj, errors: list[str]) -> None:
    assert created(kind, {"roleRef": REF, "subjects": [subject]})[1] == errors


@pytest.mark.parametrize("kind", [BINDING, CLUSTER_BINDING], ids=["RoleBinding", "ClusterRoleBinding"])
def test_role_ref_is_immutable(kind: Kind) -> None:
    stored = created(kind, {"roleRef": REF})[0]
    subjects = [{"kind": "User", "name": "jane"}]
    assert updated(kind, {"roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": subjects}, stored)[1] == []
    assert updated(kind, {"roleRef": REF | {"name": "admin"}}, stored)[1] == [
        f'roleRef: Invalid value: {{"APIGroup":"{GROUP}","Kind":"ClusterRole","Name":"admin"}}: cannot change roleRef'
    ]
