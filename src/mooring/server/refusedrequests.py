"""Record of refused requests: the reasons of each 401, 403 and 429, kept in memory for the operator by Audit-Id.

Rules kept here (law 11):
* The client sees a status code and an Audit-Id. The record holds the verdict of each authenticator, in order, and the authorizer's
  reason.
* No record contains a credential: only the reasons that authenticators give to operators, the path without its query, and names.
* The number of records is bounded, and the newest stay. Long strings and lists of groups are cut, because a client may send names
  of 60 kB.
* Records are bounded for each status code. A source that guesses credentials causes 429 without limit, and displaces only records
  of other 429s.
* Clients may choose their Audit-Id. The first refusal under an Audit-Id stays and is never overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.authn.chain import ChainStep
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.bounded import Bounded
from mooring.clock import rfc3339
from mooring.identity import UserInfo

MOST = 2048
"""Refusals kept for each status code: some minutes of a busy day, about 2 MB."""
MAX_TEXT = 512
"""Characters of a path, name, reason or detail. With all strings this long the refusals of one status code take 20 MB."""
MAX_GROUPS = 16
"""Groups kept of a user."""
API_VERSION = "mooring.dev/v1"


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """One refused request."""

    audit_id: str
    time: datetime
    code: int
    reason: str
    """`reason` of the Status that the client received."""
    method: str
    path: str
    source: str
    steps: tuple[ChainStep, ...]
    rejected_reason: str
    """Reason of the decision: `unknown-token` when no authenticator recognised the token, or the authorizer's reason."""
    user: str = ""
    groups: tuple[str, ...] = ()

    def to_json(self) -> Obj:
        """Return the object that `/debug/authentication/refusals` shows."""
        shown: Obj = {
            "kind": "Refusal",
            "apiVersion": API_VERSION,
            "auditID": self.audit_id,
            "time": rfc3339(self.time),
            "code": self.code,
            "reason": self.reason,
            "method": self.method,
            "path": self.path,
            "source": self.source,
            "authenticators": steps_to_json(self.steps),
        }
        if self.user:
            shown["user"] = {"username": self.user, "groups": list(self.groups)}
        if self.rejected_reason:
            shown["why"] = self.rejected_reason
        return shown


def steps_to_json(steps: Iterable[ChainStep]) -> list[Obj]:
    """Return the verdicts of authenticators: `name`, `verdict` (`not-mine`, `refused`, `accepted`), and where known reason and
    detail."""
    return [_step_to_json(step) for step in steps]


def _step_to_json(step: ChainStep) -> Obj:
    verdict = step.verdict
    if isinstance(verdict, Accepted):
        return {"name": step.authenticator, "verdict": "accepted", "detail": verdict.user.username}
    shown: Obj = {"name": step.authenticator, "verdict": "not-mine" if isinstance(verdict, NotMine) else "refused"}
    if verdict.reason:
        shown["reason"] = verdict.reason
    if not isinstance(verdict, NotMine) and verdict.detail:
        shown["detail"] = verdict.detail
    return shown


def _bounded(refusal: RefusedRequest) -> RefusedRequest:
    return replace(
        refusal,
        method=_cut(refusal.method),
        path=_cut(refusal.path),
        rejected_reason=_cut(refusal.rejected_reason),
        user=_cut(refusal.user),
        groups=tuple(map(_cut, refusal.groups[:MAX_GROUPS])),
        steps=tuple(ChainStep(step.authenticator, _bounded_verdict(step.verdict)) for step in refusal.steps),
    )


def _bounded_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict with only the parts that are shown: reason, detail, and the name of an accepted user."""
    if isinstance(verdict, Accepted):
        return Accepted(UserInfo(_cut(verdict.user.username)))
    if isinstance(verdict, Rejected) and len(verdict.detail) > MAX_TEXT:
        return replace(verdict, detail=_cut(verdict.detail))
    return verdict


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}...({len(text) - MAX_TEXT} more characters)"


class Refusals:
    """Refused requests of one server process."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[int, Bounded[str, RefusedRequest]] = {}

    def keep(self, refusal: RefusedRequest) -> None:
        """Add a refusal; beyond the limit the oldest with the same status code is dropped."""
        if self.find(refusal.audit_id) is not None:
            return
        same_code = self._kept.setdefault(refusal.code, Bounded(self._most))
        same_code[refusal.audit_id] = _bounded(refusal)

    def find(self, audit_id: str) -> RefusedRequest | None:
        """Return the refusal with this Audit-Id, or None."""
        return next((refusals[audit_id] for refusals in self._kept.values() if audit_id in refusals), None)

    def newest(self, most: int) -> list[RefusedRequest]:
        """Return up to `most` refusals of all status codes, newest first."""
        every = (refusal for refusals in self._kept.values() for refusal in refusals.values())
        return sorted(every, key=lambda refusal: refusal.time, reverse=True)[:most]
