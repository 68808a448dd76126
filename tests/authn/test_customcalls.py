"""Somebody else's code in this process: whatever it does is a refusal of it alone, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime

import pytest

from mooring.authn import verdict
from mooring.authn.chain import Found, Pending
from mooring.authn.plugin import (
    BlockingAuthenticator,
    NotMine,
    Offered,
    PluginAuthenticator,
    Rejected,
    Result,
    Secret,
    User,
)
from mooring.authn.verdict import Deferred, Verdict
from mooring.server.authentication import custom as runtime
from mooring.server.authentication.custom import CustomCalls
from mooring.server.authentication.deferred import DeferredAuthentication
from tests.support.manualclock import ManualClock, settle

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JANE = User("jane")
SECONDS = 30
"""How long a thread of these tests may be kept; nobody waits for it."""


def offered(secret: str = "hunter2") -> Offered:
    return Offered(token=Secret(secret), now=NOW)


class Blocking:
    """The plain form."""

    def __init__(self, call: Callable[[], Result] = lambda: JANE) -> None:
        self._call = call

    def authenticate(self, offered: Offered) -> Result:
        return self._call()


class Remote:
    """The asynchronous form."""

    def __init__(self, call: Callable[[], Result] = lambda: JANE) -> None:
        self._call = call

    async def authenticate(self, offered: Offered) -> Result:
        await asyncio.sleep(0)
        return self._call()


class Stubborn:
    """Hears nothing of being cancelled."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.cancelled = 0

    async def authenticate(self, offered: Offered) -> Result:
        while not self.open.is_set():
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return JANE


class Silent:
    """Waits for ever, and lets itself be cancelled."""

    async def authenticate(self, offered: Offered) -> Result:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")


