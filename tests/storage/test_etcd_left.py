"""A connection to etcd: a member that is left by one caller while another begins something on it, and files for it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import StorageError
from mooring.settings.storage import StorageSettings
from mooring.storage.etcd.connection import EtcdConnection
from mooring.storage.etcd.watching import Watcher, WatchStream


async def begin_watch(connection: EtcdConnection) -> None:
    def decode(event: Any) -> Any:
        raise AssertionError("nothing arrives")

    await WatchStream(connection).subscribe(Watcher((b"/registry/", b"/registry0"), 1, decode))


@pytest.mark.parametrize("begin", [begin_watch, EtcdConnection.renew_token], ids=["a watch", "a token"])
def test_what_was_begun_on_a_member_that_is_left_ends_with_an_error_and_not_as_if_its_task_were_cancelled(
    begin: Callable[[EtcdConnection], Coroutine[Any, Any, None]], tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("a-password")

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            settings = StorageSettings(etcd_username="root", etcd_password_file=str(password))
            connection = EtcdConnection(settings, [url])
            began = asyncio.create_task(begin(connection))
            accepted, _ = await asyncio.get_running_loop().sock_accept(silent)
            with accepted:
                connection.leave(connection.endpoint)
                with pytest.raises(StorageError):
                    await began
            await connection.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.symlink_to("/dev/null"), "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.write_bytes(bytes((4 << 20) + 1)), "is larger than 4194304 bytes"),
        (lambda path: path.write_bytes(b"p\xfcssword\n"), "is not UTF-8, as etcd's passwords are"),
    ],
    ids=["a device", "a directory", "a named pipe", "too large", "Latin-1"],
)
def test_a_file_that_could_stop_the_server_when_it_is_read_again_is_refused_and_the_last_one_is_used(
    make: Callable[[Path], None], problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "password"
    settings = StorageSettings(etcd_username="root", etcd_password_file=str(password))

    async def scenario() -> None:
        password.write_text("a-password")
        connection = EtcdConnection(settings, ["http://127.0.0.1:1"])
        password.unlink()
        make(password)
        assert not connection.follow_files()
        assert f"etcd-password-file: {password} {problem}" in caplog.text
        with pytest.raises(StorageError, match=problem):
            EtcdConnection(settings, ["http://127.0.0.1:1"])
        await connection.close()

    asyncio.run(scenario())
