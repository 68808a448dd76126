"""TokenReview and SelfSubjectReview: the API reports the user of a token, or of the caller.

Rules kept here (docs/protocol/authentication-reviews.md):
1. TokenReview runs the chain of a request with the token as the only credential and without a fallback: an unknown token is
   unauthenticated, never anonymous.
2. The kind has validated the review, so there is a token. It is read as from a Bearer header: blanks around it are trimmed, and
   text after a blank inside it is ignored. A token of blanks only is unauthenticated without an error. `spec.audiences` defaults
   to the server's audiences, and those that the token is valid for are returned. A token that names none is valid for the
   server's audiences only.
3. A rejected token is still answered with 201. `authenticated` is left out, as in kube-apiserver, and the error text gives no
   reason; the operator's record does.
4. The answer repeats the spec with the token, because some clients (Python) require the field.
5. SelfSubjectReview reports the caller's own user.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.api.reviews import user_info
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.chain import Found, Outcome, Pending, RejectedBy, judge
from mooring.authn.credentials import SECRET, Authenticator, Credentials, bearer_in
from mooring.authn.reasons import WRONG_AUDIENCE
from mooring.clock import rfc3339
from mooring.identity import UserInfo

INVALID_TOKEN = "invalid bearer token"  # noqa: S105 - a message, not a password
API_VERSION = "authentication.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Reviewed:
    """Answer of a review, with the outcome for the operator's record."""

    review: Obj
    outcome: Outcome


def review_token(
    review: Obj, authenticators: Iterable[Authenticator], views: Views, now: datetime, audiences: Sequence[str]
) -> Generator[Pending, Found, Reviewed]:
    """Return the answered TokenReview. `audiences`: the server's own. Yields deferred verdicts, as the chain does."""
    spec = review["spec"]
    own = tuple(audiences)
    requested = tuple(spec.get("audiences") or own)
    bearing = [one for one in authenticators if one.judges == SECRET]
    token = bearer_in(f"Bearer {spec['token']}")
    outcome = Outcome(None)
    if token is not None:
        outcome = yield from judge(Credentials(bearer=token), bearing, views, now, requested)
    if outcome.user is not None:
        outcome = _restrict_audiences(outcome, requested, own)
    return Reviewed({**review, "status": _review_status(outcome)}, outcome)


def review_self(review: Obj, user: UserInfo, now: datetime) -> Obj:
    """Return the answered SelfSubjectReview, in the version of the request."""
    metadata = {**(review.get("metadata") or {}), "creationTimestamp": rfc3339(now)}
    return {
        "kind": "SelfSubjectReview",
        "apiVersion": review.get("apiVersion", API_VERSION),
        "metadata": metadata,
        "status": {"userInfo": user_info(user)},
    }


def _restrict_audiences(outcome: Outcome, requested: tuple[str, ...], own: tuple[str, ...]) -> Outcome:
    """Return the acceptance with the requested audiences that it is valid for, or a rejection without any (rule 2)."""
    named = outcome.audiences or own
    valid_for = tuple(audience for audience in requested if audience in named or not named)
    if valid_for or not requested:
        return replace(outcome, audiences=valid_for)
    detail = f"good for {', '.join(named)}, wants audience {' or '.join(requested)}"
    refusals = (RejectedBy(outcome.authenticator, WRONG_AUDIENCE, detail),)
    return replace(outcome, user=None, refusals=refusals, rejected_reason=WRONG_AUDIENCE)


def _review_status(outcome: Outcome) -> Obj:
    if outcome.user is None:
        return {"user": {}} | ({"error": INVALID_TOKEN} if outcome.refusals else {})
    status: Obj = {"authenticated": True, "user": user_info(outcome.user)}
    if outcome.audiences:
        status["audiences"] = list(outcome.audiences)
    return status