class Gate:
    """A plain method that waits until it may go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)

    def authenticate(self, offered: Offered) -> Result:
        self.entered.release()
        assert self.open.wait(SECONDS)
        return JANE


def raising(kind: type[BaseException]) -> Callable[[], Result]:
    def call() -> Result:
        raise kind("hunter2 is wrong")

    return call


class Odd(BaseException):
    """What no `except Exception` meets."""


ERRORS = [
    pytest.param(ValueError, id="an error"),
    pytest.param(SystemExit, id="an end of the process"),
    pytest.param(KeyboardInterrupt, id="an interrupt"),
    pytest.param(GeneratorExit, id="the end of a generator"),
    pytest.param(asyncio.CancelledError, id="a cancellation of its own"),
    pytest.param(MemoryError, id="no memory"),
    pytest.param(Odd, id="what is no Exception"),
]


@pytest.mark.parametrize("form", [Blocking, Remote])
@pytest.mark.parametrize("kind", ERRORS)
def test_what_it_raises_is_a_refusal_that_tells_the_type_and_no_more(
    form: type[Blocking | Remote], kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        code = CustomCalls("ldap", form(raising(kind)))
        assert await code.authenticate(offered()) == Rejected("failed", f"it raised {kind.__name__}")
        assert await CustomCalls("ldap", form()).authenticate(offered()) == JANE, "the server lives"

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    assert f"authenticator ldap failed: {kind.__name__}" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("form", "name"), [(Blocking, "StopIteration"), (Remote, "RuntimeError")])
def test_not_even_the_end_of_an_iteration_gets_lost(form: type[Blocking | Remote], name: str) -> None:
    async def run() -> None:
        assert await CustomCalls("a", form(raising(StopIteration))).authenticate(offered()) == Rejected(
            "failed", f"it raised {name}"
        )

    asyncio.run(run())


@pytest.mark.parametrize("form", [Blocking, Remote])
@pytest.mark.parametrize("said", [JANE, NotMine("unknown-user"), Rejected("wrong-password"), None, 42])
def test_what_it_answers_is_handed_on_as_it_is(form: type[Blocking | Remote], said: Result) -> None:
    async def run() -> None:
        assert await CustomCalls("a", form(lambda: said)).authenticate(offered()) is said

    asyncio.run(run())


def test_a_plain_method_runs_beside_the_event_loop_and_a_coroutine_in_it() -> None:
    places: list[threading.Thread] = []

    def noting() -> Result:
        places.append(threading.current_thread())
        return JANE

    async def run() -> None:
        for form in (Blocking, Remote):
            await CustomCalls("ldap", form(noting)).authenticate(offered())

    asyncio.run(run())
    assert places[0].name == "authenticate-ldap"
    assert places[0].daemon, "the process does not wait for it"
    assert places[1] is threading.main_thread()


async def decided(
    stage: DeferredAuthentication, code: CustomCalls, name: str, seconds: float = SECONDS
) -> Verdict | None:
    """What the second stage makes of it. `seconds` zero: the deadline passes at once."""

    async def foreign() -> Verdict | None:
        said = await code.authenticate(offered())
        return verdict.NotMine("answered") if said is JANE else None

    def chain() -> Generator[Pending, Found, Found]:
        return (yield Pending(name, Deferred(coroutine=foreign, deadline=seconds)))

    return (await stage.settle(chain())).verdict


def staged(test: Callable[[DeferredAuthentication], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = DeferredAuthentication(ManualClock(), bytes, {})
        try:
            await test(stage)
        finally:
            await stage.close()

    asyncio.run(run())


TIMED_OUT = verdict.Rejected("timed-out", "no verdict within 0 s")
ANSWERED = verdict.NotMine("answered")


def test_one_that_blocks_keeps_its_threads_and_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "AT_ONCE", 2)
    gate = Gate()

    async def test(stage: DeferredAuthentication) -> None:
        stuck, well = CustomCalls("stuck", gate), CustomCalls("well", Blocking())
        for _ in range(2):
            assert await decided(stage, stuck, "stuck", 0) == TIMED_OUT
            assert gate.entered.acquire(timeout=SECONDS)
        for _ in range(5):
            assert await decided(stage, stuck, "stuck", 0) == TIMED_OUT
        kept = [thread for thread in threading.enumerate() if thread.name == "authenticate-stuck"]
        assert len(kept) == 2, "no more threads than it may have"
        assert not gate.entered.acquire(blocking=False), "who was given up before the turn came is never asked"
        assert await decided(stage, well, "well") == ANSWERED
        gate.open.set()
        assert await decided(stage, stuck, "stuck") == ANSWERED, "a call that ends makes room"

    staged(test)


@pytest.mark.parametrize("kind", [Silent, Stubborn])
def test_a_coroutine_that_hangs_is_left_at_the_deadline(kind: type[Silent | Stubborn]) -> None:
    async def test(stage: DeferredAuthentication) -> None:
        guest = kind()
        code = CustomCalls("slow", guest)
        assert await decided(stage, code, "slow", 0) == TIMED_OUT
        await settle()
        if isinstance(guest, Stubborn):
            assert guest.cancelled == 1
            guest.open.set()
            assert await decided(stage, code, "slow") == ANSWERED

    staged(test)


def test_one_that_does_not_let_itself_be_cancelled_keeps_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "AT_ONCE", 1)

    async def test(stage: DeferredAuthentication) -> None:
        guest = Stubborn()
        code = CustomCalls("slow", guest)
        for _ in range(4):
            assert await decided(stage, code, "slow", 0) == TIMED_OUT
        assert guest.cancelled == 1, "the others were never asked"
        guest.open.set()
        assert await decided(stage, code, "slow") == ANSWERED

    staged(test)


def test_whoever_finds_too_many_waiting_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "AT_ONCE", 1)
    monkeypatch.setattr(runtime, "MAX_WAITING", 2)

    async def run() -> None:
        guest = Stubborn()
        code = CustomCalls("slow", guest)
        tasks = [asyncio.create_task(code.authenticate(offered())) for _ in range(3)]
        await settle()
        assert await code.authenticate(offered()) == Rejected("too-busy")
        tasks[1].cancel()
        await settle()
        tasks[1] = asyncio.create_task(code.authenticate(offered()))
        await settle()
        guest.open.set()
        assert await asyncio.gather(*tasks) == [JANE] * 3, "who left made room for another"

    asyncio.run(run())


def test_a_machine_without_threads_refuses_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        code = CustomCalls("a", Blocking())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none_left)
            for _ in range(runtime.AT_ONCE + 1):
                assert await code.authenticate(offered()) == Rejected("failed", "it raised RuntimeError")
        assert await code.authenticate(offered()) == JANE

    asyncio.run(run())


@pytest.mark.parametrize("form", [Blocking, Remote])
def test_nothing_of_a_credential_is_kept(form: type[Blocking | Remote], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "AT_ONCE", 1)

    secret = f"nothing is kept of {form.__name__}"

    async def run() -> None:
        for call in (lambda: JANE, raising(ValueError), raising(SystemExit)):
            code = CustomCalls("a", form(call))
            for _ in range(20):
                await code.authenticate(offered(secret))
        stuck = CustomCalls("slow", Silent())
        tasks = [asyncio.create_task(stuck.authenticate(offered(secret))) for _ in range(20)]
        await settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle()
        del tasks, task
        gc.collect()
        kept = [thing for thing in gc.get_objects() if isinstance(thing, Offered)]
        assert [thing for thing in kept if thing.token == Secret(secret)] == []

    asyncio.run(run())


def test_a_call_that_ends_after_the_server_harms_nobody() -> None:
    gate = Gate()

    async def run() -> None:
        task = asyncio.create_task(CustomCalls("late", gate).authenticate(offered()))
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    late = [thread for thread in threading.enumerate() if thread.name == "authenticate-late"]
    gate.open.set()
    for thread in late:
        thread.join(SECONDS)
    assert len(late) == 1, "an error of the thread would have failed this test"


ENDLESS = """
import asyncio, sys, threading
from datetime import UTC, datetime
from mooring.authn.plugin import Offered, Secret
from mooring.server.authentication.custom import CustomCalls

class Endless:
    def authenticate(self, offered):
        threading.Event().wait()

async def run():
    task = asyncio.create_task(CustomCalls("endless", Endless()).authenticate(Offered(token=Secret("x"), now=datetime.now(UTC))))
    await asyncio.sleep(0.1)
    print(threading.active_count())

asyncio.run(run())
"""


def test_a_process_ends_although_a_call_never_does() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


class Closing(Blocking):
    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.close = close


async def refuses_to_close() -> None:
    raise SystemExit("hunter2")


async def never_closes() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("close", "told"),
    [
        pytest.param(refuses_to_close, "authenticator ldap failed to close: SystemExit", id="an error"),
        pytest.param(never_closes, "authenticator ldap did not close within 0 s", id="taking too long"),
    ],
)
def test_closing_badly_is_told_and_nothing_else(
    close: Callable[[], Awaitable[None]], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(CustomCalls("ldap", Closing(close)).close(SECONDS if close is refuses_to_close else 0))
    assert [record.getMessage() for record in caplog.records] == [told]


def test_what_can_be_closed_is_closed_once_and_what_cannot_is_left(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    guests: list[PluginAuthenticator] = [Closing(close), Blocking(), Remote()]
    for guest in guests:
        asyncio.run(CustomCalls("a", guest).close(SECONDS))
    assert closed == ["closed"]
    assert not caplog.records


def test_the_protocols_are_kept_by_both_forms() -> None:
    plain: BlockingAuthenticator = Blocking()
    either: tuple[PluginAuthenticator, ...] = (plain, Remote(), Gate(), Silent())
    assert len(either) == 4
