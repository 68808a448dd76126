"""Kinds of authentication.k8s.io: TokenReview, SelfSubjectReview and TokenRequest."""

from __future__ import annotations

from mooring.api.kind import Change
from mooring.api.review import drop_status, review_kind
from mooring.apimachinery.schema import Obj, message
from mooring.errors import BadRequestError, FieldError, invalid
from mooring.identity import UserInfo

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

GROUP = "authentication.k8s.io"


def _prepare_for_create(obj: Obj, change: Change) -> None:
    """Drop the status. Raises BadRequestError without a token."""
    drop_status(obj, change)
    if not (obj.get("spec") or {}).get("token"):
        raise BadRequestError("token is required for TokenReview in authentication")


TOKEN_REVIEWS = tuple(
    review_kind(
        GROUP, version, message(f"io.k8s.api.authentication.{version}.TokenReview"), prepare=_prepare_for_create
    )
    for version in ("v1", "v1beta1")
)


# SelfSubjectReview: strategy; it returns the identity of the caller (`kubectl auth whoami`) and is never stored.
#
# Rules kept here (docs/protocol/authentication-reviews.md): the server sets the status; that of a client is dropped.

SELF_SUBJECT_REVIEWS = tuple(
    review_kind(GROUP, version, message(f"io.k8s.api.authentication.{version}.SelfSubjectReview"))
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
