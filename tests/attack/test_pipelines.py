"""Pipelines of good, broken and ambiguous requests, cut anywhere: each request that takes effect has its own reply, in order.

Rules kept here (RFC 9112 9.3.2):
* The n-th final reply is that of the n-th request. A refusal comes after the replies to what was received before it, and nothing
  behind it is served.
* No request is made of the bytes of another: bodies and bytes after an upgrade contain requests.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from random import Random

import pytest

from mooring.server.transport.http import MAX_HEADER_BYTES, Request, Response
from tests.server.test_http1 import Talk
from tests.support.manualclock import settle

INSIDE = b"POST /inside HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
HEAD = b"%b /%d HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Sent:
    """Bytes of a request without its head, and whether the server has to serve it, and what it then reads."""

    method: bytes
    rest: bytes
    served: bool = True
    body: bytes = b""
    is_last: bool = False


GOOD = (
    Sent(b"GET", b"\r\n"),
    Sent(b"POST", b"Content-Length: 0\r\n\r\n"),
    Sent(b"POST", b"Content-Length: %d\r\n\r\n%b" % (len(INSIDE), INSIDE), body=INSIDE),
    Sent(b"PUT", b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(INSIDE), INSIDE), body=INSIDE),
    Sent(b"PUT", b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nab\r\n1\r\nc\r\n0\r\nHost: y\r\n\r\n", body=b"abc"),
    Sent(b"POST", b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab", body=b"ab"),
    Sent(b"DELETE", b"Connection: upgrade\r\nUpgrade: other\r\n\r\n"),
    Sent(b"GET", b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"),
    Sent(b"HEAD", b"\r\n"),
)
LAST = (
    Sent(b"POST", b"Connection: close\r\nContent-Length: 0\r\n\r\n", is_last=True),
    Sent(b"GET", b"Connection: close\r\n\r\n", is_last=True),
)
BAD = tuple(
    Sent(b"POST", rest, served=False)
    for rest in (
        b"Host: y\r\nContent-Length: 0\r\n\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"Content-Length: 1, 1\r\n\r\na",
        b"Content-Length: +1\r\n\r\na",
        b"Content-Length: 0x1\r\n\r\na",
        b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\na",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b" Folded: x\r\nContent-Length: 0\r\n\r\n",
        b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"X: a\rb\r\nContent-Length: 0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\na\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
        b"Connection: upgrade\r\nUpgrade: other\r\nContent-Length: 3\r\n\r\nabc",
        b"X: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n",
    )
)
RAW = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    b"\x16\x03\x01\x02\0\x01\0",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/3.0\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n\0",
    b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\0" * 100,
)
_REPLY = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


def replies(data: bytes, methods: list[bytes]) -> list[tuple[int, bytes]]:
    """Return code and body of each final reply. `methods`: those of the requests, for replies without a body."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        head = _REPLY.match(data, at)
        assert head is not None, data[at : at + 80]
        at = head.end()
        if head[1] == b"100":
            continue
        sized = re.search(rb"content-length: (\d+)", head[2])
        assert sized is not None, head[2]
        length = int(sized[1])
        if len(found) < len(methods) and methods[len(found)] == b"HEAD":
            length = 0
        found.append((int(head[1]), data[at : at + length]))
        at += length
    return found


@pytest.mark.parametrize("seed", range(300))
def test_every_reply_is_that_of_its_request(seed: int) -> None:
    chance = Random(seed)
    sent = [chance.choice(GOOD) for _ in range(chance.randrange(5))]
    ending = chance.randrange(4)
    if ending == 0:
        sent.append(chance.choice(BAD))
    elif ending == 1:
        sent.append(chance.choice(LAST))
    raw = chance.choice(RAW) if ending == 2 else b""
    data = b"".join(HEAD % (one.method, number) + one.rest for number, one in enumerate(sent)) + raw
    if ending < 3:
        data += HEAD % (b"POST", 999) + b"Content-Length: 0\r\n\r\n"
    is_slow = chance.random() < 0.7

    async def talk() -> None:
        go_on, effects = asyncio.Event(), list[tuple[str, bytes]]()

        async def handler(request: Request) -> Response:
            body = await request.body()
            if is_slow:
                await go_on.wait()
            effects.append((request.path, body))
            return Response(200, request.path.encode(), ())

        conversation = Talk(handler)
        plain, rest = conversation.plain, data
        before = b""
        while rest and not plain.ended:
            while not plain.reading and not go_on.is_set():
                before = plain.sent
                go_on.set()
                await settle(80)
            size = chance.choice((1, 7, 100, 5_000, 70_000))
            conversation.protocol.data_received(rest[:size])
            rest = rest[size:]
            if chance.random() < 0.5:
                await settle(3)
        go_on.set()
        await settle(200)
        assert plain.sent.startswith(before)
        answered = replies(plain.sent, [one.method for one in sent])
        wanted = [one for one in sent if one.served]
        assert [path for path, _ in effects] == [f"/{number}" for number in range(len(wanted))]
        for number, one in enumerate(wanted):
            assert effects[number][1] == (one.body if one.method not in (b"GET", b"HEAD") else b"")
            assert answered[number] == (200, b"" if one.method == b"HEAD" else b"/%d" % number)
        refusals = answered[len(wanted) :]
        assert len(refusals) <= 1
        assert all(400 <= code < 600 and not body for code, body in refusals)
        if ending in (0, 2):
            assert refusals, data[-200:]
        assert bool(plain.ended) is (ending < 3)

    asyncio.run(talk())


@pytest.mark.parametrize("in_front", [b"", b"POST /before HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"])
def test_bytes_behind_an_upgrade_wait_for_its_reply_however_many_they_are(in_front: bytes) -> None:
    async def talk() -> None:
        go_on, effects = asyncio.Event(), list[str]()

        async def handler(request: Request) -> Response:
            await go_on.wait()
            effects.append(request.path)
            return Response(200, b"done", ())

        conversation = Talk(handler)
        upgrade = b"DELETE /object HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n"
        conversation.protocol.data_received(in_front + upgrade)
        received, behind = 0, b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
        while conversation.plain.reading and received < 4 * MAX_HEADER_BYTES:
            conversation.protocol.data_received(behind)
            received += len(behind)
        assert received < 2 * MAX_HEADER_BYTES, "the server stops reading"
        await settle()
        assert conversation.plain.sent == b""
        go_on.set()
        await settle(20_000)
        number = received // len(behind)
        assert effects == [*(["/before"] if in_front else []), "/object", *["/next"] * number]
        assert conversation.plain.reading
        assert not conversation.plain.ended
        assert conversation.plain.held == 0

    asyncio.run(talk())
