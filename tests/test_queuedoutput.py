"""Standard output and standard error of programs that serve, whose reader may stall: pipes of the test, and a process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from mooring import queuedoutput
from mooring.queuedoutput import MAX_WAITING, QueuedStream

SMALL = 4096
LINE = "x" * 999 + "\n"


class Pipe:
    """A pipe of 4 KiB, and the stream that queues what is written to it."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALL)
        self._writer: TextIO = os.fdopen(writer, "w", encoding="utf-8")
        self.stream = QueuedStream(self._writer)

    def read(self, size: int) -> str:
        """Return the next bytes, which are waited for."""
        data = b""
        while len(data) < size:
            data += os.read(self._reader, size - len(data))
        return data.decode()

    def close(self) -> None:
        os.close(self._reader)

    def end(self) -> None:
        self.close()
        self.stream.drain(60)
        self._writer.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.end()


def test_what_is_written_arrives_in_order_and_whole(pipe: Pipe) -> None:
    for number in range(100):
        print(f"line {number} é \ud800", file=pipe.stream)
    wanted = "".join(f"line {number} é \\ud800\n" for number in range(100))
    assert pipe.read(len(wanted.encode())) == wanted
    pipe.stream.drain(60)


def test_a_reader_that_stalls_keeps_no_writer_and_learns_how_much_it_missed(pipe: Pipe) -> None:
    held = MAX_WAITING // len(LINE)
    os.write(pipe.stream.fileno(), b"#" * SMALL)  # the pipe is full, so that nothing of the queue is written
    for _ in range(held + 7):
        pipe.stream.write(LINE)
    pipe.stream.drain(0)
    assert pipe.read(SMALL) == "#" * SMALL
    assert pipe.read(held * len(LINE)) == LINE * held
    pipe.stream.drain(60)
    pipe.stream.write("later\n")
    notice = "(7 lines are left out here, because they were not read)\nlater\n"
    assert pipe.read(len(notice)) == notice


def test_a_write_waits_for_the_thread_unless_the_reader_stalls(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuedoutput, "WRITE_SECONDS", 60)
    pipe.stream.write(LINE)
    assert not pipe.stream._size, "it is out"
    os.write(pipe.stream.fileno(), b"#" * (SMALL - len(LINE)))
    monkeypatch.setattr(queuedoutput, "WRITE_SECONDS", 0)
    pipe.stream.write(LINE)
    monkeypatch.setattr(queuedoutput, "WRITE_SECONDS", 10_000)
    pipe.stream.write(LINE)
    assert pipe.read(SMALL + 2 * len(LINE)).endswith(LINE * 2)
    pipe.stream.drain(60)
    pipe.stream.write(LINE)
    assert not pipe.stream._size, "a write waits again"


def test_a_reader_that_is_gone_ends_no_writer(pipe: Pipe) -> None:
    reader = os.dup(pipe._reader)
    pipe.close()
    os.close(reader)
    for _ in range(10):
        pipe.stream.write(LINE)
    pipe.stream.drain(60)
    pipe._reader = os.open(os.devnull, os.O_RDONLY)


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    for _ in range(20):
        pipe.stream.write(LINE)
    assert pipe.read(20 * len(LINE)) == LINE * 20


def test_it_is_the_stream_that_it_stands_for(pipe: Pipe) -> None:
    assert pipe.stream.writable()
    assert not pipe.stream.isatty()
    assert (pipe.stream.encoding, pipe.stream.errors) == ("utf-8", "strict")


PROGRAM = """
import os, sys
from mooring import queuedoutput
queuedoutput.install()
queuedoutput.install()
print("a")
print("b", file=sys.stderr)
queuedoutput.drain()
if not (child := os.fork()):
    print("c")
    queuedoutput.drain()
    os._exit(0)
os.waitpid(child, 0)
print("d")
"""


def test_the_end_of_a_process_and_that_of_a_fork_wait_for_what_they_wrote() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("a\nc\nd\n", "b\n")


def test_streams_of_another_are_left_alone_and_flushed(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    queuedoutput.install()
    assert (sys.stdout, sys.stderr) == before
    queuedoutput.drain()


@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_a_process_without_a_stream_has_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(sys, which, None)
    queuedoutput.drain()
