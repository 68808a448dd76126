"""Access reviews.

Source: docs/protocol/authorization.md#access-reviews.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.authz.rbac.authorizer import Rbac, cluster_binding, cluster_role, path_rule, rule
from mooring.authz.review import (
    ignored_selectors,
    rules_review,
    self_access_attributes,
    subject_access_attributes,
    with_status,
)
from mooring.identity import UserInfo
from tests.support.rbac import rbac_views, user

PODS = {"verb": "get", "resource": "pods", "namespace": "ns"}
JANE = UserInfo("jane")


def review(spec: Obj | None = None, metadata: Obj | None = None) -> Obj:
    return {"spec": spec, "metadata": metadata or {}}


def test_resource_attributes_are_taken_as_written() -> None:
    spec = {
        "user": "jane",
        "uid": "42",
        "groups": ["dev"],
        "extra": {"K": ["v"]},
        "resourceAttributes": {
            "verb": "get",
            "group": "g",
            "version": "v1",
            "resource": "r",
            "subresource": "s",
            "namespace": "ns",
            "name": "n",
            "fieldSelector": {"rawSelector": "a=b"},
            "labelSelector": {
                "requirements": [
                    {"key": "a", "operator": "In", "values": ["1", "2"]},
                    {"key": "b", "operator": "NotIn", "values": ["3"]},
                    {"key": "c", "operator": "Exists"},
                    {"key": "d", "operator": "DoesNotExist"},
                ]
            },
        },
    }
    assert subject_access_attributes(review(spec)) == Attributes(
        user=UserInfo("jane", "42", ("dev",), {"K": ("v",)}),
        verb="get",
        group="g",
        version="v1",
        resource="r",
        subresource="s",
        namespace="ns",
        name="n",
        field_selector="a=b",
        label_selector="a in (1,2),b notin (3),c,!d",
    )


def test_non_resource_attributes_are_taken_as_written() -> None:
    spec = {"groups": ["dev"], "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}
    asked = subject_access_attributes(review(spec))
    assert asked == Attributes(user=UserInfo("", groups=("dev",)), verb="get", path="/metrics")


def test_a_self_review_is_about_the_caller() -> None:
    asked = self_access_attributes(review({"resourceAttributes": PODS}), JANE)
    assert asked == Attributes(user=JANE, verb="get", resource="pods", namespace="ns")


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        (Decision(Ruling.ALLOW, "RBAC: yes"), {"allowed": True, "reason": "RBAC: yes"}),
        (Decision(Ruling.NO_OPINION), {"allowed": False}),
        (Decision(Ruling.DENY, "never"), {"allowed": False, "denied": True, "reason": "never"}),
        (Decision(Ruling.NO_OPINION, error="x"), {"allowed": False, "evaluationError": "x"}),
    ],
    ids=["allowed", "no opinion", "denied", "with an error"],
)
def test_the_status_of_a_review(decision: Decision, status: Obj) -> None:
    assert with_status({"kind": "K", "spec": {}}, decision) == {"kind": "K", "spec": {}, "status": status}


def test_a_rules_review_lists_resources_and_paths() -> None:
    views = rbac_views(
        [
            cluster_role("r", rule("get", "", "pods", "a"), path_rule("get", "/x")),
            cluster_binding("b", "r", user("jane")),
        ]
    )
    assert rules_review({"spec": {"namespace": "ns"}}, JANE, Rbac(), views) == {
        "kind": "SelfSubjectRulesReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {},
        "status": {
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
            "incomplete": False,
        },
    }


@pytest.mark.parametrize(
    ("who", "error"),
    [
        pytest.param(JANE, 'clusterroles.rbac.authorization.k8s.io "gone" not found', id="a missing role"),
        pytest.param(
            UserInfo("system:node:n", groups=("system:nodes",)),
            "node authorizer does not support user rule resolution",
            id="a node",
        ),
    ],
)
def test_a_rules_review_says_when_it_is_incomplete(who: UserInfo, error: str) -> None:
    views = rbac_views([cluster_binding("b", "gone", user("jane"))])
    status = rules_review({"spec": {"namespace": "ns"}}, who, Rbac(), views)["status"]
    assert (status["incomplete"], status["evaluationError"]) == (True, error)


@pytest.mark.parametrize(
    ("name", "selector", "text", "problem"),
    [
        pytest.param("fieldSelector", {"rawSelector": "a=b,c!=d"}, "a=b,c!=d", "", id="text"),
        pytest.param("fieldSelector", {"rawSelector": "a"}, "", "ignored", id="text that is no selector"),
        pytest.param(
            "fieldSelector",
            {"requirements": [{"key": "a", "operator": "In", "values": ["b,=\\"]}]},
            "a=b\\,\\=\\\\",
            "",
            id="one value",
        ),
        pytest.param(
            "fieldSelector",
            {"requirements": [{"key": "a", "operator": "NotIn", "values": ["b"]}]},
            "a!=b",
            "",
            id="another value",
        ),
        pytest.param(
            "fieldSelector",
            {"requirements": [{"key": "a", "operator": "In", "values": ["b", "c"]}]},
            "",
            "ignored",
            id="several values",
        ),
        pytest.param(
            "fieldSelector",
            {"requirements": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "In", "values": ["c"]}]},
            "b=c",
            "partially ignored",
            id="an operator that fields do not have",
        ),
        pytest.param("labelSelector", {"rawSelector": "a in (b,c),!d"}, "a in (b,c),!d", "", id="labels as text"),
        pytest.param(
            "labelSelector",
            {
                "requirements": [
                    {"key": "a", "operator": "In", "values": ["b", "c"]},
                    {"key": "d", "operator": "NotIn", "values": ["e"]},
                    {"key": "f", "operator": "Exists"},
                    {"key": "g", "operator": "DoesNotExist"},
                ]
            },
            "a in (b,c),d notin (e),f,!g",
            "",
            id="labels",
        ),
        pytest.param(
            "labelSelector",
            {"requirements": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
            "",
            "ignored",
            id="an operator",
        ),
    ],
)
def test_selectors_of_a_review(name: str, selector: Obj, text: str, problem: str) -> None:
    review = {"spec": {"user": "u", "resourceAttributes": {"verb": "list", "resource": "pods", name: selector}}}
    attributes = subject_access_attributes(review)
    assert {attributes.field_selector, attributes.label_selector} == {text, ""}
    error = with_status(review, Decision(Ruling.ALLOW), ignored_selectors(review))["status"].get("evaluationError", "")
    assert error == (f"spec.resourceAttributes.{name} {problem} due to parse error" if problem else "")
