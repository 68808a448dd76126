"""The chain of authenticators: from the offered credentials to one outcome.

Rules kept here (docs/protocol/authentication.md#chain):
1. Authenticators are called in order, in two stages. In the first stage each answers at once, and the first acceptance ends the
   chain. Rejections are collected and the other authenticators are still called: a good bearer token rescues an unverifiable
   certificate.
2. In the second stage the deferred verdicts are settled in the same order (law 2). When an authenticator recognised the
   token or the password and rejected it, only those that are `recognised` are settled: two authenticators may accept tokens of one
   issuer, for different audiences. It ends with the rejection of a deferred verdict that is `recognised`: such a
   credential is not sent to other services. A credential whose form alone is recognised is sent on, and so is one that a remote
   service rejected, because that service may have been down.
3. A bearer token, a password, or a credential of another scheme that no authenticator recognises is rejected as `unknown-token`,
   `unknown-password` or `unknown-credential`, or with the reason of the last authenticator that gave one for not recognising it.
4. Any rejection without an acceptance is 401. Fallbacks (anonymous) are called only without a rejection.
5. A credential that is bound to audiences must be valid for one of the requested audiences.
6. The group `system:authenticated` is added to an accepted user, except to `system:anonymous` and to users that carry
   `system:authenticated` or `system:unauthenticated` already. A user of whom any part is not text is rejected: no other part of the
   server compares, prints or stores bytes that are not UTF-8.
7. A token among WebSocket subprotocols is judged after the credential of `Authorization` was rejected. A malformed one is a
   rejection. Neither has an effect once another credential was accepted, or once a rejection ended the chain
   (`mooring.authn.verdict.Rejected.ends_chain`).
8. The caller never learns a reason. The operator gets the verdict of every authenticator, under one reason: that of the last
   rejection. When that is an unknown CA and another authenticator knew the CA of the same certificate, its reason comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from mooring.api.view import Views
from mooring.authn.credentials import CONNECTION, NOTHING, SECRET, Authenticator, Credentials
from mooring.authn.credentials import NAME as WEBSOCKET
from mooring.authn.reasons import (
    NOT_ASKED,
    NOT_UTF8,
    NOTHING_OFFERED,
    UNDECIDED,
    UNKNOWN_CA,
    UNKNOWN_CREDENTIAL,
    UNKNOWN_PASSWORD,
    UNKNOWN_TOKEN,
    WRONG_AUDIENCE,
)
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.identity import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo
from mooring.pki.x509.clientcertificate import ClientCertificate

BEARER = "bearer"
BASIC = "basic"
MAX_DEFERRALS = 2
"""Deferred verdicts of one authenticator about one credential: for the keys of an issuer, then for distributed groups."""


_UNASKED = NotMine(NOT_ASKED)
"""Verdict of a deferred authenticator when the credential was accepted or rejected without it."""
_UNINFORMED = frozenset({"", NOT_ASKED, UNKNOWN_CA})
"""Reasons of authenticators that know nothing about the credential."""

NamedVerdict = tuple[str, Verdict]
"""A verdict with the name of its authenticator."""


@dataclass(frozen=True, slots=True)
class ChainStep:
    """The final verdict of one authenticator."""

    authenticator: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RejectedBy:
    """Reason for which one authenticator rejected the credential, for the operator's record only."""

    authenticator: str
    reason: str
    detail: str = ""
    is_undecided: bool = False
    ends_chain: bool = False
    """Both: see `mooring.authn.verdict.Rejected`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The user that `authenticator` accepted, or None (401). `refusals` may accompany an acceptance (rule 1).

    `rejected_reason`: the reason under which the record of a rejection stands (rule 8).
    `verdicts`: the verdict of each authenticator that was called, in order. `steps` shows them; it is computed on demand, because
    every request has an outcome. `warnings` and `annotations` are those of the acceptance.
    """

    user: UserInfo | None
    authenticator: str = ""
    audiences: tuple[str, ...] = ()
    refusals: tuple[RejectedBy, ...] = ()
    verdicts: tuple[NamedVerdict, ...] = ()
    warnings: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    rejected_reason: str = ""
    certificate: ClientCertificate | None = field(default=None, repr=False, compare=False)
    """Client certificate that decided, if one did."""
    basis: bytes = field(default=b"", repr=False, compare=False)
    """Facts from which the acceptance follows (`mooring.authn.verdict.Accepted`)."""

    @property
    def is_undecided(self) -> bool:
        """True when a credential was refused because an object that decides about it cannot be read now."""
        return self.user is None and any(refusal.is_undecided for refusal in self.refusals)

    @property
    def steps(self) -> tuple[ChainStep, ...]:
        return tuple(ChainStep(*one) for one in self.verdicts)


