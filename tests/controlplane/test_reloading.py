"""Files that change while the server runs: what is good is in force, what is not is told and left."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.controlplane.datadirectory import RETRY_LOOKS, Reloading
from mooring.errors import ConfigError
from tests.support.manualclock import ManualClock


class Holder:
    """Keeps what was applied; `bad` content is refused."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        if data == b"bad":
            raise ConfigError("line 1: bad")
        self.applied.append(data)


def rename(path: Path, data: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(data)
    new.replace(path)


def swap_link(path: Path, data: bytes) -> None:
    target = path.with_name(f"target-{len(data)}")
    target.write_bytes(data)
    link = path.with_name("link")
    link.symlink_to(target)
    link.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path, data: path.write_bytes(data), id="written in place"),
        pytest.param(rename, id="replaced by renaming"),
        pytest.param(swap_link, id="a symbolic link that was swapped"),
    ],
)
def test_a_change_is_applied_once_it_rests(tmp_path: Path, change: Callable[[Path, bytes], None]) -> None:
    path, holder, files = tmp_path / "file", Holder(), Reloading()
    path.write_bytes(b"one")
    holder(files.follow(str(path), holder))
    change(path, b"two!")
    asyncio.run(files.look())
    assert holder.applied == [b"one"], "not yet: somebody may still be writing"
    asyncio.run(files.look())
    asyncio.run(files.look())
    assert holder.applied == [b"one", b"two!"]


def test_who_keeps_writing_is_waited_for(tmp_path: Path) -> None:
    path, holder, files = tmp_path / "file", Holder(), Reloading()
    path.write_bytes(b"1")
    holder(files.follow(str(path), holder))
    for size in range(2, 6):
        path.write_bytes(b"x" * size)
        asyncio.run(files.look())
    asyncio.run(files.look())
    assert holder.applied == [b"1", b"xxxxx"]


def test_a_file_that_is_replaced_every_second_is_read_all_the_same(tmp_path: Path) -> None:
    path, holder, files = tmp_path / "file", Holder(), Reloading()
    path.write_bytes(b"0")
    holder(files.follow(str(path), holder))
    for number in range(1, 2 * RETRY_LOOKS + 2):
        rename(path, b"x" * number)
        asyncio.run(files.look())
    assert holder.applied == [b"0", b"x" * RETRY_LOOKS, b"x" * 2 * RETRY_LOOKS]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(b"bad"), id="wrong"),
        pytest.param(lambda path: path.unlink(), id="gone"),
    ],
)
def test_the_last_good_content_stays_in_force_and_the_log_says_so_once(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path, holder, files = tmp_path / "file", Holder(), Reloading()
    path.write_bytes(b"good")
    holder(files.follow(str(path), holder))
    spoil(path)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            asyncio.run(files.look())
    assert holder.applied == [b"good"]
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    path.write_bytes(b"mended")
    asyncio.run(files.look())
    asyncio.run(files.look())
    assert holder.applied == [b"good", b"mended"]


def test_a_changed_file_whose_read_failed_is_read_again_without_another_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, holder, files = tmp_path / "file", Holder(), Reloading()
    path.write_bytes(b"good")
    needed: list[Path] = [tmp_path / "other"]

    def use(data: bytes) -> None:
        if not needed[0].exists():
            raise ConfigError("the other file cannot be read: Too many open files")
        holder(data)

    holder(files.follow(str(path), use))
    path.write_bytes(b"changed")
    with caplog.at_level(logging.INFO):
        for _ in range(3 * RETRY_LOOKS):
            asyncio.run(files.look())
        assert holder.applied == [b"good"]
        assert len(caplog.records) == 1
        needed[0].touch()
        for _ in range(RETRY_LOOKS):
            asyncio.run(files.look())
    assert holder.applied == [b"good", b"changed"]
    assert len(caplog.records) == 2
    for _ in range(2 * RETRY_LOOKS):
        asyncio.run(files.look())
    assert holder.applied == [b"good", b"changed"]


def test_what_is_wrong_at_the_start_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ConfigError, match="cannot be read"):
        Holder()(Reloading().follow(str(path), Holder()))
    path.write_bytes(b"bad")
    with pytest.raises(ConfigError, match="line 1"):
        Holder()(Reloading().follow(str(path), Holder()))


def test_one_file_may_be_of_use_to_two(tmp_path: Path) -> None:
    path, files, holders = tmp_path / "file", Reloading(), (Holder(), Holder())
    path.write_bytes(b"one")
    for holder in holders:
        holder(files.follow(str(path), holder))
    rename(path, b"two!")
    asyncio.run(files.look())
    asyncio.run(files.look())
    assert [holder.applied for holder in holders] == [[b"one", b"two!"]] * 2


class Slow:
    """Understands content in one thread and takes it in another, and says which."""

    def __init__(self) -> None:
        self.understood: list[int] = []
        self.taken: list[tuple[bytes, int]] = []

    def prepare(self, data: bytes) -> Callable[[], None]:
        self.understood.append(threading.get_ident())
        if data == b"bad":
            raise ConfigError("line 1: bad")

        return lambda: self.taken.append((data, threading.get_ident()))


def test_it_looks_every_second_and_what_changed_is_understood_apart_and_taken_between_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        path, slow, files, clock, here = tmp_path / "file", Slow(), Reloading(), ManualClock(), threading.get_ident()
        path.write_bytes(b"one")
        slow.prepare(files.follow_prepared(str(path), slow.prepare))()
        task = asyncio.create_task(files.run(clock))
        async with asyncio.timeout(60):
            for data in (b"two!", b"bad", b"three"):
                rename(path, data)
                told = len(slow.taken) + len(caplog.records)
                while len(slow.taken) + len(caplog.records) == told:
                    await clock.advance(1)
        assert slow.taken == [(b"one", here), (b"two!", here), (b"three", here)]
        assert len(slow.understood) == 4, "each once"
        assert here not in slow.understood[1:]
        task.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["line 1: bad"]
