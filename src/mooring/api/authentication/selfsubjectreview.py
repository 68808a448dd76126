"""SelfSubjectReview: strategy; it returns the identity of the caller (`kubectl auth whoami`) and is never stored.

Rules kept here (docs/protocol/authentication-reviews.md): the server sets the status; that of a client is dropped.
"""

from __future__ import annotations

from mooring.api.authentication.tokenreview import GROUP
from mooring.api.review import review_kind
from mooring.apimachinery.schema import message

KINDS = tuple(
    review_kind(GROUP, version, message(f"io.k8s.api.authentication.{version}.SelfSubjectReview"))
    for version in ("v1", "v1beta1")
)
"""v1beta1 is served because TokenReview is served in it: clients of that version expect both kinds."""
