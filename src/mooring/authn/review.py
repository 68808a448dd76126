"""TokenReview and SelfSubjectReview: "who is this?", asked over the API.

Rules kept here (docs/protocol/authentication-reviews.md):
1. TokenReview runs the same chain as a request, with the token as the only credential and nobody as fallback: a token
   nobody knows is unauthenticated, never anonymous.
2. The kind has validated the review: there is a token. It is read as from a Bearer header: blanks around it are trimmed, and what
   follows a blank inside it is ignored. A token of blanks only offers nothing: it is unauthenticated without an error.
   `spec.audiences` defaults to the server's audiences; those the token
   is valid for come back. A token that names none is one for this server: it is valid for the server's audiences and
   for nobody else's.
3. A refused token is still 201: `authenticated` is left out, as kube-apiserver leaves it out, and the error text does not say
   why (the operator's record does).
4. The answer repeats the spec, with the token, to the one who sent it: clients with required fields (Python) insist on it.
5. SelfSubjectReview tells the caller who it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.api.authentication.userinfo import user_info
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.authenticator import SECRET, Authenticator
from mooring.authn.chain import Found, Outcome, Pending, Refusal, judge
from mooring.authn.credentials import Credentials, bearer_in
from mooring.authn.reasons import WRONG_AUDIENCE
from mooring.clock import rfc3339
from mooring.identity import UserInfo

INVALID_TOKEN = "invalid bearer token"  # noqa: S105 - a message, not a password
API_VERSION = "authentication.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The answer, and the outcome behind it for the operator's record."""

    review: Obj
    outcome: Outcome


def review_token(
    review: Obj, authenticators: Iterable[Authenticator], views: Views, now: datetime, audiences: Sequence[str]
) -> Generator[Pending, Found, Reviewed]:
    """The answered TokenReview. `audiences`: the server's own. Yields what has to be found out, as the chain does."""
    spec = review["spec"]
    ours = tuple(audiences)
    asked = tuple(spec.get("audiences") or ours)
    bearing = [one for one in authenticators if one.judges == SECRET]
    token = bearer_in(f"Bearer {spec['token']}")
    outcome = Outcome(None)
    if token is not None:
        outcome = yield from judge(Credentials(bearer=token), bearing, views, now, asked)
    if outcome.user is not None:
        outcome = _for_somebody(outcome, asked, ours)
    return Reviewed({**review, "status": _status(outcome)}, outcome)


def review_self(review: Obj, user: UserInfo, now: datetime) -> Obj:
    """The answered SelfSubjectReview, in the version it was asked in."""
    metadata = {**(review.get("metadata") or {}), "creationTimestamp": rfc3339(now)}
    return {
        "kind": "SelfSubjectReview",
        "apiVersion": review.get("apiVersion", API_VERSION),
        "metadata": metadata,
        "status": {"userInfo": user_info(user)},
    }


def _for_somebody(outcome: Outcome, asked: tuple[str, ...], ours: tuple[str, ...]) -> Outcome:
    """The acceptance for those of the audiences asked that it is for; none, and it is a refusal (rule 2)."""
    named = outcome.audiences or ours
    valid_for = tuple(audience for audience in asked if audience in named or not named)
    if valid_for or not asked:
        return replace(outcome, audiences=valid_for)
    told = f"good for {', '.join(named)}, wants audience {' or '.join(asked)}"
    refusals = (Refusal(outcome.authenticator, WRONG_AUDIENCE, told),)
    return replace(outcome, user=None, refusals=refusals, why=WRONG_AUDIENCE)


def _status(outcome: Outcome) -> Obj:
    if outcome.user is None:
        return {"user": {}} | ({"error": INVALID_TOKEN} if outcome.refusals else {})
    status: Obj = {"authenticated": True, "user": user_info(outcome.user)}
    if outcome.audiences:
        status["audiences"] = list(outcome.audiences)
    return status
