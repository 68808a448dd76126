"""A program that runs a parent process over workers that serve nothing: `workerprogram.py DIRECTORY COUNT`.

The file `behaviour` of the directory says what a new worker does: `serves`, `fails`, `faults`, `crashes`, `hangs`, or `lingers` (it
serves and ignores the drain). SIGHUP reads it again; `broken` there is a configuration that cannot be read. Each event is one line
on standard output. While the file `hung` exists, the heartbeats of the seat that it names do not change. The end of a worker
removes it.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import sys
from pathlib import Path

from mooring.controlplane.workers import pipe as words
from mooring.controlplane.workers.parent import Body, Limits, WorkersParent
from mooring.controlplane.workers.pipe import Looks, WorkerPipe
from mooring.errors import ConfigError

LIMITS = Limits(start=1.0, drain=1.0, stable=60.0, first_pause=0.01, last_pause=0.04)
LOOK_SECONDS, HUNG_LOOKS = 0.05, 40


def say(text: str) -> None:
    """Write one line at once: a killed process must leave none in a buffer."""
    os.write(1, text.encode() + b"\n")


def wait(line: WorkerPipe) -> list[tuple[str, str]]:
    """Return the next messages."""
    select.select([line], [], [])
    return line.receive()


def body_of(generation: int, behaviour: str) -> Body:
    def body(seat: int, line: WorkerPipe) -> int:
        say(f"start {generation} {seat} {os.getpid()}")
        if behaviour == "fails":
            line.send(words.FAILED, "the file is wrong")
            return 1
        if behaviour == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "faults":
            raise RuntimeError("a fault")
        while behaviour != "hangs":
            say(f"serve {generation} {seat} {os.getpid()}")
            line.send(words.SERVING)
            while True:
                for word, _ in wait(line):
                    say(f"{word} {generation} {seat}")
                    if word == words.ANNOUNCE:
                        line.send(words.ANNOUNCED)
                    if word == words.DRAIN and behaviour != "lingers":
                        return 0
                if line.ended:
                    say(f"orphan {generation} {seat}")
                    return 0
        select.select([], [], [], 10)  # longer than it is given, and not for ever when the test ends first
        return 0

    return body


def main(directory: Path, count: int) -> int:
    """Run the parent. Returns the exit code."""
    logging.basicConfig(stream=sys.stdout, format="log %(message)s", level=logging.INFO)
    generation = 1
    behaviour, hung = directory / "behaviour", directory / "hung"
    numbers = itertools.count(1)

    def read() -> Body:
        nonlocal generation
        if behaviour.read_text() == "broken":
            raise ConfigError("line 1: unknown key")
        generation += 1
        return body_of(generation, behaviour.read_text())

    def beats(seat: int) -> int:
        return 0 if hung.exists() and hung.read_text() == str(seat) else next(numbers)

    def worker_ended(seat: int) -> None:
        hung.unlink(missing_ok=True)
        say(f"ended {seat}")

    parent = WorkersParent(
        count,
        body_of(1, behaviour.read_text()),
        read,
        all_serve=lambda: say("ready"),
        worker_ended=worker_ended,
        stopping=lambda: say("stopping"),
        beats=beats,
        looks=Looks(LOOK_SECONDS, HUNG_LOOKS),
        limits=LIMITS,
    )
    try:
        parent.run()
    except ConfigError as error:
        say(f"error {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
