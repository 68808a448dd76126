"""Connections of the HTTP client, against a peer that does not answer."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from mooring.client.http.connection import ConnectionPool
from mooring.trust.httpexchange import HttpRequest


def test_a_request_that_is_cancelled_during_the_handshake_closes_its_connection() -> None:
    async def scenario() -> None:
        reached, ended = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)  # the client begins the handshake
            reached.set()
            await reader.read()
            ended.set()
            writer.close()

        async def ask() -> None:
            async with connection.stream(HttpRequest("peer", url=f"https://127.0.0.1:{port}/", timeout=60)):
                raise AssertionError("the peer does not answer")

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = ConnectionPool(ssl.create_default_context())
            asking = asyncio.create_task(ask())
            await asyncio.wait_for(reached.wait(), 60)
            asking.cancel()
            # the exception keeps the frames, and with them the stream: it is not closed by the collection of garbage
            with pytest.raises(asyncio.CancelledError) as kept:
                await asking
            await asyncio.wait_for(ended.wait(), 60)
            await connection.close()
            assert kept.value.__traceback__ is not None

    asyncio.run(scenario())
