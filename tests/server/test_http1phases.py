"""Walk every phase of an HTTP/1.1 connection with every event: the phase after it, the replies and the end.

Rules kept here: the connection and its event loop are real; the transport is simulated, and time passes when the test says so. Like
the real transport, the simulated one reports the end of the connection a turn of the loop after it was closed.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

from mooring.server.transport import http1
from mooring.server.transport.http import HEADER_SECONDS, IDLE_SECONDS, Application, Request, Response
from mooring.server.transport.http1 import ConnectionPhase, Http1Connection
from mooring.server.transport.responsewriter import ResponseWriter, UpgradedWriter
from tests.server.test_http1 import GET, POST, Plain
from tests.support.manualclock import settle
from tests.support.manualloop import ManualLoop

UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
REFUSED = GET.replace(b"Host: x", b"Host: x\r\nHost: y")


class Ended(Plain):
    """Transport that reports its end, as the real one does."""

    def __init__(self, protocol: Http1Connection) -> None:
        super().__init__()
        self.protocol = protocol

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def write(self, data: bytes) -> None:
        if not self.ended:
            super().write(data)

    def close(self, *, linger: bool = False) -> None:
        self._end("lingers" if linger else "closed")

    def abort(self) -> None:
        self._end("aborted")

    def lose(self) -> None:
        self._end("lost")


class Upgraded(UpgradedWriter):
    """Protocol of an upgraded connection: it keeps what it receives."""

    __slots__ = ("heard",)

    def __init__(self, transport: Any) -> None:
        self.heard = b""
        super().__init__(transport)

    def received(self, data: bytes) -> None:
        self.heard += data

    async def leave(self) -> None:
        return


class Walk:
    """One connection, and the events that a client, a handler, time and the server can cause."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.application = Application(self.handle)
        self.protocol = Http1Connection(self.application)
        self.plain = Ended(self.protocol)
        self.protocol.connection_made(cast(Any, self.plain))
        self.left = b""
        """What completes the request that the client is sending."""
        self.waiting: list[tuple[Request, asyncio.Future[str]]] = []
        self.writers: list[ResponseWriter] = []

    async def handle(self, request: Request) -> Response:
        command: asyncio.Future[str] = self.loop.create_future()
        self.waiting.append((request, command))
        kind = await command
        if kind == "whole":
            return Response(200)

        async def stream(writer: ResponseWriter) -> None:
            self.writers.append(writer)
            await writer.ended

        if kind == "101":
            return Response(101, stream=stream, headers=(), upgrade=cast(Any, Upgraded))
        return Response(200, stream=stream, headers=())

    def send(self, data: bytes) -> None:
        if not self.plain.ended and self.plain.reading:
            self.protocol.data_received(data)

    def _answer(self, kind: str) -> None:
        if self.waiting:
            self.waiting.pop(0)[1].set_result(kind)

    # Events of the client

    def piece(self) -> None:
        data = self.left or GET
        self.left = data[1:]
        self.send(data[:1])

    def rest(self) -> None:
        data, self.left = self.left or GET, b""
        self.send(data)

    def post(self) -> None:
        self.left = CHUNKS
        self.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")

    def ask(self) -> None:
        self.send(UPGRADE)

    def refused(self) -> None:
        self.left = b""
        self.send(REFUSED + UPGRADE)

    def refused_and_more(self) -> None:
        self.send(REFUSED + GET[:9])

    # Events of the handler

    def begin(self) -> None:
        self._answer("stream")

    def end(self) -> None:
        if self.writers:
            self.writers.pop().end()
        else:
            self._answer("whole")

    def switch(self) -> None:
        if self.waiting and self.waiting[0][0].header(b"upgrade"):
            self._answer("101")

    # Events of time and of the server

    def late(self) -> None:
        self.loop.now += HEADER_SECONDS + 1

    def idle(self) -> None:
        self.loop.now += IDLE_SECONDS + 1

    def drain(self) -> None:
        self.protocol.shutdown()

    def lost(self) -> None:
        self.plain.lose()

    def outcome(self) -> str:
        """ConnectionPhase, replies that were sent, and the end of the connection: `|` closed, `~` closed when the client has read,
        `!` cut off, `x` lost."""
        replies = "".join("+" + status for status in re.findall(r"HTTP/1.1 (\d+)", self.plain.sent.decode()))
        return (
            self.protocol.phase.name.lower()
            + replies
            + {"": "", "closed": "|", "lingers": "~", "aborted": "!", "lost": "x"}[self.plain.ended]
        )


