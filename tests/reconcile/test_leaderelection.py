"""Leader election by Lease: one holder at a time, and succession after expiry, release or death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import CommitPrecondition
from mooring.errors import ConflictError, StorageError
from mooring.reconcile import leaderelection
from mooring.reconcile.leaderelection import (
    LEASE_SECONDS,
    NAME,
    NAMESPACE,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Election,
    LeaderElector,
)
from mooring.reconcile.registryapi import RegistryApi
from tests.support.loops import api_of, until
from tests.support.manualclock import settle
from tests.support.registryroom import Room, in_room, masters_only


class Candidate:
    """One candidate with a flag for its running work."""

    def __init__(
        self, room: Room, identity: str, api: RegistryApi | None = None, gone: Callable[[str], bool] | None = None,
        election: Election | None = None,
    ):  # fmt: skip
        self.elector = LeaderElector(
            api or api_of(room), room.clock, identity, gone or (lambda holder: False), election
        )
        self.working = False
        self.begun = 0
        self.fails = False
        self.breaks = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def work(self) -> None:
        self.begun += 1
        self.working = True
        self.breaks = asyncio.Event()
        try:
            if not self.fails:
                await self.breaks.wait()
            raise StorageError("the work broke")
        finally:
            self.working = False

    def start(self) -> None:
        self._task = asyncio.ensure_future(self.elector.run(self.work))

    async def stop(self) -> None:
        """A clean stop."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def competing(*candidates: Candidate) -> AsyncIterator[None]:
    for candidate in candidates:
        candidate.start()
        await settle()
    try:
        yield
    finally:
        for candidate in candidates:
            await candidate.stop()


