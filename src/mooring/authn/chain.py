"""The chain of authenticators: from what was offered to one outcome.

Rules kept here (docs/protocol/authentication.md#chain):
1. Authenticators are asked in order, in two stages. First each says what it knows at once; the first that accepts wins.
   Refusals are collected and the others still asked: a good bearer token rescues an unverifiable certificate.
2. Then what must be found out is found out, in the same order (law 2), unless the token or the password was refused by
   whoever recognised it, at once or after finding out: what is ours and bad is not shown to strangers. What only looks like
   ours is, and so is what somebody outside refused, who might merely have been down.
3. A bearer token, a password, or a credential of another scheme that nobody claims is refused as `unknown-token`,
   `unknown-password` or `unknown-credential`, or with the reason of the last authenticator that said why it is not its own.
4. Any refusal without an acceptance is 401. Fallbacks (anonymous) are asked only when there was none.
5. A credential bound to audiences must be valid for one of those asked.
6. `system:authenticated` is added to who was accepted, except to `system:anonymous` and to users who carry
   `system:authenticated` or `system:unauthenticated` already.
7. A token among WebSocket subprotocols is judged after what `Authorization` offered has been refused; one that is no token is a
   refusal of its own. Neither matters to who is accepted before.
8. The caller learns nothing of the reasons; the operator gets all of them, step by step, headed by one: the last refusal, unless
   that is an unknown CA and another authenticator knew the CA of the same certificate; then what that one says.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.api.view import Views
from mooring.authn.authenticator import CONNECTION, NOTHING, SECRET, Authenticator
from mooring.authn.credentials import Credentials
from mooring.authn.reasons import (
    NOT_ASKED,
    NOTHING_OFFERED,
    UNDECIDED,
    UNKNOWN_CA,
    UNKNOWN_CREDENTIAL,
    UNKNOWN_PASSWORD,
    UNKNOWN_TOKEN,
    WRONG_AUDIENCE,
)
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.websocketbearer import NAME as WEBSOCKET
from mooring.identity import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo

BEARER = "bearer"
BASIC = "basic"
MAX_DEFERRALS = 2
"""How often one authenticator may ask about one credential: for the keys of an issuer, then for groups that are elsewhere."""


_UNASKED = NotMine(NOT_ASKED)
"""Verdict of a deferred authenticator when the credential was accepted or rejected without it."""
_UNINFORMED = frozenset({"", NOT_ASKED, UNKNOWN_CA})
"""Reasons of authenticators that know nothing about the credential."""

Said = tuple[str, Verdict]


@dataclass(frozen=True, slots=True)
class Step:
    """What one authenticator said in the end."""

    authenticator: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Refusal:
    """One authenticator's reason to refuse, for the operator's record only."""

    authenticator: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Either `user` as told by `authenticator`, or nobody (401). `refusals` may accompany an acceptance (rule 1).

    `why`: the reason that heads the record of a refusal.
    `said`: what each who was asked said, by name and in order; `steps` are the same for the operator to read, made when somebody
    wants them, because every request has an outcome. `warnings` and `annotations` are those of the acceptance.
    """

    user: UserInfo | None
    authenticator: str = ""
    audiences: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    said: tuple[Said, ...] = ()
    warnings: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(*one) for one in self.said)


