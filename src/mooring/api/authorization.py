"""SubjectAccessReview, LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview: strategies and validation.

Rules kept here (docs/protocol/authorization.md#access-reviews):
* Exactly one of resourceAttributes and nonResourceAttributes is set. A review about another user has a user or a group.
* metadata is empty, except for the namespace of a LocalSubjectAccessReview, which equals that of the attributes and excludes URLs.
* A rules review needs a namespace (400); the endpoint does not echo its spec.
* A selector is given as text or in parts. Unknown operators are accepted, so that newer clients are served.
"""

from __future__ import annotations

from mooring.api.kind import Change
from mooring.api.review import drop_status, review_kind
from mooring.apimachinery.names import label_value_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj, message
from mooring.errors import BadRequestError, FieldError, forbidden, invalid, required

GROUP = "authorization.k8s.io"


def _prepare_rules_review(obj: Obj, change: Change) -> None:
    """Drop the status. Raises BadRequestError without a namespace."""
    drop_status(obj, change)
    if not (obj.get("spec") or {}).get("namespace"):
        raise BadRequestError("no namespace on request")


def _validate_subject_review(obj: Obj) -> list[FieldError]:
    return _subject_errors(obj) + _metadata_errors(obj)


def _validate_self_review(obj: Obj) -> list[FieldError]:
    return _access_errors(obj.get("spec") or {}) + _metadata_errors(obj)


def _validate_local_review(obj: Obj) -> list[FieldError]:
    meta, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    errors = _subject_errors(obj)
    if _has_more_than(meta, "namespace", "managedFields"):
        errors.append(invalid("metadata", meta, "must be empty except for namespace"))
    resource, url = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and resource.get("namespace", "") != meta.get("namespace", ""):
        namespace = resource.get("namespace", "")
        errors.append(invalid("spec.resourceAttributes.namespace", namespace, "must match metadata.namespace"))
    if url is not None:
        errors.append(invalid("spec.nonResourceAttributes", _go_attributes(url), "disallowed on this kind of request"))
    return errors


def _metadata_errors(obj: Obj) -> list[FieldError]:
    meta = obj.get("metadata") or {}
    return [invalid("metadata", meta, "must be empty")] if _has_more_than(meta, "managedFields") else []


def _has_more_than(meta: Obj, *allowed: str) -> bool:
    return any(value and name not in allowed for name, value in meta.items())


def _subject_errors(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors = _access_errors(spec)
    if not spec.get("user") and not spec.get("groups"):
        errors.append(invalid("spec.user", "", "at least one of user or group must be specified"))
    return errors


def _go_attributes(url: Obj) -> Obj:
    """Return the attributes as Go prints its internal type."""
    return {"Path": url.get("path", ""), "Verb": url.get("verb", "")}


def _access_errors(spec: Obj) -> list[FieldError]:
    resource, url = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is None:
        if url is None:
            detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            return [invalid("spec.resourceAttributes", None, detail)]
        return []
    errors: list[FieldError] = []
    if url is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        errors.append(invalid("spec.nonResourceAttributes", _go_attributes(url), detail))
    for name in ("fieldSelector", "labelSelector"):
        if name in resource:
            errors += _selector_errors(resource[name], f"spec.resourceAttributes.{name}")
    return errors


def _selector_errors(selector: Obj, path: str) -> list[FieldError]:
    raw, requirements = selector.get("rawSelector", ""), selector.get("requirements") or []
    if not raw and not requirements:
        return [required(f"{path}.requirements", f"when {path} is specified, requirements or rawSelector is required")]
    if raw and requirements:
        return [invalid(f"{path}.rawSelector", raw, "may not specified at the same time as requirements")]
    return [
        error
        for index, requirement in enumerate(requirements)
        for error in _requirement_errors(
            requirement, f"{path}.requirements[{index}]", is_label=path.endswith("labelSelector")
        )
    ]


def _requirement_errors(requirement: Obj, path: str, *, is_label: bool) -> list[FieldError]:
    key, operator, values = requirement.get("key", ""), requirement.get("operator", ""), requirement.get("values") or []
    errors: list[FieldError] = []
    if operator in ("In", "NotIn") and not values:
        errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist") and values:
        errors.append(forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
    if not is_label:
        return errors if key else [*errors, required(f"{path}.key", "must be specified")]
    errors += [invalid(f"{path}.key", key, detail) for detail in qualified_name_errors(key)]
    errors += [
        invalid(f"{path}.values[{place}]", value, detail)
        for place, value in enumerate(values)
        for detail in label_value_errors(value)
    ]
    return errors


SUBJECT_ACCESS_REVIEW = review_kind(
    GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.SubjectAccessReview"),
    validate=_validate_subject_review,
)
LOCAL_SUBJECT_ACCESS_REVIEW = review_kind(
    GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.LocalSubjectAccessReview"),
    validate=_validate_local_review,
    namespaced=True,
)
SELF_SUBJECT_ACCESS_REVIEW = review_kind(
    GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.SelfSubjectAccessReview"),
    validate=_validate_self_review,
)
SELF_SUBJECT_RULES_REVIEW = review_kind(
    GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.SelfSubjectRulesReview"),
    prepare=_prepare_rules_review,
)

KINDS = (
    LOCAL_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SUBJECT_ACCESS_REVIEW,
)
