"""The access reviews: "may this user do that?", asked over the API.

Rules kept here (reference/kubernetes.md 6.8):
1. Exactly one of resourceAttributes and nonResourceAttributes; a user or groups (unless the review is about oneself);
   metadata empty (a LocalSubjectAccessReview carries its namespace). Otherwise 422.
2. A LocalSubjectAccessReview asks about resources of its own namespace only.
3. The user is judged exactly as written: no group is added, so a review asks what a request with those groups would get.
4. Status: `allowed`, `denied` only for an explicit denial, `reason`, `evaluationError`. `allowed` is always present.
5. SelfSubjectRulesReview lists what RBAC grants; for nodes it says that it is incomplete. Its spec is not echoed.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.nodeidentity import node_name
from mooring.authz.rbac import Rbac
from mooring.errors import BadRequestError, FieldError, InvalidError, invalid
from mooring.identity import UserInfo
from mooring.kinds.view import Views
from mooring.wire.schema import Obj

API_GROUP = "authorization.k8s.io"
API_VERSION = API_GROUP + "/v1"

NODE_RULES_UNKNOWN = "node authorizer does not support user rule resolution"


def subject_access_attributes(review: Obj) -> Attributes:
    """What a SubjectAccessReview asks. Raises InvalidError."""
    errors = _metadata_errors(review, allowed=())
    spec = review.get("spec") or {}
    errors += _target_errors(spec) + _user_errors(spec)
    _raise("SubjectAccessReview", errors)
    return _attributes(spec, _user(spec))


def local_subject_access_attributes(review: Obj, namespace: str) -> Attributes:
    """What a LocalSubjectAccessReview posted to `namespace` asks. Raises InvalidError or BadRequestError."""
    spec = review.get("spec") or {}
    resource = spec.get("resourceAttributes")
    home = (review.get("metadata") or {}).get("namespace", "") or namespace
    errors = _metadata_errors(review, allowed=("namespace",))
    errors += _target_errors(spec) + _user_errors(spec)
    if resource is not None and resource.get("namespace", "") != home:
        where = "spec.resourceAttributes.namespace"
        errors.append(invalid(where, resource.get("namespace", ""), "must match metadata.namespace"))
    path = spec.get("nonResourceAttributes")
    if path is not None:
        errors.append(invalid("spec.nonResourceAttributes", path, "disallowed on this kind of request"))
    _raise("LocalSubjectAccessReview", errors)
    if home != namespace:
        raise BadRequestError(f"spec.resourceAttributes.namespace must match namespace: {namespace}")
    return _attributes(spec, _user(spec))


def self_access_attributes(review: Obj, user: UserInfo) -> Attributes:
    """What a SelfSubjectAccessReview of `user` asks. Raises InvalidError."""
    spec = review.get("spec") or {}
    _raise("SelfSubjectAccessReview", _metadata_errors(review, allowed=()) + _target_errors(spec))
    return _attributes(spec, user)


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
    """The answered SelfSubjectRulesReview. Raises BadRequestError without a namespace."""
    namespace = (review.get("spec") or {}).get("namespace", "")
    if not namespace:
        raise BadRequestError("no namespace on request")
    rules, problems = rbac.rules_for(user, namespace, views)
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


def _raise(kind: str, errors: list[FieldError]) -> None:
    if errors:
        raise InvalidError.of(API_GROUP, kind, "", errors)


def _metadata_errors(review: Obj, allowed: tuple[str, ...]) -> list[FieldError]:
    metadata = review.get("metadata") or {}
    if any(value and key not in (*allowed, "managedFields") for key, value in metadata.items()):
        detail = "must be empty except for " + allowed[0] if allowed else "must be empty"
        return [invalid("metadata", metadata, detail)]
    return []


def _target_errors(spec: Obj) -> list[FieldError]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        return [invalid("spec.nonResourceAttributes", path, detail)]
    if resource is None and path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [invalid("spec.resourceAttributes", None, detail)]
    if resource is None:
        return []
    return _selector_errors(resource, "fieldSelector") + _selector_errors(resource, "labelSelector")


def _selector_errors(resource: Obj, name: str) -> list[FieldError]:
    selector = resource.get(name)
    if selector and selector.get("rawSelector") and selector.get("requirements"):
        path = f"spec.resourceAttributes.{name}.rawSelector"
        return [invalid(path, selector["rawSelector"], "may not specified at the same time as requirements")]
    return []


def _user_errors(spec: Obj) -> list[FieldError]:
    if not spec.get("user") and not spec.get("groups"):
        return [invalid("spec.user", spec.get("user", ""), "at least one of user or group must be specified")]
    return []


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