@dataclass(frozen=True, slots=True)
class Pending:
    """What `authenticator` wants found out."""

    authenticator: str
    deferred: Deferred


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a `Pending`, and the time at which it was found."""

    verdict: Verdict | None
    now: datetime


Chain = Generator[Pending, Found, Outcome]


def with_authenticated(user: UserInfo) -> UserInfo:
    """Rule 6."""
    if user.username == ANONYMOUS or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return UserInfo(user.username, user.uid, (*user.groups, AUTHENTICATED), user.extra)


def judge(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Chain:
    """Who offered `credentials`, at `now`. `audiences`: those this server answers to; empty means no audience is checked.

    Yields what has to be found out, and ends in the outcome; most requests end it before anything is yielded.
    """
    chain = _judged(credentials, authenticators, views, now, audiences)
    return chain if credentials.second is None else _both(chain, credentials, authenticators, views, now, audiences)


def _both(
    chain: Chain,
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Chain:
    """`chain`, and then another about the second bearer."""
    outcome = yield from chain
    if outcome.user is not None:
        return outcome
    rest = replace(credentials, peer=(), bearer=credentials.second, basic=None, second=None, other=None, refused="")
    then = yield from _judged(rest, authenticators, views, now, audiences)
    return replace(then, refusals=(*outcome.refusals, *then.refusals), said=(*outcome.said, *then.said))


def _judged(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Chain:
    said: list[Said] = []
    waiting: list[tuple[int, Authenticator, Deferred]] = []
    shown_to_strangers = True
    for authenticator in authenticators:
        if authenticator.judges == NOTHING:
            continue
        first = authenticator.authenticate(credentials, views, now, audiences)
        if isinstance(first, NotMine):  # first, because nearly everybody says so
            said.append((authenticator.name, first))
            continue
        if isinstance(first, Deferred):
            waiting.append((len(said), authenticator, first))
            said.append((authenticator.name, _UNASKED))
            continue
        verdict = _for_us(first, audiences)
        said.append((authenticator.name, verdict))
        if isinstance(verdict, Accepted):
            return _accepted(authenticator, verdict, said)
        if isinstance(verdict, Rejected) and authenticator.judges == SECRET and not verdict.form_only:
            shown_to_strangers = False
    for place, authenticator, later in waiting if shown_to_strangers else ():
        then: FirstVerdict = later
        for _ in range(MAX_DEFERRALS):
            if isinstance(then, Deferred):
                later = then
                found = yield Pending(authenticator.name, later)
                then = found.verdict or authenticator.authenticate(credentials, views, found.now, audiences)
        verdict = Rejected(UNDECIDED) if isinstance(then, Deferred) else _for_us(then, audiences)
        said[place] = (authenticator.name, verdict)
        if isinstance(verdict, Accepted):
            return _accepted(authenticator, verdict, said)
        if isinstance(verdict, Rejected) and later.recognised:
            break
    return _nobody(credentials, authenticators, said, views, now, audiences)


def authenticate(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Outcome:
    """The outcome when nothing can be found out: whoever must ask outside refuses as `undecided`."""
    chain = judge(credentials, authenticators, views, now, audiences)
    try:
        next(chain)
        while True:
            chain.send(Found(Rejected(UNDECIDED), now))
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _for_us(verdict: Verdict, audiences: Sequence[str]) -> Verdict:
    if isinstance(verdict, Accepted) and not _acceptable(verdict.audiences, audiences):
        return Rejected(WRONG_AUDIENCE, f"good for {', '.join(verdict.audiences)}")
    return verdict


def _accepted(authenticator: Authenticator, verdict: Accepted, said: list[Said]) -> Outcome:
    """`said` holds the acceptance already."""
    return Outcome(
        with_authenticated(verdict.user),
        authenticator.name,
        verdict.audiences,
        _refusals(said) if len(said) > 1 else (),
        tuple(said),
        verdict.warnings,
        verdict.annotations,
    )


def _nobody(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    said: list[Said],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Outcome:
    judges = {one.name: one.judges for one in authenticators}
    why = ""
    if credentials.refused:
        said.append((WEBSOCKET, Rejected(credentials.refused)))
    refusals = _refusals(said)
    if not refusals and credentials.bearer is not None:
        refusals = (Refusal(BEARER, _last_reason(said, judges, SECRET) or UNKNOWN_TOKEN),)
    if not refusals and credentials.basic is not None:
        refusals = (Refusal(BASIC, _last_reason(said, judges, SECRET) or UNKNOWN_PASSWORD),)
    if not refusals and credentials.other is not None:
        reason = _last_reason(said, judges, SECRET) or UNKNOWN_CREDENTIAL
        refusals = (Refusal(credentials.other.scheme, reason),)
    if refusals:
        why = refusals[-1].reason
        if why == UNKNOWN_CA:
            why = _last_reason(said, judges, CONNECTION) or why
        return Outcome(None, refusals=refusals, said=tuple(said), why=why)
    for authenticator in authenticators:
        if authenticator.judges != NOTHING:
            continue
        verdict = authenticator.authenticate(credentials, views, now, audiences)
        if isinstance(verdict, Accepted):
            said.append((authenticator.name, verdict))
            return _accepted(authenticator, verdict, said)
        if isinstance(verdict, NotMine):
            said.append((authenticator.name, verdict))
            why = verdict.reason
    return Outcome(None, said=tuple(said), why=why or NOTHING_OFFERED)


def _last_reason(said: Iterable[Said], judges: Mapping[str, str], kind: str) -> str:
    """Return the last reason that an authenticator of this kind gave from knowledge of the credential, or ""."""
    reasons = [
        verdict.reason
        for name, verdict in said
        if judges.get(name) == kind and not isinstance(verdict, Accepted) and verdict.reason not in _UNINFORMED
    ]
    return reasons[-1] if reasons else ""


def _refusals(said: Iterable[Said]) -> tuple[Refusal, ...]:
    return tuple(
        [Refusal(name, verdict.reason, verdict.detail) for name, verdict in said if isinstance(verdict, Rejected)]
    )


def _acceptable(valid_for: Sequence[str], asked: Sequence[str]) -> bool:
    return not valid_for or not asked or any(audience in asked for audience in valid_for)
