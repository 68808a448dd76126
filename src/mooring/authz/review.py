"""Answers of SubjectAccessReview, LocalSubjectAccessReview, SelfSubjectAccessReview and SelfSubjectRulesReview.

Rules kept here (docs/protocol/authorization.md#access-reviews):
1. The kind (`mooring.api.reviews`) has validated the review before.
2. The user is authorized exactly as written: no group is added, so the answer equals that to a request with those groups.
3. Status: `allowed`, `denied` only for an explicit denial, `reason`, `evaluationError`. `allowed` is always present.
4. A selector of a review may be as long as a body: attributes are read, and ignored selectors found, in a thread (docs/adr/0026).
5. SelfSubjectRulesReview lists the rules that RBAC grants, and is marked incomplete for nodes. Its spec is not echoed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import parse_field_selector, parse_label_selector
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.authz.node import node_name
from mooring.authz.rbac.authorizer import Rbac
from mooring.errors import BadRequestError
from mooring.identity import UserInfo

API_VERSION = "authorization.k8s.io/v1"

NODE_RULES_UNKNOWN = "node authorizer does not support user rule resolution"


def subject_access_attributes(review: Obj) -> Attributes:
    """Return the attributes in a SubjectAccessReview or LocalSubjectAccessReview."""
    spec = review["spec"]
    return _attributes(spec, _user(spec))


def self_access_attributes(review: Obj, user: UserInfo) -> Attributes:
    """Return the attributes in a SelfSubjectAccessReview of `user`."""
    return _attributes(review["spec"], user)


def with_status(review: Obj, decision: Decision, ignored: Iterable[str] = ()) -> Obj:
    """Return the review with the status that reports `decision`. `ignored`: the `ignored_selectors` of the review."""
    status: Obj = {"allowed": decision.allowed}
    if decision.ruling is Ruling.DENY:
        status["denied"] = True
    if decision.reason:
        status["reason"] = decision.reason
    if problems := [*filter(None, (decision.error, *ignored))]:
        status["evaluationError"] = "; ".join(problems)
    return {**review, "status": status}


def rules_review(review: Obj, user: UserInfo, rbac: Rbac, views: Views) -> Obj:
    """Return a SelfSubjectRulesReview with the rules that RBAC grants to `user`."""
    rules, problems = rbac.rules_for(user, review["spec"]["namespace"], views)
    errors = list(problems)
    if node_name(user):
        errors.append(NODE_RULES_UNKNOWN)
    resource_rules: list[Obj] = []
    path_rules: list[Obj] = []
    for rule in rules:
        source = rule.source
        if rule.resources:
            resource_rules.append(_without_empty(source, ("verbs", "apiGroups", "resources", "resourceNames")))
        if rule.paths:
            path_rules.append(_without_empty(source, ("verbs", "nonResourceURLs")))
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


def _without_empty(source: Obj, keys: Iterable[str]) -> Obj:
    return {key: source[key] for key in keys if source.get(key)}


def _user(spec: Obj) -> UserInfo:
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return UserInfo(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups") or ()), MappingProxyType(extra))


def _attributes(spec: Obj, user: UserInfo) -> Attributes:
    resource = spec.get("resourceAttributes")
    if resource is None:
        non_resource = spec["nonResourceAttributes"]
        return Attributes(user=user, verb=non_resource.get("verb", ""), path=non_resource.get("path", ""))
    return Attributes(
        user=user,
        verb=resource.get("verb", ""),
        group=resource.get("group", ""),
        version=resource.get("version", ""),
        resource=resource.get("resource", ""),
        subresource=resource.get("subresource", ""),
        namespace=resource.get("namespace", ""),
        name=resource.get("name", ""),
        field_selector=_selector(resource, "fieldSelector")[0],
        label_selector=_selector(resource, "labelSelector")[0],
    )


def ignored_selectors(review: Obj) -> Iterator[str]:
    """Yield a message for each selector of a review that is ignored, entirely or in part, because it cannot be parsed."""
    resource = review["spec"].get("resourceAttributes") or {}
    for name in _PARSERS:
        text, complete = _selector(resource, name)
        if not complete:
            yield f"spec.resourceAttributes.{name} {'partially ' if text else ''}ignored due to parse error"


def _selector(resource: Obj, name: str) -> tuple[str, bool]:
    """Return the parsable requirements of a selector as text, and true when those are all.

    A requirement that cannot be parsed is left out, so that the review covers more objects than the selector, never fewer.
    """
    selector = resource.get(name) or {}
    requirements = selector.get("requirements") or []
    terms = [_TERMS[name](requirement) for requirement in requirements] or [selector.get("rawSelector", "")]
    parsable = [term for term in terms if term is not None and _is_parsable(name, term)]
    return ",".join(parsable), len(parsable) == len(terms)


def _is_parsable(name: str, term: str) -> bool:
    try:
        _PARSERS[name](term)
    except BadRequestError:
        return False
    return True


def _field_term(requirement: Obj) -> str | None:
    """Return one term of a field selector, which supports only equality with one value and its negation."""
    sign = {"In": "=", "NotIn": "!="}.get(requirement.get("operator", ""))
    values = requirement.get("values") or []
    if sign is None or len(values) != 1:
        return None
    escaped = values[0].replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    return f"{requirement.get('key', '')}{sign}{escaped}"


def _label_term(requirement: Obj) -> str | None:
    key: str = requirement.get("key", "")
    match requirement.get("operator", ""):
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{key}"
        case "In" | "NotIn" as operator:
            return f"{key} {operator.lower()} ({','.join(requirement.get('values') or ())})"
    return None


_TERMS: Mapping[str, Callable[[Obj], str | None]] = MappingProxyType(
    {"fieldSelector": _field_term, "labelSelector": _label_term}
)
_PARSERS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {"fieldSelector": parse_field_selector, "labelSelector": parse_label_selector}
)
