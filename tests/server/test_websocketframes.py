"""Test the WebSocket frames of one connection, without a socket (RFC 6455 sections 5 and 7).

The other side is wsproto's own client, or bytes made by hand where no client would make them.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from mooring.server.transport import responsewriter
from mooring.server.transport.responsewriter import MAX_BACKLOG, BinaryWebSocketWriter, WebSocketWriter
from mooring.server.transport.tlsconnection import TlsTransport
from tests.support.serverroom import PlainTransport

MASK = b"\x01\x02\x03\x04"


class Wire:
    """`WebSocketWriter` with a client on the other side."""

    def __init__(self, made: type[WebSocketWriter] = WebSocketWriter) -> None:
        self.transport = PlainTransport()
        self.messages = made(cast(TlsTransport, self.transport))
        self.client = Connection(ConnectionType.CLIENT)
        self.heard: list[Event] = []

    def say(self, *events: Event) -> None:
        self.messages.received(b"".join(bytes(self.client.send(event)) for event in events))

    def hear(self) -> list[Event]:
        """Return the events received since the last call."""
        self.client.receive_data(b"".join(self.transport.sent))
        self.transport.sent.clear()
        return list(self.client.events())

    @property
    def closed_with(self) -> int | None:
        """Return the server's close code."""
        codes = [int(event.code) for event in self.hear() if isinstance(event, CloseConnection)]
        return codes[0] if codes else None


def on_the_wire(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test with an event loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def body() -> None:
            await test(*args, **kwargs)

        asyncio.run(body())

    return run


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, size: int | None = None
) -> bytes:
    """Build a client's frame by hand; `size` replaces the length of the payload."""
    size = len(payload) if size is None else size
    mask = 0x80 if masked else 0
    if size < 126:
        head = bytes([fin << 7 | opcode, mask | size])
    elif size < 1 << 16:
        head = bytes([fin << 7 | opcode, mask | 126]) + struct.pack(">H", size)
    else:
        head = bytes([fin << 7 | opcode, mask | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[place % 4] for place, byte in enumerate(payload))


@on_the_wire
async def test_an_event_is_one_text_message() -> None:
    wire = Wire()
    wire.messages.write(b'{"type":"ADDED"}\n')
    wire.messages.write_all(["ä\n".encode(), b"2\n"])
    assert wire.hear() == [TextMessage('{"type":"ADDED"}\n'), TextMessage("ä\n"), TextMessage("2\n")]


@on_the_wire
async def test_for_protobuf_it_is_one_binary_message_without_the_length_before_it() -> None:
    wire = Wire(BinaryWebSocketWriter)
    wire.messages.write(b"\0\0\0\3\xff\0\1")
    assert [bytes(event.data) for event in wire.hear() if isinstance(event, BytesMessage)] == [b"\xff\0\1"]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 300_000])
@on_the_wire
async def test_messages_of_every_length_are_whole(size: int) -> None:
    wire = Wire()
    wire.messages.write(b"x" * size)
    assert wire.hear() == [TextMessage("x" * size)]


@on_the_wire
async def test_a_ping_is_answered_with_what_it_carried() -> None:
    wire = Wire()
    wire.say(Ping(b"are you there"), Ping())
    assert [bytes(event.payload) for event in wire.hear() if isinstance(event, Pong)] == [b"are you there", b""]
    assert not wire.messages.ended.done()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([Pong(b"unasked")], id="a pong that nobody asked for"),
        pytest.param([TextMessage("hello")], id="a greeting"),
        pytest.param([BytesMessage(b"\xff")], id="bytes"),
        pytest.param(
            [TextMessage("a", message_finished=False), Ping(), TextMessage("b", message_finished=True)],
            id="a message in two fragments, and a ping between them",
        ),
        pytest.param([TextMessage("x" * responsewriter.MAX_MESSAGE)] * 3, id="small messages one after the other"),
    ],
)
@on_the_wire
async def test_what_a_client_says_is_taken_and_forgotten(said: Sequence[Event]) -> None:
    wire = Wire()
    wire.say(*said)
    assert [event for event in wire.hear() if not isinstance(event, Pong)] == []
    assert not wire.messages.ended.done()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frame(1, b"x" * (responsewriter.MAX_MESSAGE + 1)), 1009, id="a message over the limit"),
        pytest.param(
            frame(1, b"x" * responsewriter.MAX_MESSAGE, fin=False) + frame(0, b"x"), 1009, id="fragments over the limit"
        ),
        pytest.param(
            frame(2, b"x" * (responsewriter.MAX_MESSAGE + 1), size=1 << 40),
            1009,
            id="what has come of a message without end",
        ),
        pytest.param(frame(9) * (2 * responsewriter.MAX_FRAMES), 1008, id="more pings than anybody needs"),
        pytest.param(
            frame(1, fin=False) + frame(0, fin=False) * (2 * responsewriter.MAX_FRAMES),
            1008,
            id="empty fragments without end",
        ),
        pytest.param(frame(1, b"hello", masked=False), 1002, id="a text frame that is not masked"),
        pytest.param(frame(9, b"", masked=False), 1002, id="a ping that is not masked"),
        pytest.param(frame(9, b"x" * 126), 1002, id="a control frame over 125 bytes"),
        pytest.param(frame(9, fin=False), 1002, id="a control frame in fragments"),
        pytest.param(frame(0, b"x"), 1002, id="a fragment of nothing"),
        pytest.param(frame(1, b"x", fin=False) + frame(1, b"y"), 1002, id="a message within a message"),
        pytest.param(frame(3), 1002, id="an opcode that is reserved"),
        pytest.param(frame(0x41, b"x"), 1002, id="a compressed frame, which nobody agreed on"),
        pytest.param(frame(8, b"\x03"), 1002, id="half a close code"),
        pytest.param(frame(8, struct.pack(">H", 1006)), 1002, id="a close code that is never sent"),
        pytest.param(frame(8, struct.pack(">H", 999)), 1002, id="a close code out of range"),
        pytest.param(frame(1, b"\xff"), 1007, id="text that is not UTF-8"),
        pytest.param(frame(8, struct.pack(">H", 1000) + b"\xff"), 1007, id="a close reason that is not UTF-8"),
    ],
)
@on_the_wire
async def test_what_no_client_should_send_ends_the_watch_and_says_why(sent: bytes, code: int) -> None:
    wire = Wire()
    wire.messages.received(sent)
    assert wire.closed_with == code
    assert wire.messages.ended.done()
    wire.messages.received(frame(9))
    wire.messages.write(b"{}\n")
    await wire.messages.leave()
    assert wire.transport.sent == []


