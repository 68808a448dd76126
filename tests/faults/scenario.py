"""The whole scenario: clients and agents at work on a site while its faults happen, and the judgement of what they recorded."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import MooringError
from mooring.trust.discovery.pins import pins_of
from tests.faults.fleet import Fleet
from tests.faults.leadership import Impatient, Leadership
from tests.faults.site import Fault, Site
from tests.faults.workload import OneTry, Workload
from tests.support.killable import KillableServer

HEALED_SECONDS = 90.0
"""Seconds after a fault until every server must serve again."""
PROGRESS_SECONDS = 60.0
"""Seconds after that until a write must be acknowledged."""
BEAT_SECONDS = 60.0
"""Seconds after the last fault until every agent must have renewed its Lease."""
BEFORE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that happened, with what clients noticed of it until every server served again."""

    sentence: str
    seconds: float
    acknowledged: int
    unknown: int
    longest_gap: float

    def __str__(self) -> str:
        return (
            f"{self.sentence}: healed after {self.seconds:.1f} s; {self.acknowledged} writes acknowledged meanwhile, "
            f"{self.unknown} without a reply, longest time without an acknowledgement {self.longest_gap:.1f} s"
        )


@dataclass
class Scenario:
    """`machines` agents and `clients` with at most `operations` each."""

    site: Site
    moments: random.Random
    directory: Path
    machines: int
    clients: int
    operations: int
    joins_of_a_token: int = 10
    join_seconds: float = 1.0
    beats_before: float = 0.0
    """Seconds before the last fault was mended from which a renewed Lease counts; agents renew every 10 s."""
    report: Callable[[str], None] = lambda line: None
    happened: list[Happened] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    leadership: Leadership = field(default_factory=Leadership)

    async def run(self, faults: Iterable[Fault]) -> None:
        """Run everything; `findings` says what was wrong."""
        site = self.site
        await site.start()
        servers = site.servers
        self.workload = Workload([partial(server.client, OneTry()) for server in servers], self.moments)
        ca_pem = (servers[0].data_dir / "pki/ca.crt").read_bytes()
        pins = tuple(str(pin) for pin in pins_of(ca_pem))
        self.fleet = Fleet(site.endpoints, pins, self.directory / "machines", self.moments, self.joins_of_a_token)
        async with servers[0].client() as admin:
            await self.fleet.prepare(admin, self.machines)
        await self.workload.prepare()
        background = [
            asyncio.create_task(self.leadership.follow(partial(servers[0].client, Impatient()))),
            asyncio.create_task(self.fleet.run(self.join_seconds)),
        ]
        try:
            await self.workload.run(self.clients, self.operations, 2, partial(self._break, faults))
            await self._judge()
        finally:
            for task in background:
                task.cancel()
            outcomes = await asyncio.gather(*background, return_exceptions=True)
        self.findings += [f"it ended: {one!r}" for one in outcomes if not isinstance(one, asyncio.CancelledError)]

    async def _break(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            await asyncio.sleep(BEFORE_SECONDS)
            before, begun = (self.workload.acknowledged, self.workload.unknown), time.monotonic()
            gaps = asyncio.create_task(self._longest_gap())
            try:
                await fault.happen()
                await asyncio.wait_for(self.site.ready(), HEALED_SECONDS)
                await asyncio.wait_for(self._progress(), PROGRESS_SECONDS)
            finally:
                gaps.cancel()
                (gap,) = await asyncio.gather(gaps)
            self.happened.append(
                Happened(
                    fault.sentence,
                    time.monotonic() - begun,
                    self.workload.acknowledged - before[0],
                    self.workload.unknown - before[1],
                    gap,
                )
            )
            self.report(str(self.happened[-1]))

    async def _progress(self) -> None:
        """Wait until another write is acknowledged."""
        before = self.workload.acknowledged
        while self.workload.acknowledged == before and self.workload.running:
            await asyncio.sleep(0.02)

    async def _longest_gap(self) -> float:
        longest, last, seen = 0.0, time.monotonic(), self.workload.acknowledged
        try:
            while True:
                await asyncio.sleep(0.02)
                if self.workload.acknowledged != seen:
                    seen, last = self.workload.acknowledged, time.monotonic()
                longest = max(longest, time.monotonic() - last)
        except asyncio.CancelledError:
            return longest

    async def _judge(self) -> None:
        healed = SystemClock().now() - timedelta(seconds=self.beats_before)
        admin_of: KillableServer = self.site.servers[-1]
        async with admin_of.client() as admin:
            deadline = time.monotonic() + BEAT_SECONDS
            while found := await self._fleet_findings(admin, healed):
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(1)
            found += await self.leadership.issuance_log_findings(admin, [one.data_dir for one in self.site.servers])
        self.findings += [*found, *self.workload.findings(), *self.leadership.findings(self.site.killed)]

    async def _fleet_findings(self, admin: ClusterClient, since: datetime) -> list[str]:
        try:
            return await self.fleet.findings(admin, since)
        except MooringError as error:
            return [str(error)]

    def summary(self) -> Sequence[str]:
        fleet = self.fleet
        return [
            str(self.workload),
            f"{len(fleet.members)} of {self.machines} agents are members; {len(self.leadership.certificates)} certificates issued, "
            f"{self.leadership.recorded} recorded; "
            f"{sum(fleet.denied.values())} joins denied because a token was used up; agents started again: {dict(fleet.ends)}",
            f"controllers were led by {len(self.leadership.holders)} processes one after another",
            *(f"FOUND: {finding}" for finding in self.findings),
        ]