@dataclass(frozen=True, slots=True)
class Pending:
    """A deferred verdict of `authenticator`, to be settled by the second stage."""

    authenticator: str
    deferred: Deferred


@dataclass(frozen=True, slots=True)
class Found:
    """The verdict that settles a `Pending`, and its time. None: the authenticator judges the credential again."""

    verdict: Verdict | None
    now: datetime


Chain = Generator[Pending, Found, Outcome]


def with_authenticated(user: UserInfo) -> UserInfo:
    """Add the group `system:authenticated` (rule 6)."""
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
    """Judge `credentials` at `now` and return the outcome. Yields deferred verdicts; most requests have none.

    `audiences` are the requested audiences; without any, audiences are not checked.
    """
    chain = _judge_first(credentials, authenticators, views, now, audiences)
    return (
        chain if credentials.second is None else _judge_both(chain, credentials, authenticators, views, now, audiences)
    )


def _judge_both(
    chain: Chain,
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Chain:
    """Run `chain`, and after a rejection another chain with the second bearer token (rule 7)."""
    outcome = yield from chain
    # The second token has no effect once the first credential was accepted, or its rejection is final (rule 7).
    if outcome.user is not None or any(refusal.ends_chain for refusal in outcome.refusals):
        return outcome
    rest = replace(credentials, peer=(), bearer=credentials.second, basic=None, second=None, other=None, refused="")
    then = yield from _judge_first(rest, authenticators, views, now, audiences)
    return replace(then, refusals=(*outcome.refusals, *then.refusals), verdicts=(*outcome.verdicts, *then.verdicts))


def _judge_first(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Chain:
    verdicts: list[NamedVerdict] = []
    waiting: list[tuple[int, Authenticator, Deferred]] = []
    remote_allowed = True
    for authenticator in authenticators:
        # Fallbacks run last: a request with a bad credential must not continue as anonymous (rule 4).
        if authenticator.judges == NOTHING:
            continue
        first = authenticator.authenticate(credentials, views, now, audiences)
        if isinstance(first, NotMine):  # the most frequent verdict
            verdicts.append((authenticator.name, first))
            continue
        # Not settled yet: no service receives a credential that an authenticator accepts without waiting (rule 2).
        if isinstance(first, Deferred):
            waiting.append((len(verdicts), authenticator, first))
            verdicts.append((authenticator.name, _UNASKED))
            continue
        # Checked here for all authenticators, so that none of them can leave it out.
        verdict = _check_acceptance(first, audiences)
        verdicts.append((authenticator.name, verdict))
        if isinstance(verdict, Accepted):
            return _accepted(authenticator, verdict, verdicts)
        # Other rejections let the chain continue: a good token rescues an unverifiable certificate (rule 1).
        if isinstance(verdict, Rejected) and verdict.ends_chain:
            return _reject(credentials, authenticators, verdicts, views, now, audiences)
        if isinstance(verdict, Rejected) and authenticator.judges == SECRET and not verdict.form_only:
            # A token that a local authenticator recognised and rejected is never sent to another service (rule 2).
            remote_allowed = False
    for place, authenticator, deferred in waiting:
        # The issuer of this credential gives its keys, and does not receive the credential. Another authenticator may have rejected
        # it because it accepts tokens of the same issuer for another audience.
        if not remote_allowed and not deferred.recognised:
            continue
        then: FirstVerdict = deferred
        for _ in range(MAX_DEFERRALS):
            if isinstance(then, Deferred):
                deferred = then
                found = yield Pending(authenticator.name, deferred)
                then = found.verdict or authenticator.authenticate(credentials, views, found.now, audiences)
        # An authenticator that still defers must not keep the request waiting: the number of deferrals is bounded.
        verdict = Rejected(UNDECIDED) if isinstance(then, Deferred) else _check_acceptance(then, audiences)
        verdicts[place] = (authenticator.name, verdict)
        if isinstance(verdict, Accepted):
            return _accepted(authenticator, verdict, verdicts)
        # The issuer of this credential has rejected it, so it is not sent to other services (rule 2).
        if isinstance(verdict, Rejected) and deferred.recognised:
            break
    return _reject(credentials, authenticators, verdicts, views, now, audiences)


def judge_at_once(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
    accepter: str,
) -> Outcome | Pending:
    """Return the outcome of the chain without waiting, or the deferred verdict of the authenticator that accepted before.

    The deferred verdicts of others count as "not mine": a service that knew nothing of the credential keeps it from no end.
    """
    chain = judge(credentials, authenticators, views, now, audiences)
    try:
        pending = next(chain)
        while pending.authenticator != accepter:
            pending = chain.send(Found(_UNASKED, now))
        return pending
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def authenticate(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Outcome:
    """Return the outcome without a second stage: a deferred verdict is rejected as `undecided`."""
    chain = judge(credentials, authenticators, views, now, audiences)
    try:
        next(chain)
        while True:
            chain.send(Found(Rejected(UNDECIDED), now))
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _check_acceptance(verdict: Verdict, audiences: Sequence[str]) -> Verdict:
    """Return a rejection instead of an acceptance that breaks rule 5 or 6."""
    if isinstance(verdict, Accepted):
        if not _acceptable(verdict.audiences, audiences):
            return Rejected(WRONG_AUDIENCE, f"good for {', '.join(verdict.audiences)}")
        if unreadable := verdict.user.unreadable:
            return Rejected(NOT_UTF8, f"{unreadable} is not UTF-8")
    return verdict


def _accepted(authenticator: Authenticator, verdict: Accepted, verdicts: list[NamedVerdict]) -> Outcome:
    """Return the outcome of an acceptance, which is the last of `verdicts`."""
    return Outcome(
        with_authenticated(verdict.user),
        authenticator.name,
        verdict.audiences,
        _refusals(verdicts) if len(verdicts) > 1 else (),
        tuple(verdicts),
        verdict.warnings,
        verdict.annotations,
        certificate=verdict.certificate,
        basis=verdict.basis,
    )


def _reject(
    credentials: Credentials,
    authenticators: Collection[Authenticator],
    verdicts: list[NamedVerdict],
    views: Views,
    now: datetime,
    audiences: Sequence[str],
) -> Outcome:
    judges = {one.name: one.judges for one in authenticators}
    reason = ""
    if credentials.refused:
        verdicts.append((WEBSOCKET, Rejected(credentials.refused)))
    refusals = _refusals(verdicts)
    # No authenticator recognised the credential. Without a rejection the request would be anonymous (rule 3).
    if not refusals and credentials.bearer is not None:
        refusals = (RejectedBy(BEARER, _last_reason(verdicts, judges, SECRET) or UNKNOWN_TOKEN),)
    if not refusals and credentials.basic is not None:
        refusals = (RejectedBy(BASIC, _last_reason(verdicts, judges, SECRET) or UNKNOWN_PASSWORD),)
    if not refusals and credentials.other is not None:
        reason = _last_reason(verdicts, judges, SECRET) or UNKNOWN_CREDENTIAL
        refusals = (RejectedBy(credentials.other.scheme, reason),)
    if refusals:
        reason = refusals[-1].reason
        # An authenticator that knew the CA of the same certificate explains more than one that did not (rule 8).
        if reason == UNKNOWN_CA:
            reason = _last_reason(verdicts, judges, CONNECTION) or reason
        return Outcome(None, refusals=refusals, verdicts=tuple(verdicts), rejected_reason=reason)
    # Reached only without a rejection: a client with a bad credential does not become anonymous (rule 4).
    for authenticator in authenticators:
        if authenticator.judges != NOTHING:
            continue
        verdict = authenticator.authenticate(credentials, views, now, audiences)
        if isinstance(verdict, Accepted):
            verdicts.append((authenticator.name, verdict))
            return _accepted(authenticator, verdict, verdicts)
        if isinstance(verdict, NotMine):
            verdicts.append((authenticator.name, verdict))
            reason = verdict.reason
    return Outcome(None, verdicts=tuple(verdicts), rejected_reason=reason or NOTHING_OFFERED)


def _last_reason(verdicts: Iterable[NamedVerdict], judges: Mapping[str, str], kind: str) -> str:
    """Return the last reason that an authenticator of this kind gave from knowledge of the credential, or ""."""
    reasons = [
        verdict.reason
        for name, verdict in verdicts
        if judges.get(name) == kind and not isinstance(verdict, Accepted) and verdict.reason not in _UNINFORMED
    ]
    return reasons[-1] if reasons else ""


def _refusals(verdicts: Iterable[NamedVerdict]) -> tuple[RejectedBy, ...]:
    return tuple(
        [
            RejectedBy(name, verdict.reason, verdict.detail, verdict.is_undecided, verdict.ends_chain)
            for name, verdict in verdicts
            if isinstance(verdict, Rejected)
        ]
    )


def _acceptable(valid_for: Sequence[str], requested: Sequence[str]) -> bool:
    return not valid_for or not requested or any(audience in requested for audience in valid_for)
