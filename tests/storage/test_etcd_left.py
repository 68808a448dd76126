"""A member of etcd that is left by one caller while another begins something on it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import StorageError
from mooring.settings.storage import StorageSettings
from mooring.storage.etcd.connection import Connection
from mooring.storage.etcd.watching import Watcher, WatchStream


async def begin_watch(connection: Connection) -> None:
    def decode(event: Any) -> Any:
        raise AssertionError("nothing arrives")

    await WatchStream(connection).subscribe(Watcher((b"/registry/", b"/registry0"), 1, decode))


@pytest.mark.parametrize("begin", [begin_watch, Connection.renew_token], ids=["a watch", "a token"])
def test_what_was_begun_on_a_member_that_is_left_ends_with_an_error_and_not_as_if_its_task_were_cancelled(
    begin: Callable[[Connection], Coroutine[Any, Any, None]], tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("a-password")

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            settings = StorageSettings(etcd_username="root", etcd_password_file=str(password))
            connection = Connection(settings, [url])
            began = asyncio.create_task(begin(connection))
            accepted, _ = await asyncio.get_running_loop().sock_accept(silent)
            with accepted:
                connection.leave(connection.endpoint)
                with pytest.raises(StorageError):
                    await began
            await connection.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