class Unreliable(RegistryApi):
    """Registry access that can fail or hang."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.registry, masters_only, room.clock)
        self.error: Exception | None = None
        self.hangs = False

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return await super().get(plural, namespace, name)


async def lease(room: Room) -> Obj:
    found: Obj = (await room.get("leases", NAME, NAMESPACE)).obj["spec"]
    return found


@in_room
async def test_the_first_candidate_leads_and_writes_the_lease(room: Room) -> None:
    one, two = Candidate(room, "one"), Candidate(room, "two")
    async with competing(one, two):
        assert (one.working, two.working) == (True, False)
        assert (one.elector.leading, two.elector.leading) == (True, False)
        spec = await lease(room)
        assert spec == {
            "holderIdentity": "one",
            "leaseDurationSeconds": 15,
            "leaseTransitions": 0,
            "acquireTime": "2026-01-02T03:04:05.000000Z",
            "renewTime": "2026-01-02T03:04:05.000000Z",
        }


@in_room
async def test_a_running_holder_renews_and_others_wait(room: Room) -> None:
    one, two = Candidate(room, "one"), Candidate(room, "two")
    async with competing(one, two):
        await room.clock.advance(10 * LEASE_SECONDS)
        assert (one.working, one.begun, two.begun) == (True, 1, 0)
        spec = await lease(room)
        assert spec["acquireTime"] == "2026-01-02T03:04:05.000000Z"
        assert spec["renewTime"] == "2026-01-02T03:06:35.000000Z"


@in_room
async def test_after_a_clean_stop_another_candidate_leads_at_its_next_attempt(room: Room) -> None:
    one, two = Candidate(room, "one"), Candidate(room, "two")
    async with competing(one, two):
        await one.stop()
        assert not one.working
        spec = await lease(room)
        assert (spec.get("holderIdentity", ""), spec["leaseDurationSeconds"]) == ("", 1)
        await room.clock.advance(RETRY_SECONDS)
        assert two.working
        assert (await lease(room))["leaseTransitions"] == 1


async def silence(candidate: Candidate, api: Unreliable) -> None:
    """Stop a candidate as a dead machine would: no work, no renewal, no release."""
    api.error = StorageError("dead")
    await candidate.stop()


@in_room
async def test_a_dead_holder_is_succeeded_when_the_lease_expires_on_the_candidates_clock(room: Room) -> None:
    api = Unreliable(room)
    one, two = Candidate(room, "one", api), Candidate(room, "two")
    async with competing(one, two):
        await silence(one, api)
        await room.clock.advance(LEASE_SECONDS - 1)
        assert not two.working
        await room.clock.advance(RETRY_SECONDS)
        assert two.working


@in_room
async def test_a_new_candidate_waits_the_whole_lease_whatever_the_holders_clock(room: Room) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        await silence(one, api)
    await room.clock.advance(100 * LEASE_SECONDS)
    two = Candidate(room, "two")
    async with competing(two):
        await room.clock.advance(LEASE_SECONDS - 1)
        assert not two.working, "it has seen this renewal only now"
        await room.clock.advance(RETRY_SECONDS)
        assert two.working


@in_room
async def test_a_holder_known_to_be_dead_is_succeeded_at_once(room: Room) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        await silence(one, api)
    two = Candidate(room, "two", gone=lambda holder: holder == "one")
    async with competing(two):
        await until(lambda: two.working)
        assert room.clock.monotonic() == 0


@in_room
async def test_a_candidate_that_is_told_to_look_succeeds_an_ended_holder_without_waiting(room: Room) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    ended: set[str] = set()
    two = Candidate(room, "two", gone=ended.__contains__)
    async with competing(one), competing(two):
        two.elector.look_now()  # the holder lives: one look, and the next after the usual time
        await settle()
        assert not two.working
        await silence(one, api)
        ended.add("one")
        two.elector.look_now()
        await until(lambda: two.working)
        assert room.clock.monotonic() == 0


@in_room
async def test_a_restarted_holder_of_the_same_name_leads_at_once(room: Room) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        await silence(one, api)
    again = Candidate(room, "one")
    async with competing(again):
        await until(lambda: again.working)
        assert (await lease(room)).get("leaseTransitions", 0) == 0


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"error": StorageError("no disk")}, id="the store answers with errors"),
        pytest.param({"error": OSError("no network")}, id="something unforeseen happens"),
        pytest.param({"hangs": True}, id="the store does not answer at all"),
    ],
)
@in_room
async def test_a_holder_that_cannot_renew_stops_in_time_and_leads_again_when_it_can(
    room: Room, trouble: dict[str, object]
) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        await room.clock.advance(20)
        vars(api).update(trouble)
        await room.clock.advance(RENEW_SECONDS - 0.5)
        assert (one.working, one.elector.leading) == (True, True)
        await room.clock.advance(0.5)
        assert (one.working, one.elector.leading) == (False, False), "before anybody else may begin"
        assert RENEW_SECONDS < LEASE_SECONDS
        api.error, api.hangs = None, False
        await room.clock.advance(RETRY_SECONDS)
        assert (one.working, one.begun) == (True, 2)


@in_room
async def test_a_server_that_hangs_is_a_failure_after_the_renewal_deadline(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    api = Unreliable(room)
    one, two = Candidate(room, "one", api), Candidate(room, "two", api)
    async with competing(one, two):
        assert (one.working, two.working) == (True, False)
        api.hangs = True
        await room.clock.advance(RENEW_SECONDS + RETRY_SECONDS)
        assert [one.elector.failure, two.elector.failure] == ["no answer in time"] * 2, "the holder, and who waits"
        assert (one.working, two.working) == (False, False)
        api.hangs = False
        await room.clock.advance(RENEW_SECONDS + RETRY_SECONDS)
        assert (one.elector.failure, two.elector.failure) == ("", "")
        assert caplog.messages.count("the controllers' Lease cannot be renewed: no answer in time") == 2


@in_room
async def test_the_lease_and_its_times_can_be_chosen(room: Room) -> None:
    election = Election(namespace="default", name="mine", lease_seconds=60, renew_seconds=40.0, retry_seconds=10.0)
    api = Unreliable(room)
    one = Candidate(room, "one", api, election=election)
    two = Candidate(room, "two", election=election)
    async with competing(one, two):
        assert (await room.get("leases", "mine", "default")).obj["spec"]["leaseDurationSeconds"] == 60
        await room.clock.advance(20)
        api.error = StorageError("dead")
        await room.clock.advance(39)
        assert one.working
        await room.clock.advance(1)
        assert (one.working, two.working) == (False, False)
        await room.clock.advance(30)
        assert two.working


@in_room
async def test_a_failure_that_lasts_is_logged_when_it_begins_and_when_it_ends(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mooring.controllers")
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    api.error = StorageError("no disk")
    async with competing(one):
        await room.clock.advance(60)
        assert one.elector.failure == "no disk"
        api.error = None
        await room.clock.advance(RETRY_SECONDS)
        assert one.elector.failure == ""
        assert caplog.messages == [
            "the controllers' Lease cannot be renewed: no disk",
            "the controllers' Lease can be renewed again",
            "controllers run in this process (one)",
        ]


@in_room
async def test_a_missing_namespace_of_the_lease_is_named(room: Room) -> None:
    one = Candidate(room, "one", election=Election(namespace="nowhere"))
    async with competing(one):
        assert one.elector.failure == 'there is no namespace "nowhere" for the Lease'
        assert not one.working


@in_room
async def test_the_holder_is_named_once_while_others_wait(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mooring.controllers")
    one, two = Candidate(room, "one"), Candidate(room, "two")
    async with competing(one, two):
        await room.clock.advance(10 * LEASE_SECONDS)
    assert caplog.messages.count("the controllers run in one; waiting for its Lease") == 1


@in_room
async def test_a_short_failure_does_not_end_the_lead(room: Room) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        api.error = StorageError("hiccup")
        await room.clock.advance(RENEW_SECONDS - 1)
        api.error = None
        await room.clock.advance(5 * LEASE_SECONDS)
        assert (one.working, one.begun) == (True, 1)


@in_room
async def test_a_holder_stops_when_it_observes_another_holder(room: Room) -> None:
    one = Candidate(room, "one")
    async with competing(one):
        await room.patch("leases", NAME, {"spec": {"holderIdentity": "usurper"}}, NAMESPACE)
        await room.clock.advance(RETRY_SECONDS)
        assert not one.working
    assert (await lease(room))["holderIdentity"] == "usurper", "it does not release what is not its own"


@in_room
async def test_a_stop_releases_only_its_own_lease(room: Room) -> None:
    one = Candidate(room, "one")
    async with competing(one):
        await room.patch("leases", NAME, {"spec": {"holderIdentity": "usurper"}}, NAMESPACE)
    assert (await lease(room))["holderIdentity"] == "usurper"


@in_room
async def test_a_stop_during_a_renewal_releases_the_lease(room: Room) -> None:
    class Slow(RegistryApi):
        """The renewal under way is stored after it was cancelled, as a commit in a thread is."""

        async def update(
            self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
        ) -> Obj:
            if obj["spec"]["holderIdentity"] == "" and obj["spec"]["renewTime"] != "2026-01-02T03:04:06.000000Z":
                await room.patch("leases", NAME, {"spec": {"renewTime": "2026-01-02T03:04:06.000000Z"}}, NAMESPACE)
            return await super().update(plural, obj, subresource, precondition)

    one = Candidate(room, "one", Slow(room.registry, masters_only, room.clock))
    async with competing(one):
        assert one.working
    assert (await lease(room)).get("holderIdentity", "") == ""


@in_room
async def test_a_lease_that_others_write_without_end_is_left(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    class Disturbed(RegistryApi):
        async def update(
            self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
        ) -> Obj:
            if obj["spec"]["holderIdentity"] == "":
                raise ConflictError("it was changed")
            return await super().update(plural, obj, subresource, precondition)

    async with competing(Candidate(room, "one", Disturbed(room.registry, masters_only, room.clock))):
        pass
    assert "could not be released: it was changed" in caplog.text


@in_room
async def test_a_candidate_that_loses_the_race_for_a_free_lease_waits(room: Room) -> None:
    class Late(RegistryApi):
        async def update(
            self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
        ) -> Obj:
            if obj["spec"]["holderIdentity"] == "late":
                await room.patch("leases", NAME, {"spec": {"holderIdentity": "faster"}}, NAMESPACE)
            return await super().update(plural, obj, subresource, precondition)

    spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
    await room.create("leases", {"metadata": {"name": NAME}, "spec": spec}, NAMESPACE)
    late = Candidate(room, "late", Late(room.registry, masters_only, room.clock))
    async with competing(late):
        await room.clock.advance(0.5)
        assert not late.working
    assert (await lease(room))["holderIdentity"] == "faster"


@in_room
async def test_two_concurrent_candidates_do_not_both_lead(room: Room) -> None:
    candidates = [Candidate(room, str(number)) for number in range(5)]
    for candidate in candidates:
        candidate.start()
    await until(lambda: any(candidate.working for candidate in candidates))
    for _ in range(20):
        await room.clock.advance(1)
        assert sum(candidate.working for candidate in candidates) == 1
    for candidate in candidates:
        await candidate.stop()


@in_room
async def test_failed_work_is_started_again_without_losing_the_lease(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    one = Candidate(room, "one")
    one.fails = True
    async with competing(one):
        await until(lambda: one.begun == 1)
        one.fails = False
        await room.clock.advance(RETRY_SECONDS)
        assert (one.working, one.begun) == (True, 2)
        assert (await lease(room)).get("leaseTransitions", 0) == 0
    assert "the controllers stopped: the work broke" in caplog.text


@in_room
async def test_work_that_fails_while_a_renewal_hangs_is_noticed_at_once(room: Room) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        api.hangs = True
        await room.clock.advance(RETRY_SECONDS + 1)
        assert one.elector.leading
        one.breaks.set()
        await until(lambda: not one.elector.leading)
        api.hangs = False


@in_room
async def test_a_stop_that_cannot_release_logs_it_and_ends(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    api = Unreliable(room)
    one = Candidate(room, "one", api)
    async with competing(one):
        await silence(one, api)
    assert "could not be released" in caplog.text
    assert (await lease(room))["holderIdentity"] == "one"


@in_room
async def test_a_stop_waits_for_no_store_that_does_not_answer(
    room: Room, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderelection, "RELEASE_SECONDS", 0.0)
    api = Unreliable(room)
    async with competing(Candidate(room, "one", api)):
        api.hangs = True
    assert "could not be released: the store does not answer" in caplog.text
