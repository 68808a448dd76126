"""Warns of what ends soon and is renewed by a person, or should have been renewed by this server: certificates, CAs and CRLs.

Rules kept here (docs/operate.md#certificates-that-end):
* A certificate is warned of from a quarter of its life on, at most 30 days before its end; a CA at most a year before. What the
  server renews is renewed earlier, so that a warning says that the renewal fails.
* A warning is a line of the log and an Event of the namespace `kube-system`, at the first look and then once a day; the check
  `certificates` of `/readyz?verbose` warns all the time. The server goes on: a client whose clock is right decides for itself.
* What the server renews itself is warned of at the second look at the same certificate. After a jump of the clock the first look
  may come before the renewal, which comes within half a minute.
* The workers of a server and its restarts share an Event by its name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from mooring.api.core.event import new_event
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock, gap, human_duration, rfc3339, wait_until
from mooring.errors import AlreadyExistsError, MooringError
from mooring.identity import API_SERVER_USER
from mooring.registry.store import Registry

log = logging.getLogger("mooring.controlplane")

LOOK = timedelta(minutes=1)
REPEAT = timedelta(days=1)
CERTIFICATE_WARNING, CA_WARNING = timedelta(days=30), timedelta(days=365)
FAR = datetime.max.replace(tzinfo=UTC)


class Ending(Protocol):
    """A certificate, or a CRL whose nextUpdate is its end."""

    @property
    def not_valid_before_utc(self) -> datetime:
        """Begin."""

    @property
    def not_valid_after_utc(self) -> datetime:
        """End."""

    @property
    def serial_number(self) -> int:
        """Number that tells it from its successor."""


@dataclass(frozen=True, slots=True)
class ExpirySource:
    """Certificates that are in force in one place."""

    text: str
    advice: str
    read: Callable[[], Sequence[Ending]]
    is_ca: bool = False
    is_renewed: bool = False
    """True for certificates that this server renews."""
    last_counts: bool = False
    """True when the source ends with the last of its certificates, as a bundle of CAs; else with the first, as a chain."""
    file: str = ""
    """File that has it; "" where it is in several."""
    may_be_missing: bool = False
    """True for a file that an administrator may have removed."""

    def first_end(self) -> Ending | None:
        """Return the certificate with which this ends; None where there is none, or where it cannot be read."""
        # A program that uses the file reports what is wrong with it.
        return self.examine()[0]

    def examine(self) -> tuple[Ending | None, str]:
        """Return the certificate with which this ends, None where there is none, and why it cannot be read, "" where it can."""
        try:
            found = self.read()
        except (MooringError, OSError) as error:
            is_missing = self.may_be_missing and not os.path.lexists(self.file)
            return None, "" if is_missing else str(error)
        return (max if self.last_counts else min)(found, key=lambda one: one.not_valid_after_utc, default=None), ""


def is_near(certificate: Ending, now: datetime, *, is_ca: bool) -> bool:
    """Return whether a certificate ends so soon that a person is told."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return end - now < min((end - begin) / 4, CA_WARNING if is_ca else CERTIFICATE_WARNING)


class ExpiryWatch:
    """The ends of the certificates of one server process."""

    def __init__(
        self,
        sources: Mapping[str, ExpirySource],
        registry: Registry,
        clock: Clock,
        server: str,
        looked: Callable[[datetime], None] = lambda now: None,
        event_written: Callable[[Obj], None] = lambda event: None,
    ) -> None:
        """`sources`: by a name for metrics and Events. `server`: what tells this server from others in Events.

        `looked` is called with the time of each look, and `event_written` with each Event that was created.
        """
        self._event_written = event_written
        self._looked = looked
        self.sources = sources
        self._registry = registry
        self._clock = clock
        self._server = server
        self._warned: dict[str, tuple[int, datetime]] = {}
        self._seen: dict[str, int] = {}
        """Serial numbers of what ended soon at the last look."""
        self.passes = True
        """True when nothing had ended or was about to end at the last look."""

    def end_of(self, name: str) -> float:
        """Return the end of a source in seconds since 1970; that of the year 9999 where there is none."""
        certificate = self.sources[name].first_end()
        return (FAR if certificate is None else certificate.not_valid_after_utc).timestamp()

    async def run(self) -> None:
        """Look once a minute until cancelled."""
        while True:
            await self.look()
            await wait_until(self._clock, self._clock.now() + LOOK)

    async def look(self) -> None:
        """Warn of what ends soon, unless that was done within the last day."""
        now = self._clock.now()
        self._looked(now)
        near = dict(self._near(now))
        before, self._seen = self._seen, {name: one.serial_number for name, one in near.items()}
        near = {
            name: one
            for name, one in near.items()
            if not self.sources[name].is_renewed or before.get(name) == one.serial_number
        }
        self.passes = not near
        self._warned = {name: last for name, last in self._warned.items() if name in near}
        for name, certificate in near.items():
            serial_number, last = self._warned.get(name, (0, now))
            if serial_number == certificate.serial_number and abs(now - last) < REPEAT:
                continue
            self._warned[name] = (certificate.serial_number, now)
            message = _message(self.sources[name], certificate, now)
            log.warning("%s", message)
            await self._record(name, certificate, message, now)

    def _near(self, now: datetime) -> list[tuple[str, Ending]]:
        found = ((name, source, source.first_end()) for name, source in self.sources.items())
        return [(name, one) for name, source, one in found if one is not None and is_near(one, now, is_ca=source.is_ca)]

    async def _record(self, name: str, certificate: Ending, message: str, now: datetime) -> None:
        event = new_event(
            {"apiVersion": "v1", "kind": "Namespace", "name": "kube-system"},
            "CertificateExpired" if certificate.not_valid_after_utc <= now else "CertificateExpiring",
            message,
            now,
            metadata={"name": f"{name}.{certificate.serial_number % 16**12:012x}.{self._server}.{now:%Y%m%d}"},
            is_warning=True,
            host=self._server,
        )
        try:
            change = Change(API_SERVER_USER, now, writer="expiry-watch")
            written = await self._registry.writer.create(BY_PLURAL["events"], "default", event, change, WriteOptions())
            self._event_written(written.obj)
        except AlreadyExistsError:
            # Another worker, or this server before a restart.
            pass
        except MooringError as error:
            log.warning("no Event about the end of %s: %s", self.sources[name].text, error)


def _message(source: ExpirySource, certificate: Ending, now: datetime) -> str:
    end = certificate.not_valid_after_utc
    when = f"expires in {human_duration(end - now)}" if end > now else f"expired {gap(now - end)} ago"
    return f"{source.text} {when}, at {rfc3339(end)}: {source.advice}"
