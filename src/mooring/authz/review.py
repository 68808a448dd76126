"""The access reviews: "may this user do that?", asked over the API.

Rules kept here (docs/protocol/authorization.md#access-reviews):
1. A review was validated by its kind (`mooring.api.authorization.accessreview`): it asks one thing, and about somebody. Here it
is answered.
2. The user is judged exactly as written: no group is added, so a review asks what a request with those groups would get.
3. Status: `allowed`, `denied` only for an explicit denial, `reason`, `evaluationError`. `allowed` is always present.
4. SelfSubjectRulesReview lists what RBAC grants; for nodes it says that it is incomplete. Its spec is not echoed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import parse_field_selector, parse_label_selector
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.node.identifier import node_name
from mooring.authz.rbac.authorizer import Rbac
from mooring.errors import BadRequestError
from mooring.identity import UserInfo

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
    if problems := [*filter(None, (decision.error, *_unread(review["spec"].get("resourceAttributes") or {})))]:
        status["evaluationError"] = "; ".join(problems)
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
        field_selector=_selector(resource, "fieldSelector")[0],
        label_selector=_selector(resource, "labelSelector")[0],
    )


def _unread(resource: Obj) -> Iterator[str]:
    """Tell which selectors of a review are not looked at, or not wholly, because they cannot be read."""
    for name in _PARSERS:
        text, readable = _selector(resource, name)
        if not readable:
            yield f"spec.resourceAttributes.{name} {'partially ' if text else ''}ignored due to parse error"


def _selector(resource: Obj, name: str) -> tuple[str, bool]:
    """Return what of a selector can be read, as text, and whether that is all of it.

    What cannot be read is passed over, so that the review asks for more than the selector says, never for less.
    """
    selector = resource.get(name) or {}
    requirements = selector.get("requirements") or []
    terms = [_TERMS[name](requirement) for requirement in requirements] or [selector.get("rawSelector", "")]
    kept = [term for term in terms if term is not None and _reads(name, term)]
    return ",".join(kept), len(kept) == len(terms)


def _reads(name: str, term: str) -> bool:
    try:
        _PARSERS[name](term)
    except BadRequestError:
        return False
    return True


def _field_term(requirement: Obj) -> str | None:
    """Field selectors know only whether a field has one value or has not."""
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
