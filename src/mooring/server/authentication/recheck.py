"""The credential of one request, judged again whenever the request takes effect.

Rules kept here (docs/adr/0058-credentials-are-judged-at-the-commit.md):
* A request waits for its body, for a seat, for a thread, for the store. A verdict from before such a wait is not used after it:
  the whole chain judges again, at the time of the clock, and must find the same user.
* Authenticators answer from memory while nothing has changed: those of certificates compare the revisions of the views that they
  read (`mooring.authn.x509`), those of tokens compare times and look up objects. So a second judgement costs microseconds,
  and no change can be missed, be it of a view, a file, a CA, a key or the time.
* `check` never waits, and the caller has no `await` between it and the effect. It judges the right of the request as well.
  `confirm` first waits for views as fresh as a linearizable read, for an effect that grants a right.
* Between two steps of the pipeline nothing is judged again while the revision of the views is that of the last verdict and hardly
  any time has passed. A request that did not wait pays for the comparison of an integer. The commit always judges.
* The verdict of a service outside counts for as long as its authenticator remembers it, and at least for SETTLED_FOR, so that no
  service is asked twice for a request that does not wait. After that the service is asked again. A credential that is good for
  one use, as those of Kerberos are, cannot be asked about again: its verdict counts for the request. A running watch asks for
  nothing, and ends WATCHED_FOR after its verdict.
* Only the authenticator that accepted the credential is waited for, and only while its verdict follows from the same as before. A
  service beside it, which would have to be asked, keeps no credential in force that its own authenticator no longer accepts.
* Views that judge have a maximum age (docs/adr/0079-a-view-that-judges-has-a-maximum-age.md). Beyond it the store is asked first.
  While it does not answer, or the views do not catch up, the answer is 503. Anonymous requests are judged by views of any age.
* The impersonator's credential is judged, whomever it acts for. A request that fails is answered 401, and the operator sees why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from mooring.authn.authfailures import AuthFailureLimiter
from mooring.authn.chain import Outcome, Pending, judge, judge_at_once
from mooring.authn.credentials import Authenticator, Credentials
from mooring.authn.reasons import UNDECIDED
from mooring.clock import Clock
from mooring.errors import Details, ServiceUnavailableError, StorageError, UnauthorizedError
from mooring.identity import ANONYMOUS
from mooring.registry.store import Registry
from mooring.registry.write.commit import BEHIND
from mooring.server.authentication.deferred import DeferredAuthentication

MOMENT = timedelta(milliseconds=50)
"""Time for which a verdict counts between two steps of the pipeline, while no view has changed. The commit always judges."""
SETTLED_FOR = timedelta(seconds=10)
"""Time for which a verdict counts that an authenticator does not remember: longer than a request takes that waits for nothing."""
RENEWED_AFTER = timedelta(seconds=5)
"""Age at which such a verdict is renewed before a commit, which is at most `mooring.registry.reader.FRESH_WITHIN` away."""
WATCHED_FOR = timedelta(hours=1)
"""Time for which a verdict counts for a running watch that no service may be asked about: its client asks for the next one."""
UNDECIDED_SECONDS = 5
"""Seconds after which a client tries again whose credential cannot be judged: a KMS plugin is asked every 3 seconds."""
_NOTHING = timedelta(0)
SILENT = "the store does not answer, so this server cannot know whether the credential still counts; try again"
OTHER_USER = "the credential is of another user now"
OTHER_BASIS = "what the credential was accepted by has changed"
TOO_OLD = "the verdict of a service outside is too old"


class CredentialJudge:
    """Judges the credentials of all requests of one server."""

    def __init__(
        self,
        registry: Registry,
        deferred_authentication: DeferredAuthentication,
        auth_failures: AuthFailureLimiter,
        audiences: Sequence[str],
        clock: Clock,
    ) -> None:
        self.registry = registry
        self.audiences = audiences
        self.clock = clock
        self._deferred_authentication = deferred_authentication
        self._auth_failures = auth_failures

    async def judge(
        self, credentials: Credentials, authenticators: Sequence[Authenticator], source: str, now: datetime
    ) -> Outcome:
        """Run the chain of authenticators. Waits only for deferred verdicts. `source`: network of the client."""
        chain = judge(credentials, authenticators, self.registry.views, now, self.audiences)
        if credentials.basic is None:
            return await self._deferred_authentication.settle(chain)
        return await self._deferred_authentication.settle(
            chain, lambda: self._auth_failures.exhausted(source, self.clock.monotonic())
        )

    async def renew_views(self) -> None:
        """Return once the views are young enough to judge by.

        Raises ServiceUnavailableError while they lag behind the store, and when it does not answer.
        """
        if not self.registry.cache.is_late:
            return
        try:
            has_caught_up = await self.registry.reader.fresh()
        except StorageError as error:
            raise ServiceUnavailableError(SILENT, Details(retry_after=1)) from error
        if not has_caught_up:
            raise ServiceUnavailableError(BEHIND, Details(retry_after=1))


class CredentialEndedError(UnauthorizedError):
    """The credential of a request ended before the request took effect. `outcome`: the verdicts that say why."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message=message)
        self.outcome = outcome


