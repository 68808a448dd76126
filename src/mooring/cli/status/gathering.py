"""Gathers the sections of `mooring status` at the same time.

Rules kept here:
* A section that the user may not read, or that the server does not serve, says so, and hides no other.
* A server that cannot be reached, and credentials that it rejects, end the whole: no section would have anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from mooring.apimachinery.schema import Obj
from mooring.cli import serverreport
from mooring.cli.node import machines
from mooring.cli.serverreport import NOT_READABLE, NOT_SERVED, ServerReport
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import NotMooringError
from mooring.errors import ApiError, ForbiddenError, NotFoundError, ServiceUnavailableError, UnauthorizedError
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.kubeconfig import Selected

T = TypeVar("T")
PROBLEM = "unavailable"
"""Field of a section that could not be read, with the reason."""


@dataclass(slots=True)
class Gathering:
    """Answers of the server that several sections read, each requested once."""

    client: ClusterClient
    selected: Selected
    now: datetime
    _tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    def once(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task of a call, which is made once for all that ask by this name."""
        if name not in self._tasks:
            self._tasks[name] = asyncio.ensure_future(call())
        return self._tasks[name]

    async def reports(self) -> Sequence[ServerReport]:
        """Return the reports of the servers."""
        return await self.once("reports", partial(serverreport.fetch, self.selected, self.client.clock))

    async def report(self) -> Obj:
        """Return the report of the first server that gives one. Raises ForbiddenError, NotFoundError, ServiceUnavailableError."""
        reports = await self.reports()
        found = next((one.report for one in reports if one.report is not None), None)
        if found is None:
            problems = {one.problem for one in reports}
            known = {NOT_READABLE: ForbiddenError, NOT_SERVED: NotFoundError}
            unanswered = problems - known.keys()
            kind = ServiceUnavailableError if unanswered else next(known[one] for one in known if one in problems)
            raise kind("; ".join(sorted(unanswered or problems)))
        return found

    async def machines(self) -> tuple[machines.KnownMachine, ...]:
        """Return the machines of the cluster."""
        found, _ = await self.once("machines", partial(machines.fetch, self.client, self.now, with_issuance_log=False))
        return found

    async def rollover(self) -> Obj | None:
        """Return the rollover of the CA, None without one."""
        return await self.once("rollover", partial(_rollover, self.client))

    async def end(self) -> None:
        """Retrieve the failures that no section has read."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _rollover(client: ClusterClient) -> Obj | None:
    try:
        return await client.get("certificateauthorityrollovers", "cluster-ca")
    except NotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Section:
    """One section: how it is read, and its lines of text, of which the first stands behind the label."""

    label: str
    read: Callable[[Gathering], Awaitable[Obj]]
    lines: Callable[[Obj, datetime], Sequence[str]]


async def gather(
    sections: Mapping[str, Section], client: ClusterClient, selected: Selected, now: datetime
) -> dict[str, Obj]:
    """Read every section, and return them by name. Raises PeerError, UnauthorizedError."""
    gathering = Gathering(client, selected, now)
    try:
        found = await asyncio.gather(*(_read(section, gathering) for section in sections.values()))
    finally:
        await gathering.end()
    return dict(zip(sections, found, strict=True))


async def _read(section: Section, gathering: Gathering) -> Obj:
    try:
        return await section.read(gathering)
    except ApiError as error:
        return {PROBLEM: unreadable(error)}
    except (NotKubernetesError, NotMooringError):
        return {PROBLEM: NOT_SERVED}


def unreadable(error: ApiError) -> str:
    """Return why something cannot be read. Raises UnauthorizedError: then nothing can."""
    if isinstance(error, UnauthorizedError):
        raise error
    known = {ForbiddenError: NOT_READABLE, NotFoundError: NOT_SERVED}
    return known.get(type(error), str(error))


def text(sections: Mapping[str, Section], found: Mapping[str, Obj], now: datetime) -> list[str]:
    """Return the lines of a screen."""
    width = max(len(section.label) for section in sections.values()) + 3
    lines = []
    for name, section in sections.items():
        of_section = [found[name][PROBLEM]] if PROBLEM in found[name] else section.lines(found[name], now)
        for place, line in enumerate(of_section):
            lines.append(f"{section.label if place == 0 else '':<{width}}{line}")
    return lines
