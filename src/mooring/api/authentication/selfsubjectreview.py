"""SelfSubjectReview: schema and strategy; it returns the identity of the caller (`kubectl auth whoami`) and is never stored.

Rules kept here (docs/protocol/authentication-reviews.md): the server sets the status; that of a client is dropped.
"""

from __future__ import annotations

from mooring.api.authentication.tokenreview import GROUP
from mooring.api.authentication.userinfo import user_info_schema
from mooring.api.kind import Change, Kind
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Field, Message, Obj


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


def _prepare_for_create(obj: Obj, change: Change) -> None:
    obj.pop("status", None)


def self_subject_review(version: str) -> Kind:
    """Build the kind for one version of its API."""
    return Kind(
        resource=Resource(
            group=GROUP,
            version=version,
            kind="SelfSubjectReview",
            plural="selfsubjectreviews",
            singular="selfsubjectreview",
            namespaced=False,
            schema=_schema(version),
            verbs=("create",),
        ),
        storage="",
        name_errors=lambda name: [],
        prepare_for_create=_prepare_for_create,
    )


KINDS = tuple(self_subject_review(version) for version in ("v1", "v1beta1"))
"""v1beta1 is served because TokenReview is served in it: clients of that version expect both kinds."""
