"""Parent of worker processes (`mooring.controlplane.workers.parent`), over real processes that serve nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.controlplane.workers import pipe as words
from mooring.controlplane.workers.pipe import MAX_TEXT, line_pair
from tests.support import forkserver

SECONDS = 30.0


class RunningParent:
    """A running parent process, whose events are read in order."""

    def __init__(self, directory: Path, behaviour: str, count: int, stdin: int = subprocess.DEVNULL) -> None:
        self._directory = directory
        self._behaviour = directory / "behaviour"
        self.behave(behaviour)
        self.process = forkserver.Process(
            ["-m", "tests.support.workerprogram", str(directory), str(count)], stdin=stdin, stdout=subprocess.PIPE
        )
        self.events: list[str] = []
        self._partial = ""

    def behave(self, behaviour: str) -> None:
        """Set what workers do that are started with a configuration which is read from now on."""
        self._behaviour.write_text(behaviour)

    def hang(self, seat: int) -> None:
        """Let the heartbeats of a worker stop until one has ended."""
        new = self._directory / "hung.new"
        new.write_text(str(seat))
        new.rename(self._directory / "hung")

    def until(self, *beginnings: str) -> list[str]:
        """Return the events up to the one by which each of `beginnings` has begun one event, in any order."""
        wanted, seen = list(beginnings), []
        while wanted:
            event = self._next()
            assert event is not None, f"the parent ended; wanted {wanted}, seen {self.events}"
            seen.append(event)
            wanted.remove(found) if (found := next((one for one in wanted if event.startswith(one)), "")) else None
        return seen

    def rest(self) -> list[str]:
        """Return the events until all processes have ended."""
        return list(iter(self._next, None))

    def _next(self) -> str | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while "\n" not in self._partial:
            assert select.select([descriptor], [], [], SECONDS)[0], f"nothing happens after {self.events}"
            data = os.read(descriptor, 65536)
            if not data:
                return None
            self._partial += data.decode()
        event, _, self._partial = self._partial.partition("\n")
        self.events.append(event)
        return event

    def pids(self, generation: int = 1) -> list[int]:
        """Return the workers of a generation that have served, by seat."""
        served = [event.split() for event in self.events if event.startswith(f"serve {generation} ")]
        return [int(pid) for _, _, _, pid in sorted(served, key=lambda words: words[2])]


Start = Callable[..., RunningParent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[RunningParent] = []

    def begin(behaviour: str = "serves", count: int = 2, stdin: int = subprocess.DEVNULL) -> RunningParent:
        started.append(RunningParent(tmp_path, behaviour, count, stdin))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


def test_the_first_worker_starts_alone_and_one_worker_hears_once_that_all_serve(start: Start) -> None:
    server = start(count=3)
    assert [event.rsplit(" ", 1)[0] for event in server.until("serve 1 0")] == ["start 1 0", "serve 1 0"]
    server.until("serve 1 1", "serve 1 2", "ready", "announce")
    os.kill(server.pids()[1], signal.SIGKILL)
    server.until("ended 1", "serve 1 1")
    server.process.terminate()
    server.rest()
    assert server.process.wait() == 0
    assert sum(event.startswith("announce") for event in server.events) == 1
    assert server.events.count("ready") == 1


def test_a_killed_worker_is_replaced_in_its_seat_and_the_others_hear_of_it(start: Start) -> None:
    server = start()
    server.until("announce")
    os.kill(server.pids()[0], signal.SIGKILL)
    events = server.until("ended 0", "neighbour-ended 1 1", "serve 1 0")
    assert any("killed by SIGKILL; another one starts in 0.01 seconds" in event for event in events)


def test_a_worker_that_dies_again_and_again_is_started_after_growing_pauses(start: Start) -> None:
    server = start("crashes")
    server.until(*["ended 0"] * 5)
    pauses = [event.split()[-2] for event in server.events if event.startswith("log")]
    assert pauses[:4] == ["0.01", "0.02", "0.04", "0.04"]


def test_a_worker_that_does_not_serve_in_time_is_killed_and_replaced(start: Start) -> None:
    server = start("hangs")
    events = server.until("start 1 0", "log worker 1", "ended 0", "start 1 0")
    assert any("does not serve after 1 seconds" in event for event in events)


def test_a_worker_whose_event_loop_hangs_after_it_has_served_is_killed_and_replaced(start: Start) -> None:
    server = start()
    server.until("announce")
    server.hang(1)
    events = server.until("log worker 2", "ended 1", "serve 1 1")
    (killed,) = (event for event in events if "killing it" in event)
    assert killed.endswith("hangs: its event loop did not run for 2 seconds; killing it")
    assert not any(event.startswith("ended 0") for event in events)
    server.process.terminate()
    server.rest()
    assert server.process.wait() == 0


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [("fails", 1, "error the file is wrong"), ("faults", 1, "log a worker ended by a fault")],
)
def test_a_first_worker_that_cannot_start_ends_the_server_with_its_message(
    start: Start, behaviour: str, code: int, said: str
) -> None:
    server = start(behaviour)
    events = server.rest()
    assert server.process.wait() == code
    assert said in events
    assert sum(event.startswith("start") for event in events) == 1


def test_a_signal_drains_all_workers(start: Start) -> None:
    server = start()
    server.until("announce")
    server.process.terminate()
    assert {"drain 1 0", "drain 1 1", "ended 0", "ended 1"} <= set(server.rest())
    assert server.process.wait() == 0


def test_a_stop_is_known_before_the_first_worker_ends(start: Start) -> None:
    server = start("lingers")
    server.until("announce")
    server.process.terminate()
    events = server.rest()
    assert events.count("stopping") == 1
    assert events.index("stopping") < min(index for index, event in enumerate(events) if event.startswith("ended"))


def test_the_hangup_of_a_closed_terminal_drains_all_workers(start: Start) -> None:
    ours, theirs = os.openpty()
    server = start(stdin=theirs)
    os.close(theirs)
    server.until("announce")
    server.process.send_signal(signal.SIGHUP)
    server.until("log all workers were restarted")
    os.close(ours)
    server.process.send_signal(signal.SIGHUP)
    events = server.rest()
    assert sum(event.startswith("drain") for event in events) == 2
    assert server.process.wait() == 0


def test_a_second_signal_ends_all_processes_at_once(start: Start) -> None:
    server = start("lingers")
    server.until("announce")
    server.process.terminate()
    server.until("drain 1 0", "drain 1 1")
    server.process.terminate()
    assert server.process.wait() == 130
    server.rest()  # returns when no process has the pipe any more


def test_a_worker_that_does_not_end_is_killed(start: Start) -> None:
    server = start("lingers")
    server.until("announce")
    server.process.terminate()
    events = server.rest()
    assert server.process.wait() == 0
    assert sum("still drains after 1 seconds; killing it" in event for event in events) == 2


def test_workers_end_with_their_parent(start: Start) -> None:
    server = start()
    server.until("announce")
    server.process.kill()
    assert {"orphan 1 0", "orphan 1 1"} <= set(server.rest())


def test_a_restart_replaces_one_worker_after_the_other_and_a_new_one_serves_before_an_old_one_drains(
    start: Start,
) -> None:
    server = start()
    server.until("announce")
    server.process.send_signal(signal.SIGHUP)
    events = server.until("log all workers were restarted")
    steps = [event.rsplit(" ", 1)[0] if event.startswith(("start", "serve")) else event for event in events]
    order = [steps.index(one) for one in ("start 2 2", "serve 2 2", "drain 1 0", "ended 0")]
    order += [steps.index(one) for one in ("start 2 0", "serve 2 0", "drain 1 1", "ended 1")]
    assert order == sorted(order)
    assert server.pids(2) != server.pids(1)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("broken", "log the configuration is not used, and the workers that serve stay: line 1: unknown key"),
        ("fails", "log the restart ends, and the workers that serve stay: the file is wrong"),
        ("crashes", "log the restart ends, and the workers that serve stay: killed by SIGKILL"),
        ("hangs", "log the restart ends, and the workers that serve stay: killed by SIGKILL"),
    ],
)
def test_the_old_workers_stay_when_the_new_configuration_does_not_work(start: Start, behaviour: str, said: str) -> None:
    server = start()
    server.until("announce")
    server.behave(behaviour)
    server.process.send_signal(signal.SIGHUP)
    events = server.until(said)
    assert not any(event.startswith("drain") for event in events)
    os.kill(server.pids()[1], signal.SIGKILL)  # the replacement has the old configuration
    server.until("ended 1", "serve 1 1")
    server.behave("serves")
    server.process.send_signal(signal.SIGHUP)
    server.until("log all workers were restarted")


def test_a_message_is_cut_to_what_fits_and_one_to_a_side_that_ended_is_lost() -> None:
    one, other = line_pair()
    other.send(words.FAILED, "é" * 20_000)
    assert one.receive() == [(words.FAILED, "é" * MAX_TEXT)]
    assert one.receive() == []
    other.close()
    one.send(words.DRAIN)
    assert one.receive() == []
    assert one.ended
    one.close()
