"""Reports of the servers of a cluster about themselves (`/mooring/v1/status`): each address of the kubeconfig is asked.

Rules kept here:
* Addresses that lead to the same server, such as that of a load balancer, give one report. Servers are told apart by their
  certificates, too: copies of a machine have one name and the same paths.
* An address that cannot be reached within LIMIT has a problem in place of a report. So has a user who may not read it, and a server
  without such a report: another API server, or an older Mooring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.clock import Clock, parse_rfc3339
from mooring.errors import ForbiddenError, MooringError, NotFoundError, UnauthorizedError
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.kubeconfig import Selected

PATH, KIND = "/mooring/v1/status", "ServerStatus"
LIMIT = 5.0
"""Seconds for one address: a screen of the whole cluster does not wait longer for a server that is gone."""
_IDENTITY = ("server", "dataDir", "certificates")
NOT_READABLE = "not readable for this user"
NOT_SERVED = "not served by this server"


@dataclass(frozen=True, slots=True)
class ServerReport:
    """Answer of one address."""

    address: str
    report: Obj | None = None
    problem: str = ""
    offset: float = 0.0
    """Seconds by which the server's clock is ahead of this machine's, give or take half the time of the request."""
    uncertainty: float = 0.0


async def fetch(selected: Selected, clock: Clock) -> Sequence[ServerReport]:
    """Return the reports, in the order of the kubeconfig. Raises UnauthorizedError."""
    ways = [replace(selected, cluster=one, others=()) for one in (selected.cluster, *selected.others)]
    answers = await asyncio.gather(*(_of_address(one, clock) for one in ways))
    return distinct(answers)


def distinct(answers: Iterable[ServerReport]) -> Sequence[ServerReport]:
    """Return one answer of each server, the first, and those of addresses without a report."""
    found: dict[str, ServerReport] = {}
    for answer in answers:
        report = answer.report
        key = answer.address if report is None else repr([report.get(name) for name in _IDENTITY])
        found.setdefault(key, answer)
    return tuple(found.values())


async def _of_address(selected: Selected, clock: Clock) -> ServerReport:
    address = selected.cluster.server.rstrip("/")
    try:
        async with asyncio.timeout(LIMIT), connect(selected, clock) as client:
            before = clock.now()
            report = await _read(client)
            return _timed(ServerReport(address, report), before, clock.now())
    except UnauthorizedError:
        raise
    except ForbiddenError:
        return ServerReport(address, problem=NOT_READABLE)
    except (NotFoundError, NotKubernetesError):
        # Other servers answer such a path with a text.
        return ServerReport(address, problem=NOT_SERVED)
    except TimeoutError:
        return ServerReport(address, problem=f"no answer within {LIMIT:.0f}s")
    except MooringError as error:
        return ServerReport(address, problem=str(error))


def _timed(answer: ServerReport, before: datetime, after: datetime) -> ServerReport:
    assert answer.report is not None
    # An older server does not tell its time.
    if not (text := answer.report.get("time", "")):
        return answer
    half = (after - before) / 2
    offset = parse_rfc3339(text) - before - half
    return replace(answer, offset=offset.total_seconds(), uncertainty=half.total_seconds())


async def _read(client: ClusterClient) -> Obj:
    return checked(await client.get_path(PATH))


def checked(answer: Obj) -> Obj:
    """Return an answer that is a report. Raises NotFoundError for that of another program."""
    if answer.get("kind") != KIND:
        raise NotFoundError(NOT_SERVED)
    return answer
