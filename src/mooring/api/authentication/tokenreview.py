"""TokenReview: schema and strategy; it returns the identity of a bearer token and is never stored.

Rules kept here (docs/protocol/authentication.md#webhook, docs/protocol/authentication-reviews.md):
* A token is required, otherwise 400; a status of the client is dropped.
* v1beta1 is served although kube-apiserver 1.22 dropped it: kube-apiserver sends it to a webhook by default, and this server can be
  such a webhook. Both versions differ only in their name.
"""

from __future__ import annotations

from mooring.api.authentication.userinfo import user_info_schema
from mooring.api.kind import Change
from mooring.api.review import drop_status, review_kind
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Obj, Scalar
from mooring.errors import BadRequestError

GROUP = "authentication.k8s.io"


def _schema(version: str) -> Message:
    api = f"io.k8s.api.authentication.{version}."
    spec = Message(
        api + "TokenReviewSpec",
        (
            Field("token", 1, Scalar.STRING, "The bearer token."),
            Field(
                "audiences", 2, ListOf(Scalar.STRING), "Who the token should be meant for; the API server when empty."
            ),
        ),
        "The token to look at.",
    )
    status = Message(
        api + "TokenReviewStatus",
        (
            Field("authenticated", 1, Scalar.BOOL, "Whether the token belongs to a known user."),
            Field("user", 2, user_info_schema(version), "Whom it belongs to."),
            Field("error", 3, Scalar.STRING, "Why the token could not be checked."),
            Field("audiences", 4, ListOf(Scalar.STRING), "Those of the wanted audiences that the token is meant for."),
        ),
        "What is known about the token.",
    )
    return Message(
        api + "TokenReview",
        (
            Field("metadata", 1, OBJECT_META, "Standard object metadata."),
            Field("spec", 2, spec, "The token to look at.", required=True),
            Field("status", 3, status, "What is known about the token; filled in by the server."),
        ),
        "Asks who a bearer token belongs to.",
    )


def _prepare_for_create(obj: Obj, change: Change) -> None:
    """Drop the status. Raises BadRequestError without a token."""
    drop_status(obj, change)
    if not (obj.get("spec") or {}).get("token"):
        raise BadRequestError("token is required for TokenReview in authentication")


KINDS = tuple(
    review_kind(GROUP, version, _schema(version), prepare=_prepare_for_create) for version in ("v1", "v1beta1")
)
