"""The chain of authenticators: from what was offered to one outcome.

Rules kept here (reference/kubernetes.md 0 and 5.1):
1. Authenticators are asked in order; the first that accepts wins. Refusals are collected and the others still asked: a
   good bearer token rescues an unverifiable certificate.
2. A bearer token that nobody claims is refused as `unknown-token`.
3. Any refusal without an acceptance is 401. Fallbacks (anonymous) are asked only when there was none.
4. A credential bound to audiences must be valid for one of those asked.
5. `system:authenticated` is added to who was accepted, except to `system:anonymous` and to users who carry
   `system:authenticated` or `system:unauthenticated` already.
6. The caller learns nothing of the reasons; the operator gets all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.authn.authenticator import Authenticator
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, Rejected
from mooring.identity import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo
from mooring.kinds.view import Views

BEARER = "bearer"
UNKNOWN_TOKEN = "unknown-token"  # noqa: S105 - a reason code, not a password
WRONG_AUDIENCE = "wrong-audience"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One authenticator's reason to refuse, for the operator's record only."""

    authenticator: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Either `user` as told by `authenticator`, or nobody (401). `refusals` may accompany an acceptance (rule 1)."""

    user: UserInfo | None
    authenticator: str = ""
    audiences: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def with_authenticated(user: UserInfo) -> UserInfo:
    """Rule 5."""
    if user.username == ANONYMOUS or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return user.with_groups(AUTHENTICATED)


def authenticate(
    credentials: Credentials,
    authenticators: Iterable[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Outcome:
    """Who offered `credentials`, at `now`. `audiences`: those this server answers to; empty means no audience is checked."""
    refusals: list[Refusal] = []
    fallbacks: list[Authenticator] = []
    for authenticator in authenticators:
        if authenticator.fallback:
            fallbacks.append(authenticator)
            continue
        verdict = authenticator.authenticate(credentials, views, now, audiences)
        if isinstance(verdict, Accepted):
            if _acceptable(verdict.audiences, audiences):
                user = with_authenticated(verdict.user)
                return Outcome(user, authenticator.name, verdict.audiences, tuple(refusals))
            refusals.append(Refusal(authenticator.name, WRONG_AUDIENCE))
        elif isinstance(verdict, Rejected):
            refusals.append(Refusal(authenticator.name, verdict.reason, verdict.detail))
    if credentials.bearer is not None and not refusals:
        refusals.append(Refusal(BEARER, UNKNOWN_TOKEN))
    if not refusals:
        for authenticator in fallbacks:
            verdict = authenticator.authenticate(credentials, views, now, audiences)
            if isinstance(verdict, Accepted):
                return Outcome(with_authenticated(verdict.user), authenticator.name)
    return Outcome(None, refusals=tuple(refusals))


def _acceptable(valid_for: Sequence[str], asked: Sequence[str]) -> bool:
    return not valid_for or not asked or any(audience in asked for audience in valid_for)
