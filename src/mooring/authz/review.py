"""The access reviews: "may this user do that?", asked over the API.

Rules kept here (reference/kubernetes.md 6.8):
1. A review was validated by its kind (`mooring.kinds.accessreview`): it asks one thing, and about somebody. Here it is answered.
2. The user is judged exactly as written: no group is added, so a review asks what a request with those groups would get.
3. Status: `allowed`, `denied` only for an explicit denial, `reason`, `evaluationError`. `allowed` is always present.
4. SelfSubjectRulesReview lists what RBAC grants; for nodes it says that it is incomplete. Its spec is not echoed.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.nodeidentity import node_name
from mooring.authz.rbac import Rbac
from mooring.identity import UserInfo
from mooring.kinds.view import Views
from mooring.wire.schema import Obj

API_VERSION = "authorization.k8s.io/v1"

NODE_RULES_UNKNOWN = "node authorizer does not support user rule resolution"


def subject_access_attributes(review: Obj) -> Attributes:
    """What a SubjectAccessReview or LocalSubjectAccessReview asks."""
    spec = review["spec"]
    return _attributes(spec, _user(spec))


def self_access_attributes(review: Obj, user: UserInfo) -> Attributes:
    """What a SelfSubjectAccessReview of `user` asks."""
    return _attributes(review["spec"], user)


def answered(review: Obj, decision: Decision) -> Obj:
    """The review with its status, ready to be sent back."""
    status: Obj = {"allowed": decision.allowed}
    if decision.ruling is Ruling.DENY:
        status["denied"] = True
    if decision.reason:
        status["reason"] = decision.reason
    if decision.error:
        status["evaluationError"] = decision.error
    return {**review, "status": status}


def rules_review(review: Obj, user: UserInfo, rbac: Rbac, views: Views) -> Obj:
    """The answered SelfSubjectRulesReview."""
    rules, problems = rbac.rules_for(user, review["spec"]["namespace"], views)
    errors = list(problems)
    if node_name(user):
        errors.append(NODE_RULES_UNKNOWN)
    resource_rules: list[Obj] = []
    path_rules: list[Obj] = []
    for rule in rules:
        source = rule.source
        if rule.resources:
            resource_rules.append(_picked(source, ("verbs", "apiGroups", "resources", "resourceNames")))
        if rule.paths:
            path_rules.append(_picked(source, ("verbs", "nonResourceURLs")))
    status: Obj = {
        "resourceRules": resource_rules,
        "nonResourceRules": path_rules,
        "incomplete": bool(errors),
    }
    if errors:
        status["evaluationError"] = ", ".join(errors)
    return {
        "kind": "SelfSubjectRulesReview",
        "apiVersion": API_VERSION,
        "metadata": {},
        "spec": {},
        "status": status,
    }


def _picked(source: Obj, keys: Iterable[str]) -> Obj:
    return {key: source[key] for key in keys if source.get(key)}


def _user(spec: Obj) -> UserInfo:
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return UserInfo(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups") or ()), MappingProxyType(extra))


def _attributes(spec: Obj, user: UserInfo) -> Attributes:
    resource = spec.get("resourceAttributes")
    if resource is None:
        asked = spec["nonResourceAttributes"]
        return Attributes(user=user, verb=asked.get("verb", ""), path=asked.get("path", ""))
    return Attributes(
        user=user,
        verb=resource.get("verb", ""),
        group=resource.get("group", ""),
        version=resource.get("version", ""),
        resource=resource.get("resource", ""),
        subresource=resource.get("subresource", ""),
        namespace=resource.get("namespace", ""),
        name=resource.get("name", ""),
        field_selector=_selector(resource.get("fieldSelector")),
        label_selector=_selector(resource.get("labelSelector")),
    )


def _selector(selector: Obj | None) -> str:
    """The raw text of a selector, or its requirements written as one."""
    if not selector:
        return ""
    raw: str = selector.get("rawSelector", "")
    return raw or ",".join(map(_requirement, selector.get("requirements") or ()))


def _requirement(requirement: Obj) -> str:
    key: str = requirement.get("key", "")
    operator: str = requirement.get("operator", "")
    if operator == "Exists":
        return key
    if operator == "DoesNotExist":
        return "!" + key
    return f"{key} {operator.lower()} ({','.join(requirement.get('values') or ())})"
