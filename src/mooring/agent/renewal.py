"""Renewal of one certificate of a node, for as long as the agent runs (docs/protocol/kubelet-certificates.md#rotation).

Rules kept here:
* Every request has a new ECDSA P-256 key, which is on disk only together with its certificate.
* A certificate is renewed after 70 % to 90 % of its lifetime, so that machines which joined in one minute come back over a fifth of
  it, and at once when it is missing, expired, or no longer satisfies the template. A template that changes during the wait for a
  certificate ends that wait.
* The lifetime counts from the issue.
* A new certificate that is due within DUE_AT_ONCE all the same is replaced after a pause, which grows as after failed attempts.
* A rollover of the CA asks for an earlier renewal, at a random moment within EARLY_SECONDS.
* A failed attempt is repeated after 2 s, doubled up to 16 s, then every 32 s. After a decision against the request, such as a
  denial, the pauses are doubled up to an hour: each attempt is another request for the person who decides.
* The clock and the files are read every ten seconds, in pauses between attempts as well.
* Where a kubelet keeps the same files, it renews first: this program renews what kubelet has not renewed by then.
* A certificate is placed only after it was found to be the one requested, and after its `check`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice, repeat
from pathlib import Path
from typing import NoReturn, Protocol

from mooring.agent import certificaterequest
from mooring.agent.certificaterequest import CertificateTemplate, RequestEndedError, lasting_reason
from mooring.agent.pairfiles import Pair, PairFiles
from mooring.agent.registration import MembershipEndedError
from mooring.agent.steps import creation_time, describe_skew, described, with_deadline
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, doubling, rfc3339
from mooring.errors import MooringError
from mooring.pki.keys import generate_key
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.profiles import BACKDATE
from mooring.reminders import LastingProblem
from mooring.trust.k3s.refusals import NodeRefusedError, RequestRefusedError

log = logging.getLogger("mooring.agent")

FIRST_SHARE = 0.7
"""Share of the lifetime after which a renewal may begin."""
SPREAD = 0.2
"""Share of the lifetime over which renewals spread."""
DEFERRED_SHARE = 0.92
DEFERRED_SPREAD = 0.05
"""Share and spread where another program may renew the same files: kubelet does until 90 %. Two renewals of one certificate look
like two machines (docs/names-and-membership.md#one-machine-for-each-name)."""
FIRST_PAUSE = 2.0
"""Seconds before the second attempt."""
RETRY_JITTER = 0.1
"""Share by which a pause may be longer."""
RETRY_STEPS = 5
"""Attempts with growing pauses between them."""
LONG_PAUSE = 32.0
"""Seconds before each further attempt."""
DENIED_SECONDS = 3600.0
"""Most seconds before the next request after a decision against one: it is a request for the same person again."""
DECISIONS = (RequestEndedError, NodeRefusedError, RequestRefusedError)
"""Errors of a request that was denied, failed or deleted, directly and by a supervisor."""
WAIT_SECONDS = 900.0
"""kubelet's `certificateWaitTimeout`: seconds for which one request may stay undecided."""


DUE_AT_ONCE = 1.0
"""Seconds within which a new certificate counts as due at once. kubelet waits that long between two renewals."""


def renewal_time(leaf: Certificate, draw: float, obtained: datetime | None = None, *, defers: bool = False) -> datetime:
    """Return the moment at which a certificate is renewed: after 70 % to 90 % of its lifetime; after 92 % to 97 % if it `defers`.

    `obtained` is the time at which this process obtained it. Other certificates count from the time at which a signer issued them
    that backdates as Kubernetes does.
    """
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if obtained is None:
        obtained = begin + BACKDATE if begin + BACKDATE < end else begin
    # Signers set the begin into the past: Kubernetes' and Mooring's by five minutes, k3s's to the begin of its CA.
    # Counted from there, a short certificate is due before it arrives.
    first, spread = (DEFERRED_SHARE, DEFERRED_SPREAD) if defers else (FIRST_SHARE, SPREAD)
    return obtained + (end - obtained) * (first + draw * spread)


def retry_pauses(draw: Callable[[], float]) -> Iterator[float]:
    """Return the seconds before each further attempt, without end: 2, 4, 8 and 16 with their jitter, then always 32."""
    growing = islice(doubling(FIRST_PAUSE, LONG_PAUSE), RETRY_STEPS - 1)
    return chain((pause * (1 + RETRY_JITTER * draw()) for pause in growing), repeat(LONG_PAUSE))


def decision_pauses(draw: Callable[[], float]) -> Iterator[float]:
    """Return the seconds before each further request after decisions against them, without end: doubled from 2 up to an hour."""
    return (min(pause * (1 + RETRY_JITTER * draw()), DENIED_SECONDS) for pause in doubling(FIRST_PAUSE, DENIED_SECONDS))


Version = tuple[int, int]
"""A version of the files (`PairFiles.version`)."""
LOOK_SECONDS = 10.0
"""Seconds between two looks at the clock and at the files. The certificate that another program has placed is used from then on."""


EARLY_SECONDS = 600.0
"""Seconds within which a certificate is renewed early: 10 000 machines send 17 requests a second."""
EARLY_SHARE = 0.01
"""Share of the lifetime that bounds this time for short-lived certificates."""


class ClientCertificateExpiredError(MooringError):
    """The client certificate has expired, so that the agent can no longer ask for another as the node."""


class WantChangedError(MooringError):
    """Another certificate is wanted than the one that is waited for."""


class RenewedFiles(Protocol):
    """Files of one certificate."""

    def read_pair(self) -> Pair | None: ...

    def version(self) -> Version | None: ...


def random_draw() -> float:
    """Return a random number in [0, 1)."""
    return secrets.randbelow(1 << 53) / (1 << 53)


async def accept(pair: Pair) -> None:
    """Accept every certificate that answers its request."""


@dataclass(slots=True)
class _Timing:
    """When one certificate is renewed."""

    version: Version | None
    draw: float
    """Number that decides between 70 % and 90 % of the lifetime."""
    obtained: datetime | None = None
    """Time at which this process obtained the certificate; None when it found the certificate on disk."""
    early: datetime | None = None
    """Moment of an earlier renewal, once a rollover has asked for one."""


class Renewal(ABC):
    """Keeps one certificate fresh. How it is requested and placed is for the way of joining. `name` is its name in messages."""

    def __init__(
        self,
        name: str,
        files: RenewedFiles,
        clock: Clock,
        on_renewed: Callable[[], Awaitable[None]],
        draw: Callable[[], float] = random_draw,
        defers: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_renewed` is called after each replacement. `defers`: another program may renew the same files."""
        self._name = name
        self._files = files
        self._clock = clock
        self._on_renewed = on_renewed
        self._draw = draw
        self._defers = defers
        self._timing = _Timing(None, 0.0)
        self._woken = asyncio.Event()
        self._problem = LastingProblem(log.warning)
        """Each refusal has an Audit-Id of its own, so that a reason is noted without it."""

    @property
    def is_wanted(self) -> bool:
        """False while no certificate is wanted."""
        return True

    @abstractmethod
    def satisfies(self, pair: Pair) -> bool:
        """Return True when the certificate is what is wanted now."""

    @abstractmethod
    def check_usable(self) -> None:
        """Raise ClientCertificateExpiredError when requests can no longer be authenticated."""

    @abstractmethod
    async def obtain(self) -> Pair:
        """Return another certificate, which the server accepts. Raises WantChangedError, MembershipEndedError and others."""

    @abstractmethod
    def place(self, pair: Pair) -> Path:
        """Put a certificate in place with its key. Return its path. Raises ConfigError."""

    def look(self) -> None:
        """Look now whether the certificate is due: it may have become so."""
        self._woken.set()

    def renew_early(self) -> None:
        """Renew the present certificate soon. Further calls for the same certificate change nothing."""
        version, pair = self._files.version(), self._files.read_pair()
        if version is None or pair is None:
            return
        timing = self._timing_of(version)
        if timing.early is not None:
            return
        lifetime = pair.leaf.not_valid_after_utc - pair.leaf.not_valid_before_utc
        # At random, so that the machines of a cluster do not all send a request at the same moment.
        seconds = self._draw() * min(EARLY_SECONDS, lifetime.total_seconds() * EARLY_SHARE)
        log.info("the CA of the cluster is being replaced: the %s certificate is renewed in %d s", self._name, seconds)
        timing.early = self._clock.now() + timedelta(seconds=seconds)
        self._woken.set()

    async def run(self) -> NoReturn:
        """Renew until cancelled. Raises ClientCertificateExpiredError, MembershipEndedError, ConfigError."""
        seen, pauses = self._files.version(), retry_pauses(self._draw)
        while True:
            await self._wait_until_due(seen)
            seen = await self._renew()
            if self._seconds_left(seen) >= DUE_AT_ONCE:
                pauses = retry_pauses(self._draw)
            else:
                # The signer gives certificates that are due when they arrive. Without a pause each would be followed
                # by another request.
                await self._sleep(next(pauses))

    async def _wait_until_due(self, seen: Version | None) -> None:
        """Return when the certificate is to be renewed. `seen` is the version in use."""
        while True:
            if self._files.version() != seen:
                seen = self._files.version()
                await self._on_renewed()
            remaining = self._seconds_left(seen)
            if remaining <= 0:
                return
            # Not for the whole time: a machine that slept finds its renewal due, and a certificate that another
            # program has placed, such as `mooring join`, is used.
            await self._sleep(min(remaining, LOOK_SECONDS))

    def _seconds_left(self, version: Version | None) -> float:
        """Return the seconds until the renewal, 0 or less when it is due."""
        if not self.is_wanted:
            return LOOK_SECONDS
        pair = self._files.read_pair()
        if pair is None or not self.satisfies(pair):
            return 0.0
        timing = self._timing_of(version)
        due = renewal_time(pair.leaf, timing.draw, timing.obtained, defers=self._defers())
        if timing.early is not None:
            due = min(due, timing.early)
        return (due - self._clock.now()).total_seconds()

    def _timing_of(self, version: Version | None) -> _Timing:
        """Return the timing of the certificate in use, whose version is `version`."""
        if self._timing.version != version:
            self._timing = _Timing(version, self._draw())
        return self._timing

    async def _sleep(self, seconds: float) -> bool:
        """Sleep until `seconds` have passed. Return True earlier, when another certificate or an early renewal is asked for."""
        try:
            return await with_deadline(self._clock, seconds, self._woken.wait())
        except TimeoutError:
            return False
        finally:
            self._woken.clear()

    async def _pause(self, seconds: float, before: Version | None) -> None:
        """Wait for the next attempt, until another program has placed a certificate. Raises ClientCertificateExpiredError."""
        until, woken = self._clock.monotonic() + seconds, False
        while not woken and self._files.version() == before and (left := until - self._clock.monotonic()) > 0:
            self.check_usable()
            woken = await self._sleep(min(left, LOOK_SECONDS))

    async def _renew(self) -> Version | None:
        """Replace the certificate, however many attempts it takes. Return the version in use."""
        before = self._files.version()
        pauses, after_decisions = retry_pauses(self._draw), decision_pauses(self._draw)
        while True:
            self.check_usable()
            if not self.is_wanted:
                return before
            try:
                pair = await self.obtain()
            except WantChangedError:
                continue
            except (MembershipEndedError, ClientCertificateExpiredError):
                raise
            except MooringError as error:
                problem = f"the {self._name} certificate could not be renewed, trying again"
                self._problem.note(lasting_reason(error), f"{problem}: {described(error)}")
                await self._pause(next(after_decisions if isinstance(error, DECISIONS) else pauses), before)
                if self._files.version() != before:
                    # Another program has placed a certificate meanwhile. The next look finds that the version has changed.
                    return before
                continue
            path = self.place(pair)
            self._problem.note("")
            log.info(
                "the %s certificate was renewed, valid until %s: %s",
                self._name,
                rfc3339(pair.leaf.not_valid_after_utc),
                path,
            )
            version = self._files.version()
            self._timing = _Timing(version, self._draw(), self._clock.now())
            await self._on_renewed()
            return version


class RequestedRenewal(Renewal):
    """Renewal by certificate requests to the API server."""

    def __init__(
        self,
        name: str,
        files: PairFiles,
        client: ClusterClient,
        template: CertificateTemplate | None,
        *,
        expiration_seconds: Callable[[], int] = lambda: 0,
        before: Callable[[], Awaitable[None]],
        check: Callable[[Pair], Awaitable[None]] = accept,
        on_renewed: Callable[[], Awaitable[None]],
        needs_own_certificate: bool = False,
        draw: Callable[[], float] = random_draw,
        defers: Callable[[], bool] = lambda: False,
    ) -> None:
        """`before` raises an error when no request may be sent, and `check` for a certificate that must not be used.

        `needs_own_certificate`: requests are authenticated with this very certificate, so that an expired one ends the renewals.
        """
        super().__init__(name, files, client.clock, on_renewed, draw, defers)
        self._pairs = files
        self._client = client
        self._template = template
        self._template_changed = asyncio.Event()
        self._expiration_seconds = expiration_seconds
        self._before = before
        self._check = check
        self._needs_own_certificate = needs_own_certificate

    def use_template(self, template: CertificateTemplate | None) -> None:
        """Set the template of the wanted certificate. None: none is wanted."""
        if template != self._template:
            self._template = template
            self._template_changed.set()
            self._woken.set()

    @property
    def is_wanted(self) -> bool:
        return self._template is not None

    def satisfies(self, pair: Pair) -> bool:
        return self._template is None or self._template.is_satisfied_by(pair.leaf)

    def check_usable(self) -> None:
        pair = self._pairs.read_pair() if self._needs_own_certificate else None
        if pair is not None and pair.leaf.not_valid_after_utc <= self._clock.now():
            raise ClientCertificateExpiredError(
                f"the client certificate expired at {rfc3339(pair.leaf.not_valid_after_utc)}"
            )

    def place(self, pair: Pair) -> Path:
        path = self._pairs.write_pair(pair, self._clock.now())
        self._pairs.prune()
        return path

    async def obtain(self) -> Pair:
        template = self._template
        if template is None:
            raise WantChangedError
        # Without an `await` since the template was read: each later change ends the wait below.
        self._template_changed.clear()
        requesting = asyncio.ensure_future(self._request(template))
        changed = asyncio.ensure_future(self._template_changed.wait())
        try:
            await asyncio.wait((requesting, changed), return_when=asyncio.FIRST_COMPLETED)
            if requesting.done():
                return requesting.result()
            log.info("the addresses of this machine changed: another %s certificate is requested", self._name)
            raise WantChangedError
        finally:
            for task in (requesting, changed):
                task.cancel()
            await asyncio.gather(requesting, changed, return_exceptions=True)

    async def _request(self, template: CertificateTemplate) -> Pair:
        await self._before()
        # In memory alone: a crash loses the key, and the next run sends another request.
        key = generate_key()
        request = certificaterequest.renewal_request(key, template, self._expiration_seconds())
        obj = await self._client.create(certificaterequest.PLURAL, request.obj())
        skew = describe_skew(creation_time(obj), self._clock.now())
        if skew:
            self._problem.note(skew)
        issued = await certificaterequest.wait(
            self._client, obj, WAIT_SECONDS, self._report, certificaterequest.RENEWAL
        )
        pair = certificaterequest.issued_pair(issued, key, request, self._clock.now(), skew)
        # Before it is placed: a certificate that the server does not accept must not replace one that it does.
        await self._check(pair)
        return pair

    def _report(self, message: str, new: bool) -> None:
        if new:
            log.info("%s certificate: %s", self._name, message)
