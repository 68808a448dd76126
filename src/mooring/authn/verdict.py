"""Three-way verdicts (law 3): not mine / mine and bad / accepted.

Rules kept here: a rejection carries a reason code for the operator and nothing for the caller; codes are a closed list.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.identity import UserInfo


@dataclass(frozen=True, slots=True)
class NotMine:
    """This authenticator does not recognise the credential. `reason` is for the operator's record only."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """This authenticator recognises the credential and refuses it. `reason` is a code such as `expired`, `wrong-secret`."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The caller is `user`. `audiences`: those the credential is valid for among those asked; empty = not audience-bound."""

    user: UserInfo
    audiences: tuple[str, ...] = ()


Verdict = NotMine | Rejected | Accepted
