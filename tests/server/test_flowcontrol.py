"""Test flow control: seats, fair turns, queues and anonymous requests.

Source: docs/protocol/flow-control.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import TooManyRequestsError
from mooring.server import flowcontrol
from mooring.server.flowcontrol import FlowControl
from mooring.server.transport import http1
from mooring.server.transport.http import Application, Request, Response
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.manualclock import ManualClock, settle
from tests.support.serverroom import Server, in_server


class Crowd:
    """Callers of a FlowControl, by name; `order` is who got a seat when."""

    def __init__(self, flow: FlowControl) -> None:
        self.flow = flow
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def arrive(self, user: str) -> asyncio.Task[None]:
        """Start a request of a user, "" for anonymous, which keeps its seat until it is released."""

        async def come() -> None:
            await (self.flow.enter(user) if user else self.flow.enter_anonymous())
            self.order.append(user)

        task = asyncio.ensure_future(come())
        self.tasks.append(task)
        return task


def runs(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type] # tests here are coroutines

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@runs
async def test_those_who_wait_are_served_round_robin_by_user() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=1))
    assert crowd.flow.try_enter("first")
    for user in ("storm", "storm", "storm", "storm", "ann", "bob"):
        crowd.arrive(user)
    await settle()
    for _ in range(6):
        crowd.flow.leave()
        await settle()
    assert crowd.order == ["storm", "ann", "bob", "storm", "storm", "storm"]


@runs
async def test_a_seat_that_is_free_while_others_wait_is_not_taken_past_them() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=1))
    assert crowd.flow.try_enter("first")
    crowd.arrive("ann")
    await settle()
    crowd.flow.leave()
    assert not crowd.flow.try_enter("first")
    await settle()
    assert crowd.order == ["ann"]


@runs
async def test_who_is_alone_has_many_places_in_a_turn_and_the_rest_waits_for_the_next() -> None:
    flow = FlowControl(ManualClock())
    crowd = Crowd(flow)
    for _ in range(2 * flowcontrol.ALONE_PER_TURN + 1):
        crowd.arrive("storm")
    await asyncio.sleep(0)  # they arrive in one turn
    assert len(crowd.order) == flowcontrol.ALONE_PER_TURN
    await settle()
    assert len(crowd.order) == 2 * flowcontrol.ALONE_PER_TURN + 1


@runs
async def test_of_several_users_each_has_few_places_in_a_turn_and_the_rest_waits_for_the_next() -> None:
    flow = FlowControl(ManualClock())
    crowd = Crowd(flow)
    assert flow.try_enter("ann")
    for _ in range(2 * flowcontrol.PER_TURN + 1):
        crowd.arrive("storm")
    await asyncio.sleep(0)
    assert crowd.order == ["storm"] * flowcontrol.PER_TURN
    assert not flow.try_enter("storm"), "who waits is not overtaken by their own next request"
    assert flow.try_enter("bob"), "a storm at its limit holds nobody else up"
    await settle()
    assert crowd.order == ["storm"] * (2 * flowcontrol.PER_TURN + 1)


@runs
async def test_who_comes_to_a_user_who_is_alone_is_served_at_once_and_shares_the_turns_from_then_on() -> None:
    flow = FlowControl(ManualClock())
    crowd = Crowd(flow)
    for _ in range(3 * flowcontrol.ALONE_PER_TURN):
        crowd.arrive("storm")
    await asyncio.sleep(0)
    assert flow.try_enter("ann")
    for turn in range(1, 4):
        await settle(1)
        assert len(crowd.order) <= flowcontrol.ALONE_PER_TURN + turn * flowcontrol.PER_TURN
    await settle(3 * flowcontrol.ALONE_PER_TURN)
    assert len(crowd.order) == 3 * flowcontrol.ALONE_PER_TURN


@in_server
async def test_while_turns_are_shared_a_reply_does_not_wait_for_what_is_done_for_others(server: Server) -> None:
    ann, bob = (server.user(name, "kubeadm:cluster-admins") for name in ("ann", "bob"))
    alone = [await server.response("GET", "/api/v1/namespaces", via=ann) for _ in range(2)]
    shared = [await server.response("GET", "/api/v1/namespaces", via=via) for via in (bob, ann)]
    await settle()
    await server.clock.advance(flowcontrol.SHARED_SECONDS)
    again = [await server.response("GET", "/api/v1/namespaces", via=ann)]
    await settle()
    again.append(await server.response("GET", "/api/v1/namespaces", via=ann))
    assert [reply.at_once for reply in (*alone, *shared, *again)] == [False, False, True, True, True, False]


@pytest.mark.parametrize("at_once", [False, True], ids=["with the others of its turn", "at once"])
def test_a_reply_leaves(at_once: bool) -> None:
    """Test that only a reply `at_once` is flushed; the transport sends others in the next turn of the loop."""
    done: list[str] = []

    class Transport:
        connection = TlsConnection("192.0.2.1")

        def write(self, data: bytes) -> None:
            done.append("write")

        def flush(self) -> None:
            done.append("flush")

        def is_closing(self) -> bool:
            return False

        def resume_reading(self) -> None:
            pass

        def abort(self) -> None:
            raise AssertionError

    async def handler(request: Request) -> Response:
        return Response(200, b"{}", at_once=at_once)

    async def story() -> None:
        application = Application(handler)
        protocol = http1.Http1Connection(application)
        protocol.connection_made(cast(Any, Transport()))
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.gather(*application.tasks)
        protocol.connection_lost(None)

    asyncio.run(story())
    assert done == ["write", "write", *["flush"] * at_once]


@runs
async def test_anonymous_callers_run_beside_a_storm_that_rests() -> None:
    flow = FlowControl(ManualClock())
    crowd = Crowd(flow)
    flow.try_enter("ann")
    for _ in range(flowcontrol.PER_TURN + 1):
        crowd.arrive("storm")
    crowd.arrive("")
    await asyncio.sleep(0)
    assert crowd.order == [*["storm"] * flowcontrol.PER_TURN, ""]
    await settle()


@runs
async def test_turns_are_whole_again_a_moment_after_the_others_have_gone() -> None:
    clock = ManualClock()
    flow = FlowControl(clock)
    for user in ("ann", "storm"):
        assert flow.try_enter(user)
    assert [flow.try_enter("storm") for _ in range(flowcontrol.PER_TURN)][-1] is False
    await clock.advance(flowcontrol.SHARED_SECONDS)
    assert flow.try_enter("storm"), "the turn in which it is found out"
    await settle()
    assert all(flow.try_enter("storm") for _ in range(flowcontrol.ALONE_PER_TURN))
    assert not flow.try_enter("storm")


@runs
async def test_turns_stay_shared_while_somebody_else_goes_on_asking() -> None:
    clock = ManualClock()
    flow = FlowControl(clock)
    for user in ("ann", "storm") * 5:
        assert flow.try_enter(user)
        await clock.advance(flowcontrol.SHARED_SECONDS / 2)
        assert [flow.try_enter("storm") for _ in range(flowcontrol.PER_TURN + 1)][-1] is False
        await clock.advance(flowcontrol.SHARED_SECONDS / 4)


@runs
async def test_a_user_who_rests_is_429_beyond_the_queue_and_nobody_else_is() -> None:
    flow = FlowControl(ManualClock(), seats=2 * flowcontrol.QUEUE_PER_USER)
    crowd = Crowd(flow)
    flow.try_enter("ann")
    for _ in range(flowcontrol.PER_TURN + flowcontrol.QUEUE_PER_USER + 1):
        crowd.arrive("storm")
    await asyncio.sleep(0)
    assert flow.rejected == 1
    assert flow.try_enter("ann")
    await settle(flowcontrol.QUEUE_PER_USER + 10)
    assert isinstance(crowd.tasks[-1].exception(), TooManyRequestsError)
    assert len(crowd.order) == flowcontrol.PER_TURN + flowcontrol.QUEUE_PER_USER


@runs
async def test_anonymous_callers_wait_while_users_do() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=1))
    assert crowd.flow.try_enter("first")
    for user in ("", "ann", "", "bob"):
        crowd.arrive(user)
    await settle()
    for _ in range(2):
        crowd.flow.leave()
        await settle()
    assert crowd.order == ["ann", "bob"]
    crowd.flow.leave()
    await settle()
    assert crowd.order == ["ann", "bob", ""]


@runs
async def test_a_seat_an_anonymous_caller_leaves_goes_to_a_waiting_user() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=1))
    await crowd.flow.enter_anonymous()
    crowd.arrive("")
    crowd.arrive("ann")
    await settle()
    assert crowd.order == []
    crowd.flow.leave_anonymous()
    await settle()
    assert crowd.order == ["ann"]


@runs
async def test_anonymous_callers_are_served_at_once_while_there_is_nothing_better_to_do() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=600))
    for _ in range(flowcontrol.ANONYMOUS_SEATS + 5):
        crowd.arrive("")
    await settle(100)
    assert crowd.order == [""] * flowcontrol.ANONYMOUS_SEATS, "a tenth of the seats at the most"
    assert crowd.flow.try_enter("first"), "the rest stays free for users"
    crowd.flow.leave_anonymous()
    await settle()
    assert len(crowd.order) == flowcontrol.ANONYMOUS_SEATS + 1


@runs
async def test_few_anonymous_callers_are_served_in_one_turn_of_the_loop() -> None:
    flow = FlowControl(ManualClock(), seats=600)
    taken = 0
    async with asyncio.timeout(10):
        while not await flow.enter_anonymous():  # True for the first that waits for the next turn
            taken += 1
    assert taken == flowcontrol.ANONYMOUS_PER_TURN


@runs
async def test_a_fixed_rate_for_anonymous_callers_is_kept() -> None:
    clock = ManualClock()
    flow = FlowControl(clock, seats=600, anonymous_per_second=2.0)
    outcomes = []
    for _ in range(3):
        for _ in range(3):
            try:
                await flow.enter_anonymous()
                outcomes.append("in")
                flow.leave_anonymous()
            except TooManyRequestsError:
                outcomes.append("429")
        await clock.advance(0.5)
    assert outcomes == ["in", "in", "429", "in", "429", "429", "in", "429", "429"]
    assert flow.rejected == 5


@runs
async def test_a_full_queue_is_429_for_that_user_only() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=1))
    assert crowd.flow.try_enter("first")
    for _ in range(flowcontrol.QUEUE_PER_USER):
        crowd.arrive("storm")
    await settle()
    with pytest.raises(TooManyRequestsError) as caught:
        await crowd.flow.enter("storm")
    assert caught.value.details.retry_after == 1
    patient = crowd.arrive("ann")
    await settle()
    assert not patient.done()
    assert (crowd.flow.rejected, crowd.flow.queued) == (1, flowcontrol.QUEUE_PER_USER + 1)
    for task in crowd.tasks:
        task.cancel()


def test_the_table_of_waiting_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flowcontrol, "QUEUED_USERS", 2)
    monkeypatch.setattr(flowcontrol, "ANONYMOUS_QUEUE", 1)

    async def body() -> None:
        crowd = Crowd(FlowControl(ManualClock(), seats=1))
        assert crowd.flow.try_enter("first")
        for user in ("a", "b", ""):
            crowd.arrive(user)
        await settle()
        with pytest.raises(TooManyRequestsError):
            await crowd.flow.enter("c")
        with pytest.raises(TooManyRequestsError):
            await crowd.flow.enter_anonymous()
        for task in crowd.tasks:
            task.cancel()

    asyncio.run(body())


@pytest.mark.parametrize("user", ["ann", ""], ids=["a user", "an anonymous caller"])
def test_who_gives_up_in_the_moment_of_being_served_gives_the_seat_back(user: str) -> None:
    async def body() -> None:
        crowd = Crowd(FlowControl(ManualClock(), seats=1))
        assert crowd.flow.try_enter("first")
        given_up = crowd.arrive(user)
        await settle()
        crowd.flow.leave()
        given_up.cancel()
        await settle()
        assert crowd.order == []
        assert crowd.flow.try_enter("first")

    asyncio.run(body())


@runs
async def test_who_gave_up_while_waiting_is_passed_over() -> None:
    crowd = Crowd(FlowControl(ManualClock(), seats=1))
    assert crowd.flow.try_enter("first")
    gone = [crowd.arrive(user) for user in ("ann", "")]
    await settle()
    for task in gone:
        task.cancel()
    crowd.arrive("bob")
    await settle()
    crowd.flow.leave()
    await settle()
    assert crowd.order == ["bob"]
    crowd.flow.leave()
    assert crowd.flow.try_enter("first")


@given(st.lists(st.tuples(st.sampled_from(["arrive", "leave", "give up"]), st.sampled_from(["", "a", "b", "c"]))))
def test_no_history_loses_a_seat_or_makes_one(history: list[tuple[str, str]]) -> None:
    async def body() -> None:
        seats = 3
        flow = FlowControl(ManualClock(), seats=seats)
        waiting: list[tuple[asyncio.Task[Any], str]] = []
        seated: list[str] = []

        async def come(user: str) -> None:
            await (flow.enter(user) if user else flow.enter_anonymous())
            seated.append(user)

        for step, user in history:
            if step == "arrive":
                waiting.append((asyncio.ensure_future(come(user)), user))
            elif step == "leave" and seated:
                flow.leave() if seated.pop(0) else flow.leave_anonymous()
            elif step == "give up" and waiting:
                waiting.pop()[0].cancel()
            await settle(4)
            waiting = [one for one in waiting if not one[0].done()]
            assert len(seated) <= seats
            assert len(seated) == seats or not waiting, "nobody waits while a seat is free"
        for task, _ in waiting:
            task.cancel()

    asyncio.run(body())


@in_server
async def test_a_slow_sender_takes_no_seat_and_who_may_not_send_is_not_listened_to(server: Server) -> None:
    handler = server.pipeline
    flow = handler.flow
    free = flow.free_seats
    arrived = asyncio.Event()
    asked = 0

    async def slowly() -> Any:
        nonlocal asked
        asked += 1
        await arrived.wait()
        return b'{"metadata":{"name":"late"}}', False

    def post(via: TlsConnection) -> Request:
        sent = [(b"content-type", b"application/json")]
        return Request("POST", "/api/v1/namespaces/default/configmaps", b"", sent, via, slowly)

    sending = asyncio.ensure_future(handler(post(server.user("admin", "kubeadm:cluster-admins"))))
    await settle()
    assert (asked, flow.free_seats) == (1, free)
    refused = await handler(post(server.user("nobody")))
    assert (refused.status, asked) == (403, 1)
    arrived.set()
    assert (await sending).status == 201


@in_server
async def test_with_every_seat_taken_users_wait_and_masters_leases_and_health_do_not(server: Server) -> None:
    flow = server.pipeline.flow
    flow.free_seats = 0
    waiting = asyncio.ensure_future(server.get("/api/v1/namespaces", via=server.user("bob", "kubeadm:cluster-admins")))
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"
    served = [
        asyncio.ensure_future(server.get(target, via=via))
        for target, via in (
            ("/api/v1/namespaces", server.admin),
            ("/readyz", server.user("bob")),
            (lease, server.user("system:node:n", "system:nodes")),
        )
    ]
    await settle()
    assert [task.done() for task in (waiting, *served)] == [False, True, True, True]
    assert [task.result().status for task in served] == [200, 200, 404]
    flow.leave()
    assert (await waiting).status == 200
    assert flow.free_seats == 1
