"""Running somebody else's code: the authenticators of the operator's own.

Rules kept here:
* Whatever the code does ends here. What it raises becomes a refusal with the name of its type, SystemExit and
  KeyboardInterrupt too; texts of its errors are neither told nor logged, because they may hold what it was given.
* A plain method runs in threads of its own, which hold up nobody else. Whoever finds none free waits here and not in a queue of
  theirs, so that what is given up leaves nothing behind. A call that never ends costs its thread for good, and nothing more;
  the process ends without it.
* A coroutine runs as a task of its own: its caller goes at the deadline, whether or not it lets itself be cancelled. One that
  blocks the event loop blocks the server: nothing can be done about it from here.
* A call belongs to one turn of AT_ONCE until it has ended, not until its caller has gone.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from mooring.authn.own import BlockingAuthenticator, Offered, OwnAuthenticator, Rejected, RemoteAuthenticator
from mooring.server.authentication.secondstage import FAILED, TOO_BUSY

log = logging.getLogger("mooring.authentication")

AT_ONCE = 16
"""Calls of one authenticator under way: of a directory that answers in 20 ms, 800 in a second; of one that hangs, 16 threads."""
MAX_WAITING = 64
"""Callers that wait for their turn; whoever comes later is told at once. Three that hang leave room for others to be asked."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """The name of what was raised. The error itself would keep alive what its frames hold."""

    name: str


class GuestCode:
    """One authenticator, running."""

    def __init__(self, name: str, guest: OwnAuthenticator) -> None:
        self._name = name
        self._guest = guest
        self._begin = self._as_task if inspect.iscoroutinefunction(guest.authenticate) else self._in_thread
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def ask(self, offered: Offered) -> object:
        """What it answers, or a refusal that says why it did not. Raises nothing but cancellation."""
        if self._waiting >= MAX_WAITING:
            return Rejected(TOO_BUSY)
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        ending = self._begin(offered)
        try:
            await asyncio.wait({ending})
        finally:
            ending.cancel()  # given up: a task hears of it, a thread does not
        said = ending.result()
        if not isinstance(said, _Raised):
            return said
        log.warning("authenticator %s failed: %s", self._name, said.name)
        return Rejected(FAILED, f"it raised {said.name}")

    async def close(self, seconds: float) -> None:
        """Let it close what it opened; it is given `seconds`."""
        close = getattr(self._guest, "close", None)
        if close is None:
            return
        closing = asyncio.create_task(_contained(close))
        await asyncio.wait({closing}, timeout=seconds)
        if not closing.done():
            closing.cancel()
            log.warning("authenticator %s did not close within %g s", self._name, seconds)
        elif isinstance(said := closing.result(), _Raised):
            log.warning("authenticator %s failed to close: %s", self._name, said.name)

    def _as_task(self, offered: Offered) -> asyncio.Future[object]:
        guest = cast(RemoteAuthenticator, self._guest)
        task = asyncio.create_task(_contained(lambda: guest.authenticate(offered)), name=f"authenticate-{self._name}")
        task.add_done_callback(lambda _: self._turns.release())
        return task

    def _in_thread(self, offered: Offered) -> asyncio.Future[object]:
        guest, loop = cast(BlockingAuthenticator, self._guest), asyncio.get_running_loop()
        ending: asyncio.Future[object] = loop.create_future()

        def ended(said: object) -> None:
            self._turns.release()
            if not ending.done():
                ending.set_result(said)

        def run() -> None:
            said: object
            try:
                said = guest.authenticate(offered)
            except BaseException as error:
                said = _Raised(type(error).__name__)
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(ended, said)

        try:
            threading.Thread(target=run, name=f"authenticate-{self._name}", daemon=True).start()
        except RuntimeError as error:  # the machine has no thread to give
            ended(_Raised(type(error).__name__))
        return ending


async def _contained(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except BaseException as error:
        return _Raised(type(error).__name__)