@on_the_wire
async def test_a_client_may_go_on_pinging_at_a_human_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    wire.messages.received(frame(9) * responsewriter.MAX_FRAMES)
    assert not wire.messages.ended.done()
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now + 60, raising=False)
    wire.messages.received(frame(9) * 500)
    assert not wire.messages.ended.done()
    wire.messages.received(frame(9) * 200)
    assert wire.closed_with == 1008


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        pytest.param(CloseConnection(1000, "bye"), 1000, id="an ordinary goodbye"),
        pytest.param(CloseConnection(1001), 1001, id="a page that is left"),
        pytest.param(CloseConnection(4123), 4123, id="a code of the application's own"),
        pytest.param(CloseConnection(CloseReason.NO_STATUS_RCVD), 1005, id="a goodbye without a code"),
    ],
)
@on_the_wire
async def test_a_client_s_goodbye_is_answered_and_ends_the_watch(said: CloseConnection, answered: int) -> None:
    wire = Wire()
    wire.say(said)
    assert wire.messages.ended.done()
    await wire.messages.leave()
    assert wire.closed_with == answered


@on_the_wire
async def test_the_server_s_goodbye_is_1000_and_waits_for_the_answer() -> None:
    wire = Wire()
    wire.messages.end()
    leaving = asyncio.ensure_future(wire.messages.leave())
    await asyncio.sleep(0)
    assert not leaving.done()
    [goodbye] = wire.hear()
    assert isinstance(goodbye, CloseConnection)
    assert (goodbye.code, goodbye.reason) == (1000, "")
    wire.messages.received(frame(9) + frame(1, b"late"))  # sent before the goodbye arrived
    assert not leaving.done()
    wire.say(goodbye.response())
    await leaving
    assert wire.transport.sent == []


@pytest.mark.parametrize(
    "sent", [pytest.param(frame(1, b"x", masked=False), id="junk"), pytest.param(frame(1, b"x" * 5000), id="too much")]
)
@on_the_wire
async def test_junk_is_an_answer_to_the_server_s_goodbye_too(sent: bytes) -> None:
    wire = Wire()
    wire.messages.end()
    leaving = asyncio.ensure_future(wire.messages.leave())
    await asyncio.sleep(0)
    wire.transport.sent.clear()
    wire.messages.received(sent)
    await leaving
    assert wire.transport.sent == []


@on_the_wire
async def test_a_connection_that_is_lost_is_not_waited_for() -> None:
    wire = Wire()
    wire.messages.lost()
    wire.messages.lost()
    await wire.messages.leave()
    assert wire.messages.ended.done()
    assert wire.transport.sent == []


@on_the_wire
async def test_a_connection_that_was_lost_before_is_not_waited_for() -> None:
    transport = PlainTransport()
    transport.abort()
    messages = WebSocketWriter(cast(TlsTransport, transport))
    assert messages.ended.done()
    await messages.leave()


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda wire: wire.messages.write(b"{}\n"), id="events"),
        pytest.param(lambda wire: wire.messages.write_all([b"{}\n"]), id="the initial state"),
        pytest.param(lambda wire: wire.messages.received(frame(9)), id="pongs"),
    ],
)
@on_the_wire
async def test_a_client_too_far_behind_is_cut_off_whatever_waits(act: Callable[[Wire], None]) -> None:
    wire = Wire()
    wire.transport.waiting = MAX_BACKLOG + 1
    act(wire)
    assert wire.transport.aborted
    assert wire.messages.ended.done()
    assert wire.transport.sent == []


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_no_bytes_ever_raise_and_no_answer_is_longer_than_what_was_sent_allows(pieces: list[bytes]) -> None:
    async def body() -> None:
        wire = Wire()
        for piece in pieces:
            wire.messages.received(piece)
        answers = wire.hear()
        assert not [event for event in answers if isinstance(event, Message)]
        assert wire.messages.ended.done() is any(isinstance(event, CloseConnection) for event in answers)

    asyncio.run(body())


@given(st.lists(st.tuples(st.sampled_from([1, 2, 9, 10]), st.binary(max_size=100)), max_size=10), st.data())
def test_frames_mean_the_same_however_they_are_cut(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame(opcode, payload) for opcode, payload in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def answers(pieces: Sequence[bytes]) -> bytes:
        wire = Wire()
        for piece in pieces:
            wire.messages.received(piece)
        return b"".join(wire.transport.sent)

    assert asyncio.run(answers(pieces)) == asyncio.run(answers([stream]))
