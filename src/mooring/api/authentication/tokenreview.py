"""TokenReview: strategy; it returns the identity of a bearer token and is never stored.

Rules kept here (docs/protocol/authentication.md#webhook, docs/protocol/authentication-reviews.md):
* A token is required, otherwise 400; a status of the client is dropped.
* v1beta1 is served although kube-apiserver 1.22 dropped it: kube-apiserver sends it to a webhook by default, and this server can be
  such a webhook. Both versions differ only in their name.
"""

from __future__ import annotations

from mooring.api.kind import Change
from mooring.api.review import drop_status, review_kind
from mooring.apimachinery.schema import Obj, message
from mooring.errors import BadRequestError

GROUP = "authentication.k8s.io"


def _prepare_for_create(obj: Obj, change: Change) -> None:
    """Drop the status. Raises BadRequestError without a token."""
    drop_status(obj, change)
    if not (obj.get("spec") or {}).get("token"):
        raise BadRequestError("token is required for TokenReview in authentication")


KINDS = tuple(
    review_kind(
        GROUP, version, message(f"io.k8s.api.authentication.{version}.TokenReview"), prepare=_prepare_for_create
    )
    for version in ("v1", "v1beta1")
)