STATES = {
    "nothing-sent": "",
    "kept-alive": "rest end",
    "answering": "rest",
    "replying": "rest begin",
    "headers": "piece",
    "later-headers": "rest end piece",
    "headers-behind": "rest piece",
    "body": "post",
    "body-replying": "post begin",
    "body-answered": "post end",
    "upgrade-asked": "ask",
    "upgrade-refused": "ask begin",
    "upgrade-behind": "rest ask",
    "upgraded": "ask switch",
    "refusal-waits": "rest refused",
    "refused": "refused",
    "lost": "lost",
    "lost-in-time": "ask lost",
}
"""Ways into each state, as events. Replies that were sent on the way are not repeated in the table."""

TABLE = """
state           phase     piece   rest    ask        refused    begin end           switch       late   idle   drain  lost
nothing-sent    first     headers between kept       ended+400~ =     =             =            ended! ended! ended| endedx
kept-alive      between   headers =       kept       ended+400~ =     =             =            =      ended| ended| endedx
answering       between   headers =       kept       ended      =+200 =+200         =            =      =      =      endedx
replying        between   headers =       kept       ended!     =     =             =            =      =      =      endedx
headers         headers   =       between ended+400~ ended+400~ =     =             =            ended! ended! ended| endedx
later-headers   headers   =       between ended+400~ ended+400~ =     =             =            ended! ended! ended| endedx
headers-behind  headers   =       between ended      ended      =+200 =+200         =            ended! ended! =      endedx
body            body      =       between ended+400~ ended+400~ =+200 discarded+200 =            =      =      =      endedx
body-replying   body      =       between ended!     ended!     =     discarded     =            =      =      =      endedx
body-answered   discarded =       between ended+400~ ended+400~ =     =             =            =      ended~ ended~ endedx
upgrade-asked   kept      =       =       =          =          =+200 between+200   upgraded+101 =      =      =      endedx
upgrade-refused kept      =       =       =          =          =     between       =            =      =      =      endedx
upgrade-behind  kept      =       =       =          =          =+200 =+200         =            =      =      =      endedx
upgraded        upgraded  =       =       =          =          =     ended~        =            =      =      =      endedx
refusal-waits   ended     =       =       =          =          =+200 =+200+400~    =            =      =      =      =x
refused         ended~    =~      =~      =~         =~         =~    =~            =~           =~     =~     =~     =~
lost            endedx    =x      =x      =x         =x         =x    =x            =x           =x     =x     =x     =x
lost-in-time    endedx    =x      =x      =x         =x         =x    =x            =x           =x     =x     =x     =x
"""
"""Outcome of each event in each state. `=`: the phase stays as it is."""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
EVENTS = HEAD[2:]


def walk(steps: str, event: str = "") -> str:
    """Return the outcome of an event after these steps, without what the steps had sent."""

    async def story() -> str:
        walk = Walk(cast(ManualLoop, asyncio.get_running_loop()))
        for step in steps.split():
            getattr(walk, step)()
            await settle()
        walk.plain.sent = b""
        if event:
            getattr(walk, event)()
            await settle()
        outcome = walk.outcome()
        walk.plain.lose()
        await settle()
        walk.begin()
        await settle()
        return outcome

    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        return runner.run(story())


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_event_in_each_state_has_one_outcome(row: list[str]) -> None:
    state, before, *wanted = row
    steps = STATES[state]
    assert walk(steps) == before
    phase = before.rstrip("|~!x")
    outcomes = [walk(steps, event) for event in EVENTS]
    assert dict(zip(EVENTS, outcomes, strict=True)) == {
        event: cell.replace("=", phase) for event, cell in zip(EVENTS, wanted, strict=True)
    }


def test_the_walk_has_a_row_for_each_state_and_each_phase() -> None:
    assert [row[0] for row in ROWS] == list(STATES)
    assert {row[1].rstrip("|~!x").upper() for row in ROWS} == {phase.name for phase in ConnectionPhase}


def test_the_beginning_of_a_request_behind_a_refused_one_sets_no_timer() -> None:
    """The reply that the refusal waits for may take longer than headers may."""
    assert walk("rest refused_and_more", "late") == "ended"


def test_every_legal_move_is_made_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[tuple[str, ConnectionPhase]] = set()
    legal: set[tuple[str, ConnectionPhase]] = set()

    class Noted(dict[ConnectionPhase, ConnectionPhase]):
        """Moves of one event that notes those that are made."""

        def __init__(self, event: str) -> None:
            super().__init__(getattr(http1, event))
            self.event = event
            legal.update((event, phase) for phase in self)

        def __getitem__(self, phase: ConnectionPhase) -> ConnectionPhase:
            made.add((self.event, phase))
            return super().__getitem__(phase)

    for event, moves in list(vars(http1).items()):
        if isinstance(moves, dict) and set(moves) <= set(ConnectionPhase):
            monkeypatch.setattr(http1, event, Noted(event))
    for steps in STATES.values():
        for event in EVENTS:
            walk(steps, event)
    assert made == legal
    assert len({event for event, _ in legal}) == 8
