"""Verdicts of an authenticator (law 3): not mine / mine and bad / accepted, or: mine perhaps, ask outside (law 2).

Rules kept here:
* A rejection carries a reason code for the operator and nothing for the caller.
* `Later` says what has to be found out; nothing here does it. The chain hands it to the pipeline once every authenticator
  was asked, and the verdict that comes back is as good as one of the first stage.
* What has to be found out is either a conversation over HTTP, as a generator that yields `Call` and `Pause` (law 8), or a
  computation too long for the event loop, or a coroutine of somebody else's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mooring.identity import UserInfo

MAX_ANSWER = 1 << 20
"""Bytes read of an answer: a TokenReview, a key set or a discovery document has a few kB."""


@dataclass(frozen=True, slots=True)
class NotMine:
    """This authenticator does not recognise the credential. `reason` is for the operator's record only."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """This authenticator recognises the credential and refuses it. `reason` is a code such as `expired`, `wrong-secret`.

    `elsewhere`: only its form is recognised; nobody here has it, so that somebody outside may be asked about it.
    """

    reason: str
    detail: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The caller is `user`. `audiences`: those the credential is valid for among those asked; empty = not audience-bound.

    `warnings` go to the caller: the credential will not do for much longer. `annotations` go into the audit record.
    """

    user: UserInfo
    audiences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP exchange with `target`, a name the composition root knows: who it is, and under which trust.

    `url` empty means the target's own. At most `max_bytes` are read; `timeout` seconds bound the whole exchange.
    """

    target: str
    method: str = "GET"
    url: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = 10.0
    max_bytes: int = MAX_ANSWER


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever its status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CallFailed:
    """No whole answer; `reason` in words for the operator. `broken`: the connection was there and ended too soon."""

    reason: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Let `seconds` pass, a fifth more or less: those who were turned away together must not come back together."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Later:
    """Mine perhaps. Exactly one of `talk`, `compute` and `foreign` finds out.

    What it finds is a verdict, or None: ask the authenticator again, it knows more now. `key`: those with the same key wait
    for one finding out and share its verdict; None: nobody shares it. It is given `deadline` seconds; whatever goes wrong,
    and time running out, is a rejection. `found` is told the verdict and the time, so that an authenticator may remember.
    `ours`: when it is refused, whatever for, it is ours and bad, as if it had been refused at once.
    """

    talk: Callable[[datetime], Talk] | None = None
    compute: Callable[[], Verdict | None] | None = None
    foreign: Callable[[], Awaitable[Verdict | None]] | None = None
    key: bytes | None = None
    deadline: float = 10.0
    found: Callable[[Verdict, datetime], None] | None = None
    ours: bool = False


Verdict = NotMine | Rejected | Accepted
"""What is known at last."""
FirstVerdict = Verdict | Later
"""What an authenticator says at once."""
Talk = Generator[Call | Pause, Answer | CallFailed | None, Verdict | None]
