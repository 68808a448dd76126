"""Unmodified kubectl creates reviews: objects without a name, answered at once and never stored
(docs/protocol/authentication-reviews.md, docs/protocol/authorization.md#access-reviews)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.api.kinds import KINDS
from tests.compat.kubectl import Kubectl

Status = dict[str, Any]
PODS = {"verb": "list", "resource": "pods"}


def _rules(status: Status) -> bool:
    return not status["incomplete"] and {"verbs": ["*"], "nonResourceURLs": ["*"]} in status["nonResourceRules"]


REVIEWS: dict[str, tuple[str, dict[str, Any], Callable[[Status], bool]]] = {
    "TokenReview": (
        "authentication.k8s.io/v1",
        {"token": "no-token"},
        lambda status: not status.get("authenticated") and bool(status["error"]),
    ),
    "SelfSubjectReview": (
        "authentication.k8s.io/v1",
        {},
        lambda status: status["userInfo"]["username"] == "kubernetes-admin",
    ),
    "SubjectAccessReview": (
        "authorization.k8s.io/v1",
        {"user": "nobody", "resourceAttributes": PODS},
        lambda status: status["allowed"] is False,
    ),
    "LocalSubjectAccessReview": (
        "authorization.k8s.io/v1",
        {"user": "x", "groups": ["system:masters"], "resourceAttributes": PODS},
        lambda status: status["allowed"] is True,
    ),
    "SelfSubjectAccessReview": (
        "authorization.k8s.io/v1",
        {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}},
        lambda status: status["allowed"] is True,
    ),
    "JoinToken": (
        "mooring.dev/v1alpha1",
        {"nodeName": "web-*"},
        lambda status: bool(status["token"]) and bool(status["expirationTimestamp"]),
    ),
    "SelfSubjectRulesReview": ("authorization.k8s.io/v1", {"namespace": "default"}, _rules),
}


def test_every_kind_of_review_has_a_case() -> None:
    assert {kind.resource.kind for kind in KINDS if kind.virtual} == set(REVIEWS)


@pytest.mark.parametrize("review", REVIEWS)
@pytest.mark.shows("create -f of a review")
def test_a_review_is_answered_when_it_is_created(kubectl: Kubectl, namespace: str, review: str, tmp_path: Path) -> None:
    version, spec, answered = REVIEWS[review]
    if "resourceAttributes" in spec and review.startswith("Local"):
        spec = {**spec, "resourceAttributes": {**PODS, "namespace": namespace}}
    asked = {"apiVersion": version, "kind": review, **({"spec": spec} if spec else {})}
    file = tmp_path / "review.json"
    file.write_text(json.dumps(asked))
    found = kubectl.json("-n", namespace, "create", "-f", str(file))
    assert (found["kind"], found["apiVersion"]) == (review, version)
    status: Any = found["status"]
    assert answered(status), found
    assert "created" in kubectl.ok("-n", namespace, "create", "-f", str(file)), "twice: nothing was stored"
