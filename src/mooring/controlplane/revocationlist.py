"""The CRL of the cluster's CA: signed again after each change of the denylist, served, and written to `pki/crl.pem`.

Rules kept here:
* The list contains the serial numbers that the denylist revokes: those of its entries, and those that were known when the entry of
  a key or node was written. An entry for another issuer is left out, and so is one whose certificates expired a while ago.
* A change reaches the list within a second or so. Signing 100 000 entries takes half a second; the rest after it is a hundred times
  as long, so that a denylist that changes all the time costs one per cent of a core.
* The list is signed again every day without a change, long before nextUpdate.
* Each server signs its own list; all have the same entries. The file is replaced atomically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.certificaterevocation import PLURAL, known_serial_numbers, time_of
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.options import ListOptions
from mooring.apimachinery.schema import Obj
from mooring.client.files import write_atomic
from mooring.clock import Clock, parse_rfc3339, wait_until
from mooring.controlplane.maintenance import wait_for_event
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.clusterca import ClusterCa
from mooring.pki.x509.crl import LIFETIME, SignedList, revocation_list, revoked_certificate
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.reminders import LastingProblem

log = logging.getLogger("mooring.server")

FILE = "crl.pem"
RENEW = timedelta(days=1)
"""Time after which an unchanged list is signed again: a seventh of its lifetime."""
RETRY = timedelta(minutes=1)
"""Time between attempts after a failure, such as a full disk or a device that does not respond."""
LEAST_REST = 1.0
"""Seconds between two lists: several revocations share one."""
REST_FACTOR = 100


@dataclass(frozen=True, slots=True)
class _Entry:
    """Certificates of one entry of the denylist."""

    revoked: tuple[x509.RevokedCertificate, ...]
    issuer: str
    expiry: datetime | None


class RevocationListPublisher:
    """Keeps the CRL of one server. `current` is None before the first one."""

    def __init__(self, registry: Registry, ca: ClusterCa, pki: Path | None, clock: Clock) -> None:
        """`pki`: directory of the file; None: no file."""
        self._registry = registry
        self._ca = ca
        self._pki = pki
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._changed = asyncio.Event()
        self._problem = LastingProblem(log.warning, "%s; the denylist of this server is in force without it")
        self.current: SignedList | None = None

    async def run(self) -> None:
        """Publish a list now and after each change, until cancelled."""
        self._ca.subscribe(self._changed.set)
        options = ListOptions(watch=True)
        watch = await self._registry.reader.watch(BY_PLURAL[PLURAL], "", options, self._apply, readable_only=True)
        try:
            await watch.replay()
            while True:
                # Before the list is made: a change meanwhile makes another one.
                self._changed.clear()
                began = self._clock.monotonic()
                await self.publish()
                took = self._clock.monotonic() - began
                await self._clock.sleep(max(LEAST_REST, REST_FACTOR * took))
                due = self._clock.now() + (
                    RETRY if self._problem.current else RENEW
                )  # the list names its end in wall time
                await wait_for_event(self._changed, wait_until(self._clock, due))
        finally:
            watch.close()

    def _apply(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        # In any case: an entry that cannot be read must not leave an older one of its name.
        self._entries.pop(name, None)
        if event.type != "DELETED":
            # An entry that was written past validation.
            with suppress(ValueError, KeyError):
                entry = _entry(event.obj)
                if entry.revoked:
                    self._entries[name] = entry
        self._changed.set()

    async def publish(self) -> None:
        """Sign a list of the denylist as it is now, and write the file. A failure is logged once, and the last list stays."""
        authority, now, problem = self._ca.authority, self._clock.now(), ""
        try:
            # A copy of the entries: they change on the event loop while the thread signs.
            self.current = await asyncio.to_thread(_signed, authority, tuple(self._entries.values()), now)
            if self._pki is not None:
                await asyncio.to_thread(write_atomic, self._pki / FILE, self.current.pem)
        except PkiError as error:
            problem = f"the CRL was not signed: {error}"
        except ConfigError as error:
            problem = f"the CRL was not written: {error}"
        self._problem.note(problem)


def _entry(obj: Obj) -> _Entry:
    spec = spec_of(obj)
    revoked_at = parse_rfc3339(obj["metadata"]["creationTimestamp"])
    numbers = known_serial_numbers(spec)
    revoked = tuple(revoked_certificate(int(number, 16), revoked_at, spec["reason"]) for number in numbers)
    return _Entry(revoked, spec.get("issuer") or "", time_of(spec, "expiresAt"))


def _signed(authority: Authority, entries: tuple[_Entry, ...], now: datetime) -> SignedList:
    """Sign the list. Raises IssueError. Runs in a thread."""
    issuer = f"sha256:{authority.key_fingerprint}"
    listed = {one.serial_number: one for one in _listed(entries, issuer, now)}
    return SignedList.of(revocation_list(authority, tuple(listed.values()), now))


def _listed(entries: tuple[_Entry, ...], issuer: str, now: datetime) -> Iterator[x509.RevokedCertificate]:
    for entry in entries:
        is_over = entry.expiry is not None and entry.expiry < now - LIFETIME
        if entry.issuer in ("", issuer) and not is_over:
            yield from entry.revoked
