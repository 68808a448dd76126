"""Verdicts of an authenticator: not mine, rejected, accepted, or deferred until a remote service has answered (laws 2 and 3).

- A rejection carries a reason code for the operator. The caller never sees it.
- A deferred verdict describes work and performs none. The chain yields it after every authenticator has judged; the second stage
  (`mooring.server.authentication.deferred`) does the work.
- The work is one of three: an HTTP exchange (law 8), a computation too long for the event loop, or a coroutine of a custom
  authenticator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from mooring.identity import UserInfo
from mooring.pki.x509.clientcertificate import ClientCertificate
from mooring.trust.httpexchange import Exchange


@dataclass(frozen=True, slots=True)
class NotMine:
    """This authenticator does not recognise the credential. `reason` is for the operator's record only."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """This authenticator recognises the credential and rejects it. `reason` is a code such as `expired` or `wrong-secret`.

    `form_only`: the authenticator recognises the form of the credential but has no record of it. A remote service may know it.
    `is_undecided`: an object that decides cannot be read now. The credential does not count, and its holder is told to come back:
    503 and not 401, after which a kubelet would end itself.
    `ends_chain`: the credential is good, and what it says about the user cannot be used. No other authenticator judges the request,
    which would otherwise continue as the holder of the credential, and it counts as no guess.
    """

    reason: str
    detail: str = ""
    form_only: bool = False
    is_undecided: bool = False
    ends_chain: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The credential authenticates `user`. `audiences`: the requested audiences that it is valid for; empty: bound to none.

    `warnings` go to the caller, for example about a credential that will stop working. `annotations` go into the audit record.
    `certificate`: the client certificate that decided; that of the proxy for a user whom a proxy names. `basis`: what the verdict
    follows from beside the credential, such as the line of a file; a change of it ends what was accepted.
    """

    user: UserInfo
    audiences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    certificate: ClientCertificate | None = field(default=None, repr=False, compare=False)
    basis: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Deferred:
    """The verdict needs more work. Exactly one of `exchange`, `compute` and `coroutine` describes it.

    The work results in a verdict, or in None: then the same authenticator judges the credential once more. `deadline` is in
    seconds. A failure of the work is a rejection, and so is a missed deadline.

    `key`: deferred verdicts of one authenticator with the same key share one piece of work; None: the work is not shared.
    `on_verdict` receives the verdict and its time, so that an authenticator can remember it.
    `recognised`: a rejection ends the second stage, as a rejection of the first stage does.
    `basis`: that of an acceptance to come. While it is that of an earlier one, nothing says that the credential has ended.
    """

    exchange: Callable[[datetime], Exchange[Verdict | None]] | None = None
    compute: Callable[[], Verdict | None] | None = None
    coroutine: Callable[[], Awaitable[Verdict | None]] | None = None
    key: bytes | None = None
    deadline: float = 10.0
    on_verdict: Callable[[Verdict, datetime], None] | None = None
    recognised: bool = False
    basis: bytes = field(default=b"", repr=False, compare=False)


Verdict = NotMine | Rejected | Accepted
"""A final verdict."""
FirstVerdict = Verdict | Deferred
"""The result of the first stage."""