class CredentialRecheck:
    """The credential of one request. Implements `mooring.api.kind.Gate`."""

    __slots__ = (
        "_accepted",
        "_authenticators",
        "_credentials",
        "_gate",
        "_network",
        "_revision",
        "_right",
        "_since",
        "_unauthorized",
    )

    def __init__(
        self,
        gate: CredentialJudge,
        credentials: Credentials,
        authenticators: Sequence[Authenticator],
        accepted: Outcome,
        network: str,
        received: datetime,
        revision: int,
        unauthorized: str,
    ) -> None:
        """Take over the credential of the outcome `accepted`. `revision`: that of the views before it was judged.

        `network`: source of the request. `unauthorized`: the message of a refusal.
        """
        # The use of the token was noted when it was judged first. A second judgement must not note another one.
        credentials.dry_run = True
        self._gate = gate
        self._credentials = credentials
        self._authenticators = authenticators
        self._unauthorized = unauthorized
        self._network = network
        self._accepted = accepted
        self._since = received
        self._revision = revision
        self._right: Callable[[], None] | None = None

    def require(self, right: Callable[[], None] | None) -> None:
        """Let `check` judge a right, too, or no right. `right` raises ForbiddenError once the user lacks it."""
        self._right = right

    async def judge_again(self) -> None:
        """Return when the credential counts after a step of the pipeline.

        Raises CredentialEndedError and ServiceUnavailableError.
        """
        await self._renew_views()
        gate, now = self._gate, self._gate.clock.now()
        if self._revision != gate.registry.cache.revision or not _NOTHING <= now - self._since < MOMENT:
            await self._renew(now)

    def check(self) -> None:
        """Return when the credential and the right count now. Raises CredentialEndedError and ForbiddenError."""
        now = self._gate.clock.now()
        found = self._judge_at_once(now)
        if not isinstance(found, Pending):
            self._settle(found, now)
        elif not self._is_settled(found, now):
            raise CredentialEndedError(Outcome(None, rejected_reason=UNDECIDED), self._unauthorized)
        # The right is judged after the credential: a revoked credential is 401, not 403.
        if self._right is not None:
            self._right()

    def check_running(self) -> None:
        """Return when the credential of a running watch counts now. Raises CredentialEndedError.

        A verdict from outside that is not remembered counts on for WATCHED_FOR: only a request asks for it again.
        """
        now = self._gate.clock.now()
        found = self._judge_at_once(now)
        if not isinstance(found, Pending):
            self._settle(found, now)
        elif not _NOTHING <= now - self._since < WATCHED_FOR:
            raise CredentialEndedError(Outcome(None, rejected_reason=TOO_OLD), self._unauthorized)

    async def prepare(self) -> None:
        """Renew views, and a verdict from outside, that may be too old for `check`.

        Raises CredentialEndedError and ServiceUnavailableError.
        """
        await self._renew_views()
        now = self._gate.clock.now()
        if not _NOTHING <= now - self._since < RENEWED_AFTER:
            await self._renew(now)

    async def confirm(self) -> None:
        """Return when credential and right count by views as fresh as a linearizable read. The effect follows with no `await`.

        Raises CredentialEndedError, ForbiddenError, and ServiceUnavailableError while the views lag behind the store.
        """
        await self.prepare()
        if not await self._gate.registry.reader.fresh():
            raise ServiceUnavailableError(BEHIND, Details(retry_after=1))
        # Nothing may be awaited after this line: the effect must follow the verdict.
        self.check()

    async def _renew_views(self) -> None:
        user = self._accepted.user
        if user is None or user.username != ANONYMOUS:
            await self._gate.renew_views()

    async def _renew(self, now: datetime) -> None:
        """Judge the credential. Waits for a service outside only when its verdict is neither remembered nor recent."""
        # Read before the judgement: a change of the views during it then causes another one.
        revision = self._gate.registry.cache.revision
        found = self._judge_at_once(now)
        # A credential for one use cannot be judged twice. A recent verdict is kept, so that no service is asked again
        # for a request that does not wait.
        if isinstance(found, Pending) and (found.deferred.key is None or _NOTHING <= now - self._since < RENEWED_AFTER):
            return
        if isinstance(found, Pending) or found.user is None:
            found = await self._gate.judge(self._credentials, self._authenticators, self._network, now)
            now = self._gate.clock.now()
        self._settle(found, now)
        self._revision = revision

    def _judge_at_once(self, now: datetime) -> Outcome | Pending:
        """Return the outcome, or the deferred verdict of who accepted the credential while it follows from the same as before."""
        gate = self._gate
        accepter = self._accepted.authenticator
        found = judge_at_once(
            self._credentials, self._authenticators, gate.registry.views, now, gate.audiences, accepter
        )
        # The verdict from outside follows from keys or a configuration that changed since, so it is not kept.
        if isinstance(found, Pending) and found.deferred.basis != self._accepted.basis:
            return Outcome(None, rejected_reason=OTHER_BASIS)
        return found

    def _is_settled(self, pending: Pending, now: datetime) -> bool:
        """Return true while the last verdict counts, although its authenticator does not remember it."""
        return pending.deferred.key is None or _NOTHING <= now - self._since < SETTLED_FOR

    def _settle(self, outcome: Outcome, now: datetime) -> None:
        """Take the verdict of `now`. Raises CredentialEndedError unless it is about the same user."""
        if outcome.user is None:
            raise CredentialEndedError(outcome, self._unauthorized)
        before = self._accepted.user
        if outcome.user is not before and outcome.user != before:
            raise CredentialEndedError(replace(outcome, user=None, rejected_reason=OTHER_USER), self._unauthorized)
        self._accepted = outcome
        self._since = now
