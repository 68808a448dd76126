"""Writer of the issuance log: entries share records, no two writers fork the chain, and nothing is published without its entry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mooring.api.mooring.lineagerecord import MIN_RETENTION
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import GRACE
from mooring.controllers.certificates.cleaner import DAY, IssuanceLogTrimmer
from mooring.errors import ForbiddenError, NotFoundError, StorageError
from mooring.reconcile import issuancelog
from mooring.reconcile.issuancelog import IssuanceLogWriter, KeyCertifiedError
from mooring.reconcile.leaderelection import FencedApi
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.registryapi import RegistryApi
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.issuancelog import Checkpoint, VerifiedIssuanceLog, new_record, verify
from tests.support.loops import api_of, until
from tests.support.registryroom import Room, counting_entropy, in_room, masters_only

pytestmark = pytest.mark.filterwarnings("error")


def entry(number: int) -> Obj:
    return {
        "time": "2026-01-01T00:00:00Z",
        "event": "Issued",
        "notAfter": "2026-06-01T00:00:00Z",
        "serialNumber": f"{number:x}",
    }


def verified(room: Room) -> VerifiedIssuanceLog:
    result = verify(room.registry.views["lineagerecords"].list())
    assert result.faults == []
    return result


@in_room
async def test_entries_of_one_moment_share_a_record(room: Room) -> None:
    heads: list[Checkpoint] = []
    writer = IssuanceLogWriter(api_of(room), on_head=heads.append)
    await asyncio.gather(*(writer.append(entry(number)) for number in range(100)))
    result = verified(room)
    assert [one["serialNumber"] for one in result.entries] == [f"{number:x}" for number in range(100)]
    assert result.records == 2
    assert heads[-1] == result.head


@in_room
async def test_two_writers_never_fork_the_chain(room: Room) -> None:
    writers = [IssuanceLogWriter(api_of(room)) for _ in range(3)]
    for turn in range(4):
        await asyncio.gather(*(writer.append(entry(10 * turn + number)) for number, writer in enumerate(writers)))
    result = verified(room)
    assert (result.records, len(result.entries)) == (12, 12)


@in_room
async def test_a_new_writer_goes_on_where_the_last_one_ended(room: Room) -> None:
    first, heads = IssuanceLogWriter(api_of(room)), list[Checkpoint]()
    for number in range(13):
        await first.append(entry(number))

    class Blind(RegistryApi):
        """Without a view of the records, as a client of another cluster."""

        @property
        def views(self) -> Views:
            return {}

    writer = IssuanceLogWriter(Blind(room.registry, masters_only, room.clock), on_head=heads.append)
    await writer.append(entry(99))
    assert verified(room).records == 14
    assert [head.sequence for head in heads] == [13, 14]


class Failing(RegistryApi):
    """Cluster whose creates fail as told."""

    failures: list[Exception]

    async def create(self, plural: str, obj: Obj) -> Obj:
        if self.failures:
            raise self.failures.pop(0)
        return await super().create(plural, obj)


def failing(room: Room, *failures: Exception) -> Failing:
    api = Failing(room.registry, masters_only, room.clock)
    api.failures = list(failures)
    return api


@in_room
async def test_a_failure_reaches_every_caller_and_the_next_entry_is_written(room: Room) -> None:
    writer = IssuanceLogWriter(failing(room, StorageError("disk full")))
    outcomes = await asyncio.gather(writer.append(entry(1)), writer.append(entry(2)), return_exceptions=True)
    assert [str(one) for one in outcomes] == ["disk full", "disk full"]
    await writer.append(entry(3))
    assert [one["serialNumber"] for one in verified(room).entries] == ["3"]


@in_room
async def test_a_caller_that_was_cancelled_is_left_alone(room: Room) -> None:
    writer = IssuanceLogWriter(api_of(room))
    waiting = [asyncio.create_task(writer.append(entry(number))) for number in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await waiting[1]
    assert len(verified(room).entries) == 2


@in_room
async def test_a_refusal_that_no_other_writer_caused_is_final(room: Room) -> None:
    writer = IssuanceLogWriter(failing(room, ForbiddenError("no")))
    with pytest.raises(ForbiddenError):
        await writer.append(entry(1))


@in_room
async def test_a_writer_that_never_comes_first_gives_up(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuancelog, "APPEND_TRIES", 2)

    class Beaten(RegistryApi):
        async def create(self, plural: str, obj: Obj) -> Obj:
            spec, name = obj["spec"], obj["metadata"]["name"]
            other, _ = new_record(Checkpoint(int(name) - 1, spec["previous"]), [entry(7)], None)
            await super().create(plural, other)
            return await super().create(plural, obj)

    with pytest.raises(StorageError, match="only one process may write"):
        await IssuanceLogWriter(Beaten(room.registry, masters_only, room.clock)).append(entry(1))


@in_room
async def test_a_cluster_without_the_kind_records_nothing_and_says_so_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = NotFoundError("the server could not find the requested resource")
    down = NotKubernetesError("POST /apis/mooring.dev", "status 502 without a Kubernetes Status")
    writer = IssuanceLogWriter(failing(room, unknown, unknown, down))
    await writer.append(entry(1))
    await writer.append(entry(2))
    assert verified(room).records == 0
    (line,) = (record.message for record in caplog.records if "not recorded" in record.message)
    assert line.endswith("apply what mooring controllers manifests prints with csrsigner among its --controllers")
    with pytest.raises(NotKubernetesError, match="502"):
        await writer.append(entry(3))
    await writer.append(entry(4))
    assert [one["serialNumber"] for one in verified(room).entries] == ["4"]


@in_room
async def test_a_read_of_a_kind_that_is_not_there_is_the_same(room: Room) -> None:
    class Without(RegistryApi):
        async def get(self, plural: str, namespace: str, name: str) -> Obj:
            raise NotFoundError("the server could not find the requested resource")

        async def create(self, plural: str, obj: Obj) -> Obj:
            raise NotFoundError("the server could not find the requested resource")

    await IssuanceLogWriter(Without(room.registry, masters_only, room.clock)).append(entry(1))
    assert verified(room).records == 0


def certified(key: str, uid: str, until: str = "2027-01-01T00:00:00Z") -> Obj:
    return {**entry(1), "publicKey": f"sha256:{key * 64}", "requestUID": uid, "notAfter": until}


async def appended(writer: IssuanceLogWriter, one: Obj) -> bool:
    try:
        await writer.append(one, True)
    except KeyCertifiedError:
        return False
    return True


@in_room
async def test_of_requests_for_one_key_at_one_moment_the_chain_takes_one(room: Room) -> None:
    writers = [IssuanceLogWriter(api_of(room)) for _ in range(3)]
    requests = [certified("a", f"request-{number}") for number in range(6)]
    taken = await asyncio.gather(
        *(appended(writers[number % 3], one) for number, one in enumerate(requests)),
        appended(writers[0], certified("b", "request-of-another-key")),
    )
    assert (taken[:6].count(True), taken[6]) == (1, True)
    assert sorted(one["publicKey"][-1] for one in verified(room).entries) == ["a", "b"]


@in_room
async def test_a_key_is_free_again_when_its_certificate_has_ended(room: Room) -> None:
    writer = IssuanceLogWriter(api_of(room))
    assert await appended(writer, certified("a", "ended", until="2025-12-31T00:00:00Z"))
    assert await appended(writer, certified("a", "first"))
    assert await appended(writer, certified("a", "first")), "the same request is signed again after a crash"
    assert not await appended(writer, certified("a", "second"))
    await writer.append(certified("a", "of a signer without the rule"))


@in_room
async def test_a_claim_waits_for_the_newest_record(room: Room) -> None:
    class Blind(RegistryApi):
        views = views_of({"lineagerecords": FixedView()})

    await IssuanceLogWriter(api_of(room)).append(certified("a", "first"))
    blind = IssuanceLogWriter(Blind(room.registry, masters_only, room.clock))
    with pytest.raises(StorageError, match="has not arrived"):
        await blind.append(certified("a", "second"), True)


@in_room
async def test_a_cluster_whose_records_are_not_watched_claims_nothing(room: Room) -> None:
    class Unwatched(RegistryApi):
        views = views_of({})

    writer = IssuanceLogWriter(Unwatched(room.registry, masters_only, room.clock))
    assert await appended(writer, certified("a", "first"))
    assert await appended(writer, certified("a", "second"))


def views_of(views: Views) -> Any:
    return property(lambda self: views)


@in_room
async def test_a_log_is_trimmed_by_the_loop_and_stays_in_order(room: Room) -> None:
    clock, view = room.clock, room.registry.views["lineagerecords"]
    ended = clock.now() - MIN_RETENTION
    writer = IssuanceLogWriter(api_of(room))
    for number, end in enumerate((ended, ended, ended, clock.now())):
        await writer.append({**entry(number), "notAfter": rfc3339(end)})
    fenced = FencedApi(api_of(room), lambda: True)
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    reconciler = Reconciler([trimmer], fenced, clock, counting_entropy(), record=writer.append)
    running = asyncio.create_task(reconciler.run())
    await clock.advance(GRACE.total_seconds() - 1)
    assert len(list(view.list())) == 4
    await clock.advance(1)
    await until(lambda: len(list(view.list())) == 2)
    result = verified(room)
    assert (result.start.sequence, result.trimmed_until, result.head.sequence) == (3, rfc3339(ended), 5)
    assert [one["serialNumber"] for one in result.entries] == ["3"]
    await clock.advance(DAY.total_seconds())
    assert verified(room).head == result.head, "a log with nothing to trim does not grow"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await IssuanceLogWriter(api_of(room)).append(entry(9))
    assert verified(room).head.sequence == 6, "a new writer goes on behind a trim"
