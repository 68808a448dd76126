"""Why requests were refused, kept for the operator under the Audit-Id that the caller got.

Rules kept here (law 11):
* The caller sees 401 or 403 and an id. Here is what each authenticator said, in order, and what the authorizer said.
* Nothing here is or holds a credential: only what authenticators tell the operator, the path without its query, and names.
* It is bounded, in memory, and the newest stay. Texts and groups of each are cut, for a caller may send names of 60 kB.
* Refusals of a kind that anybody can cause without limit (sources that guess, answered with 429) push out only each other, never
  those of callers who merely did something wrong.
* An Audit-Id that a caller chose keeps its first refusal: nobody overwrites what another one got.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.authn.chain import Step
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.clock import rfc3339
from mooring.identity import UserInfo

MOST = 2048
"""Refusals kept of each kind: some minutes of a busy day, about 2 MB."""
MAX_TEXT = 512
"""Characters of a path, name, reason or detail: with all texts this long the record of one kind takes 20 MB."""
MAX_GROUPS = 16
API_VERSION = "mooring.dev/v1"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request."""

    audit_id: str
    time: datetime
    code: int
    reason: str
    """What the caller was told, in the Status."""
    method: str
    path: str
    source: str
    steps: tuple[Step, ...]
    why: str
    """What decided it: `unknown-token` when nobody claimed the token, or what may not be done, with the authorizer's reason."""
    user: str = ""
    groups: tuple[str, ...] = ()

    def object(self) -> Obj:
        """As JSON for the operator."""
        told: Obj = {
            "kind": "Refusal",
            "apiVersion": API_VERSION,
            "auditID": self.audit_id,
            "time": rfc3339(self.time),
            "code": self.code,
            "reason": self.reason,
            "method": self.method,
            "path": self.path,
            "source": self.source,
            "authenticators": told_steps(self.steps),
        }
        if self.user:
            told["user"] = {"username": self.user, "groups": list(self.groups)}
        if self.why:
            told["why"] = self.why
        return told


def told_steps(steps: Iterable[Step]) -> list[Obj]:
    """What each authenticator said: `name`, `verdict` (`not-mine`, `refused`, `accepted`), and perhaps a reason and a detail."""
    return [_told(step) for step in steps]


def _told(step: Step) -> Obj:
    verdict = step.verdict
    if isinstance(verdict, Accepted):
        return {"name": step.authenticator, "verdict": "accepted", "detail": verdict.user.username}
    told: Obj = {"name": step.authenticator, "verdict": "not-mine" if isinstance(verdict, NotMine) else "refused"}
    if verdict.reason:
        told["reason"] = verdict.reason
    if not isinstance(verdict, NotMine) and verdict.detail:
        told["detail"] = verdict.detail
    return told


def _bounded(refusal: Refusal) -> Refusal:
    return replace(
        refusal,
        method=_cut(refusal.method),
        path=_cut(refusal.path),
        why=_cut(refusal.why),
        user=_cut(refusal.user),
        groups=tuple(map(_cut, refusal.groups[:MAX_GROUPS])),
        steps=tuple(Step(step.authenticator, _bounded_verdict(step.verdict)) for step in refusal.steps),
    )


def _bounded_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict with what is shown of it: its reason, its detail, the name of who was accepted."""
    if isinstance(verdict, Accepted):
        return Accepted(UserInfo(_cut(verdict.user.username)))
    if isinstance(verdict, Rejected) and len(verdict.detail) > MAX_TEXT:
        return replace(verdict, detail=_cut(verdict.detail))
    return verdict


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}...({len(text) - MAX_TEXT} more characters)"


class Refusals:
    """The record of one server process."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[int, OrderedDict[str, Refusal]] = {}

    def keep(self, refusal: Refusal) -> None:
        """Remember it; the oldest of its kind makes room."""
        if self.find(refusal.audit_id) is not None:
            return
        kind = self._kept.setdefault(refusal.code, OrderedDict())
        kind[refusal.audit_id] = _bounded(refusal)
        if len(kind) > self._most:
            kind.popitem(last=False)

    def find(self, audit_id: str) -> Refusal | None:
        """The refusal that was answered under this id."""
        return next((kind[audit_id] for kind in self._kept.values() if audit_id in kind), None)

    def newest(self, most: int) -> list[Refusal]:
        """The newest of all kinds, newest first."""
        every = (refusal for kind in self._kept.values() for refusal in kind.values())
        return sorted(every, key=lambda refusal: refusal.time, reverse=True)[:most]
