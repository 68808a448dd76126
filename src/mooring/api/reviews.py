"""Kinds of authentication.k8s.io and authorization.k8s.io: reviews, which are never stored, and TokenRequest."""

from __future__ import annotations

from collections.abc import Callable

from mooring.api.kind import Change, Kind
from mooring.apimachinery.names import label_value_errors, qualified_name_errors
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message, Obj, message
from mooring.errors import BadRequestError, FieldError, forbidden, invalid, required
from mooring.identity import UserInfo

# Reviews: kinds that are answered when they are created, and never stored.


def drop_status(obj: Obj, change: Change) -> None:
    """Remove the status of the client: the server sets it."""
    obj.pop("status", None)


def review_kind(
    group: str,
    version: str,
    schema: Message,
    *,
    validate: Callable[[Obj], list[FieldError]] = lambda obj: [],
    prepare: Callable[[Obj, Change], None] = drop_status,
    namespaced: bool = False,
) -> Kind:
    """Return a kind that is named like its schema, and can only be created."""
    name = schema.name.rpartition(".")[2]
    return Kind(
        resource=Resource(
            group=group,
            version=version,
            kind=name,
            plural=f"{name.lower()}s",
            namespaced=namespaced,
            schema=schema,
            verbs=("create",),
        ),
        storage="",
        name_errors=lambda name: [],
        prepare_for_create=prepare,
        validate=validate,
    )


# UserInfo of authentication.k8s.io: conversion from an identity.
#
# Rules kept here: empty attributes are absent from the JSON form.


def user_info(user: UserInfo) -> Obj:
    """Convert an identity to its JSON form."""
    obj: Obj = {"username": user.username}
    if user.uid:
        obj["uid"] = user.uid
    if user.groups:
        obj["groups"] = list(user.groups)
    if user.extra:
        obj["extra"] = {key: list(values) for key, values in user.extra.items()}
    return obj


# TokenReview: strategy; it returns the identity of a bearer token and is never stored.
#
# Rules kept here (docs/protocol/authentication.md#webhook, docs/protocol/authentication-reviews.md):
# * A token is required, otherwise 400; a status of the client is dropped.
# * v1beta1 is served although kube-apiserver 1.22 dropped it: kube-apiserver sends it to a webhook by default, and this server
#   can be such a webhook. Both versions differ only in their name.

AUTHENTICATION_GROUP = "authentication.k8s.io"


def _prepare_for_create(obj: Obj, change: Change) -> None:
    """Drop the status. Raises BadRequestError without a token."""
    drop_status(obj, change)
    if not (obj.get("spec") or {}).get("token"):
        raise BadRequestError("token is required for TokenReview in authentication")


TOKEN_REVIEWS = tuple(
    review_kind(
        AUTHENTICATION_GROUP,
        version,
        message(f"io.k8s.api.authentication.{version}.TokenReview"),
        prepare=_prepare_for_create,
    )
    for version in ("v1", "v1beta1")
)


# SelfSubjectReview: strategy; it returns the identity of the caller (`kubectl auth whoami`) and is never stored.
#
# Rules kept here (docs/protocol/authentication-reviews.md): the server sets the status; that of a client is dropped.

SELF_SUBJECT_REVIEWS = tuple(
    review_kind(AUTHENTICATION_GROUP, version, message(f"io.k8s.api.authentication.{version}.SelfSubjectReview"))
    for version in ("v1", "v1beta1")
)
"""v1beta1 is served because TokenReview is served in it: clients of that version expect both kinds."""


# TokenRequest: defaults and validation of the `token` subresource of ServiceAccounts; not a resource of its own.
#
# Rules kept here (docs/protocol/service-account-tokens.md#tokenrequest):
# * A token lives 3600 seconds by default, at least 10 minutes and at most 2^32 seconds.
# * Audiences default to those of the API server; the issuer, which knows them, fills them in. There are at most 64.

DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 1 << 32
MAX_AUDIENCES = 64
"""Audiences of one token. Each is text of the client in the header of every later request."""


TOKEN_REQUEST = message("io.k8s.api.authentication.v1.TokenRequest")


def default(obj: Obj) -> None:
    """Fill in defaults, in place, except audiences."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("expirationSeconds", DEFAULT_SECONDS)


def validate(obj: Obj) -> list[FieldError]:
    """Validate a request that has its defaults."""
    spec, path = obj["spec"], "spec.expirationSeconds"
    seconds = spec["expirationSeconds"]
    errors: list[FieldError] = []
    if seconds < MIN_SECONDS:
        errors.append(invalid(path, seconds, "may not specify a duration less than 10 minutes"))
    if seconds > MAX_SECONDS:
        errors.append(invalid(path, seconds, "may not specify a duration larger than 2^32 seconds"))
    if len(spec.get("audiences") or ()) > MAX_AUDIENCES:
        errors.append(FieldError("FieldValueTooMany", "spec.audiences", f"must have at most {MAX_AUDIENCES} items"))
    return errors


# SubjectAccessReview, LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview: strategies and validation.
#
# Rules kept here (docs/protocol/authorization.md#access-reviews):
# * Exactly one of resourceAttributes and nonResourceAttributes is set. A review about another user has a user or a group.
# * metadata is empty, except for the namespace of a LocalSubjectAccessReview, which equals that of the attributes and excludes
#   URLs.
# * A rules review needs a namespace (400); the endpoint does not echo its spec.
# * A selector is given as text or in parts. Unknown operators are accepted, so that newer clients are served.

AUTHORIZATION_GROUP = "authorization.k8s.io"


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
    AUTHORIZATION_GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.SubjectAccessReview"),
    validate=_validate_subject_review,
)
LOCAL_SUBJECT_ACCESS_REVIEW = review_kind(
    AUTHORIZATION_GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.LocalSubjectAccessReview"),
    validate=_validate_local_review,
    namespaced=True,
)
SELF_SUBJECT_ACCESS_REVIEW = review_kind(
    AUTHORIZATION_GROUP,
    "v1",
    message("io.k8s.api.authorization.v1.SelfSubjectAccessReview"),
    validate=_validate_self_review,
)
SELF_SUBJECT_RULES_REVIEW = review_kind(
    AUTHORIZATION_GROUP,
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
