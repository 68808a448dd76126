"""SelfSubjectReview: schema and strategy; it returns the identity of the caller (`kubectl auth whoami`) and is never stored.

Rules kept here (docs/protocol/authentication-reviews.md): the server sets the status; that of a client is dropped.
"""

from __future__ import annotations

from mooring.api.authentication.tokenreview import GROUP
from mooring.api.authentication.userinfo import user_info_schema
from mooring.api.review import review_kind
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, Message


def _schema(version: str) -> Message:
    api = f"io.k8s.api.authentication.{version}."
    status = Message(
        api + "SelfSubjectReviewStatus",
        (Field("userInfo", 1, user_info_schema(version), "Who the caller is."),),
        "Who the caller is.",
    )
    return Message(
        api + "SelfSubjectReview",
        (
            Field("metadata", 1, OBJECT_META, "Standard object metadata."),
            Field("status", 2, status, "Who the caller is; filled in by the server."),
        ),
        "Asks who the caller is.",
    )


KINDS = tuple(review_kind(GROUP, version, _schema(version)) for version in ("v1", "v1beta1"))
"""v1beta1 is served because TokenReview is served in it: clients of that version expect both kinds."""
