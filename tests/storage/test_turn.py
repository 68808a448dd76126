"""Turns of processes that write to one SQLite file."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mooring.errors import StorageError
from mooring.storage.sqlite import database, openfiles
from mooring.storage.sqlite.connection import LogWriter, Operation
from mooring.storage.sqlite.openfiles import Turn


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def turns(directory: Path, closing: ExitStack, count: int = 2) -> list[Turn]:
    made = [Turn(directory) for _ in range(count)]
    for one in made:
        closing.callback(one.close)
    return made


def asks_in_vain(one: Turn) -> None:
    """Ask until the next question takes the turn."""
    assert all(one.may_ask() for _ in range(openfiles.PATIENCE))


def test_everyone_asks_while_nobody_has_asked_often(tmp_path: Path, closing: ExitStack) -> None:
    one, other = turns(tmp_path, closing)
    for _ in range(openfiles.PATIENCE):
        assert one.may_ask()
        assert other.may_ask()


def test_who_has_asked_often_has_the_turn_until_it_has_the_lock(tmp_path: Path, closing: ExitStack) -> None:
    one, other = turns(tmp_path, closing)
    asks_in_vain(one)
    assert other.may_ask()
    assert one.may_ask()
    assert not other.may_ask()
    assert one.may_ask()
    one.give_back()
    assert other.may_ask()
    assert one.may_ask(), "its count begins again"
    assert other.may_ask()


def test_a_turn_ends_with_its_process(tmp_path: Path, closing: ExitStack) -> None:
    one, other = turns(tmp_path, closing)
    asks_in_vain(one)
    assert one.may_ask()
    assert not other.may_ask()
    one.close()
    assert other.may_ask()


def test_a_turn_that_does_not_end_is_not_waited_for_without_end(tmp_path: Path, closing: ExitStack) -> None:
    stopped, other = turns(tmp_path, closing)
    asks_in_vain(stopped)
    assert stopped.may_ask()
    assert [other.may_ask() for _ in range(openfiles.TRIES + 2)] == [False] * openfiles.TRIES + [True, True]
    other.give_back()
    assert not other.may_ask()


def test_a_file_system_without_such_locks_has_no_turns(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(_descriptor: int, _operation: int) -> None:
        raise OSError(95, "Operation not supported")

    one, other = turns(tmp_path, closing)
    monkeypatch.setattr(fcntl, "flock", unsupported)
    asks_in_vain(one)
    assert one.may_ask()
    assert other.may_ask()
    one.give_back()


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"the directory .*/gone of the database cannot be opened: No such file"):
        Turn(tmp_path / "gone")


def writers(path: Path, closing: ExitStack, count: int) -> list[LogWriter]:
    database.create_file(path)
    made: list[LogWriter] = []
    for _ in range(count):
        connection, own = database.connect(path, read_only=False), Turn(path.parent)
        database.prepare(connection, path, own)
        made.append(LogWriter(connection, own))
        closing.callback(made[-1].close)
    return made


def test_who_has_just_written_comes_after_who_waits_long(tmp_path: Path, closing: ExitStack) -> None:
    busy, waiting = writers(tmp_path / "mooring.db", closing, 2)
    for number in range(3):
        assert busy.try_begin()
        busy.apply(Operation.CREATE, f"/busy/{number}", b"v", 0)
        assert not any(waiting.try_begin() for _ in range(openfiles.PATIENCE + 1))
        busy.commit()
        assert not busy.try_begin(), "the one that waits has its turn"
        assert waiting.try_begin()
        assert not busy.try_begin(), "it has the lock"
        waiting.apply(Operation.CREATE, f"/waiting/{number}", b"v", 0)
        waiting.commit()


def test_a_writer_that_is_closed_keeps_no_turn(tmp_path: Path, closing: ExitStack) -> None:
    holder, patient, third = writers(tmp_path / "mooring.db", closing, 3)
    assert holder.try_begin()
    assert not any(patient.try_begin() for _ in range(openfiles.PATIENCE + 1))
    with pytest.raises(sqlite3.OperationalError):
        patient.begin_at_once()
    holder.rollback()
    assert not third.try_begin()
    patient.close()
    assert third.try_begin()
    third.rollback()


def test_a_server_opens_a_file_while_another_writes_without_a_pause(tmp_path: Path, closing: ExitStack) -> None:
    """The write lock is free at one moment only: when the one that opens has its turn, and the other has to wait for it."""
    path, begun, ended = tmp_path / "mooring.db", threading.Event(), threading.Event()
    (busy,) = writers(path, closing, 1)

    def write() -> None:
        while not ended.is_set():
            if busy.try_begin():
                begun.set()
                # the lock is held between any two questions of SQLite's own waiting
                time.sleep(0.002)
                busy.rollback()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(60)
        writers(path, closing, 1)
    finally:
        ended.set()
        thread.join()
