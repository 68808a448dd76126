"""Parent of the worker processes of one server: starts, replaces, restarts and ends them.

Rules kept here:
* The parent has no event loop, and no thread but those of its output, which hold nothing that a child needs: it may fork at any
  time. It serves nothing and opens no store.
* The first worker starts alone: it creates the first objects, and an error of the operator is reported once. The others follow.
* A worker that ends unasked is replaced: at once after a long life, else after a pause that doubles. One that does not serve in
  time is killed, and so is one whose event loop hangs later. Objects are durable before they are acknowledged, so that a worker
  holds nothing that its end loses.
* A restart starts one new worker, waits until it serves, and then drains an old one, until all are new. When a new worker cannot
  start, the old ones stay.
* A worker sees the end of the parent as the end of its pipe, and drains. No other process has an end of that pipe.
* The first signal to stop drains all workers; the second kills them and ends the process at once. SIGHUP from a terminal that was
  closed is a signal to stop: no parent could restart the workers from there.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from mooring import queuedoutput
from mooring.clock import SystemClock
from mooring.controlplane.workers import pipe as words
from mooring.controlplane.workers.pipe import Looks, WorkerPipe, line_pair
from mooring.errors import ConfigError, MooringError
from mooring.servicenotifier import ServiceNotifier

log = logging.getLogger("mooring.workers")

START_SECONDS = 300.0
"""Time that a worker may take until it serves: a store of a million objects takes a tenth of it. One that takes longer is stuck."""
STABLE_SECONDS = 10.0
"""Time of serving after which the end of a worker is not taken as another failure to start."""
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 10.0
"""Pauses before a worker is started again: the first, and the longest, to which it doubles."""
EXIT_FAILED = 1
EXIT_FAULT = 70
EXIT_AT_ONCE = 130
WORKER_SIGNALS = {
    signal.SIGTERM: signal.SIG_DFL,
    # A terminal sends these two to every process of the group; the parent decides.
    signal.SIGINT: signal.SIG_IGN,
    signal.SIGHUP: signal.SIG_IGN,
    signal.SIGCHLD: signal.SIG_DFL,
}
"""Handlers of a new worker, until it has its own."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

Body = Callable[[int, WorkerPipe], int]
"""Runs in the process of a worker, with its slot and its end of the pipe. Returns the exit code."""
Read = Callable[[], Body]
"""Reads the configuration again and returns the body of new workers. Raises MooringError."""


class WorkerFault(Exception):  # noqa: N818 - not an error of the operator: the command line reports a fault by its name
    """The first worker ended by a fault of the program."""


class Stage(IntEnum):
    """Stage that the server has reached. It never goes back; a stop may follow each stage."""

    FIRST = 1
    """No worker has served: one starts alone."""
    FILLING = 2
    """One has served: the others start."""
    READY = 3
    """All have served at one time."""
    ANNOUNCED = 4
    """A worker has said how to use the server."""
    STOPPING = 5


class Phase(Enum):
    """Phases of a worker's life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process."""

    slot: int
    """Number among the workers that live at the same time, from 0."""
    pid: int
    pipe: WorkerPipe
    body: Body
    began: float
    """Time at which the phase began."""
    phase: Phase = Phase.STARTING
    failure: str = ""
    """Message of a start that failed."""

    @property
    def name(self) -> str:
        return f"worker {self.slot + 1} (process {self.pid})"

    @property
    def replaceable(self) -> bool:
        """True unless it is on its way to its end."""
        return self.phase is not Phase.DRAINING


@dataclass(slots=True)
class Limits:
    """Times in seconds."""

    start: float = START_SECONDS
    drain: float = 120.0
    """Time after which a worker that was asked to drain is killed."""
    stable: float = STABLE_SECONDS
    first_pause: float = FIRST_PAUSE_SECONDS
    last_pause: float = LAST_PAUSE_SECONDS


@dataclass(slots=True)
class Restart:
    """A restart that is under way."""

    body: Body
    old: list[Worker] = field(default_factory=list)
    """Workers that are still to be replaced."""


class WorkersParent:
    """Keeps `count` workers serving. `slots` is one more: a restart starts a new worker before an old one ends."""

    def __init__(
        self,
        count: int,
        body: Body,
        read: Read,
        *,
        beats: Callable[[int], int],
        looks: Looks | None = None,
        all_serve: Callable[[], None] = lambda: None,
        worker_ended: Callable[[int], None] = lambda slot: None,
        stopping: Callable[[], None] = lambda: None,
        limits: Limits | None = None,
        notifier: ServiceNotifier | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`beats` returns the heartbeats of a slot, `looks` says which workers hang.

        `all_serve` is called once, when all workers serve for the first time, `worker_ended` with the slot of each that ended,
        `stopping` once no worker is started any more. `notifier` hears of restarts and gets signs of life. `now` is the
        monotonic time in seconds.
        """
        self.count = count
        self.slots = slots_for(count)
        self._body = body
        self._read = read
        self._all_serve = all_serve
        self._worker_ended = worker_ended
        self._stopping = stopping
        self._beats = beats
        self._looks = looks or Looks()
        self._limits = limits or Limits()
        self._now = now or SystemClock().monotonic
        self._notifier = notifier or ServiceNotifier()
        self._next_sign = 0.0
        self._workers: list[Worker] = []
        self._failures = 0
        self._may_start_at = 0.0
        self._restart: Restart | None = None
        self._restart_wanted = False
        self._stage = Stage.FIRST
        self._announcer: Worker | None = None
        """The worker that was asked to say how to use the server."""
        self._has_terminal = is_terminal()
        self._failure = ""
        self._is_faulty = False

    def run(self) -> None:
        """Run until a signal stops the server. Raises ConfigError with the message of a first worker that could not start."""
        with _signals() as signals:
            while True:
                self._advance()
                if self._stage is Stage.STOPPING and not self._workers:
                    break
                self._wait(signals)
                for number in _received(signals):
                    self._signal(number)
                for worker in tuple(self._workers):
                    self._receive(worker)
                self._reap()
        if self._failure:
            raise ConfigError(self._failure)
        if self._is_faulty:
            raise WorkerFault

    # -- events

    def _wait(self, signals: int) -> None:
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        for worker in self._workers:
            if not worker.pipe.ended:
                poll.register(worker.pipe.fileno(), select.POLLIN)
        deadline = min(self._deadlines(), default=None)
        poll.poll(None if deadline is None else max(0.0, deadline - self._now()) * 1000 + 1)

    def _deadlines(self) -> Iterator[float]:
        for worker in self._workers:
            if worker.phase is Phase.STARTING:
                yield worker.began + self._limits.start
            elif worker.phase is Phase.DRAINING:
                yield worker.began + self._limits.drain
            else:
                yield self._looks.due
        if self._missing():
            yield self._may_start_at
        if self._notifier.pause is not None:
            yield self._next_sign

    def _signal(self, number: int) -> None:
        is_hangup = number == signal.SIGHUP and self._has_terminal and not is_terminal()
        if number == signal.SIGHUP and not is_hangup:
            self._restart_wanted = True
            self._notifier.reloading("restarting the workers one after the other")
        elif is_hangup or number in (signal.SIGTERM, signal.SIGINT):
            if self._stage is Stage.STOPPING:
                # `os._exit` leaves no child behind that way.
                self._kill_all()
                os._exit(EXIT_AT_ONCE)
            log.info("draining %d workers", len(self._workers))
            self._stop()

    def _receive(self, worker: Worker) -> None:
        for word, text in worker.pipe.receive():
            if word == words.SERVING:
                self._serves(worker)
            elif word == words.FAILED:
                # Kept until the process has ended: a restart is judged then.
                worker.failure = text
            elif word == words.ANNOUNCED:
                self._reach(Stage.ANNOUNCED)

    def _serves(self, worker: Worker) -> None:
        if worker.phase is not Phase.STARTING:
            return
        worker.phase, worker.began = Phase.SERVING, self._now()
        self._reach(Stage.FILLING)
        restart = self._restart
        if restart is not None and worker.body is restart.body:
            # With the first new worker that serves: later replacements are of the new configuration.
            self._body = restart.body
            if restart.old and sum(one.replaceable for one in self._workers) > self.count:
                self._drain(restart.old.pop(0))
        log.debug("%s serves", worker.name)

    def _reap(self) -> None:
        for worker in tuple(self._workers):
            try:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = worker.pid, 0
            if pid:
                # Its last message, which may be the reason of its end, is read before the pipe is closed.
                self._receive(worker)
                worker.pipe.close()
                self._workers.remove(worker)
                self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: Worker, code: int) -> None:
        # Before another worker may take the slot: what this one counted is cleared.
        self._worker_ended(worker.slot)
        for other in self._workers:
            other.pipe.send(words.NEIGHBOUR_ENDED)
        if self._announcer is worker:
            self._announcer = None
        if self._restart is not None and worker in self._restart.old:
            self._restart.old.remove(worker)
        if worker.phase is Phase.DRAINING or self._stage is Stage.STOPPING:
            return
        reason = worker.failure or _ending(code)
        restart = self._restart
        if restart is not None and worker.phase is Phase.STARTING and worker.body is restart.body:
            log.error("the restart ends, and the workers that serve stay: %s", reason)
            self._restart = None
            self._restart_ended()
            return
        if self._stage is Stage.FIRST and (worker.failure or code == EXIT_FAULT):
            self._failure, self._is_faulty = worker.failure, not worker.failure
            self._stop()
            return
        lived = self._now() - worker.began if worker.phase is Phase.SERVING else 0.0
        self._failures = 0 if lived >= self._limits.stable else self._failures + 1
        pause = 0.0
        if self._failures:
            pause = min(self._limits.last_pause, self._limits.first_pause * 2.0 ** min(self._failures - 1, 16))
        self._may_start_at = self._now() + pause
        log.error("%s ended: %s; another one starts in %g seconds", worker.name, reason, pause)

    # -- decisions

    def _advance(self) -> None:
        """Take every step that is due."""
        now = self._now()
        if self._notifier.pause is not None and now >= self._next_sign:
            self._notifier.alive()
            self._next_sign = now + self._notifier.pause
        for worker in self._workers:
            self._kill_late(worker, now)
        if now >= self._looks.due:
            self._kill_hung(now)
        if self._stage is Stage.STOPPING:
            return
        self._advance_restart()
        while self._missing() and now >= self._may_start_at:
            self._start(self._next_body())
        if self._stage is Stage.FILLING and self._serving() >= self.count:
            self._reach(Stage.READY)
            self._all_serve()
        if self._stage is Stage.READY and self._announcer is None:
            self._announcer = next((one for one in self._workers if one.phase is Phase.SERVING), None)
            if self._announcer is not None:
                self._announcer.pipe.send(words.ANNOUNCE)

    def _advance_restart(self) -> None:
        settled = self._serving() == len(self._workers) == self.count
        if self._restart is not None and settled and not self._restart.old:
            self._restart = None
            log.info("all workers were restarted")
            self._restart_ended()
        if self._restart_wanted and self._restart is None and settled:
            self._restart_wanted = False
            try:
                self._restart = Restart(self._read(), list(self._workers))
            except (MooringError, OSError) as error:
                log.error("the configuration is not used, and the workers that serve stay: %s", error)
                self._restart_ended()

    def _restart_ended(self) -> None:
        if not self._restart_wanted:
            self._notifier.ready()

    def _reach(self, stage: Stage) -> None:
        self._stage = max(self._stage, stage)

    def _missing(self) -> int:
        """Return how many workers are to be started."""
        if self._stage is Stage.STOPPING:
            return 0
        wanted = 1 if self._stage is Stage.FIRST else self.count
        present = sum(worker.replaceable for worker in self._workers)
        restart = self._restart
        if restart is not None:
            is_turn = len(self._workers) == self.count == self._serving()
            wanted += bool(restart.old) and (is_turn or present > self.count)
        return min(wanted - present, self.slots - len(self._workers))

    def _next_body(self) -> Body:
        restart = self._restart
        return restart.body if restart is not None and self._serving() == self.count else self._body

    def _serving(self) -> int:
        return sum(worker.phase is Phase.SERVING for worker in self._workers)

    def _kill_late(self, worker: Worker, now: float) -> None:
        if worker.phase is Phase.STARTING and now >= worker.began + self._limits.start:
            log.error("%s does not serve after %g seconds; killing it", worker.name, self._limits.start)
        elif worker.phase is Phase.DRAINING and now >= worker.began + self._limits.drain:
            log.error("%s still drains after %g seconds; killing it", worker.name, self._limits.drain)
        else:
            return
        # Not killed again before another such time has passed.
        worker.began = now
        _kill(worker.pid, signal.SIGKILL)

    def _kill_hung(self, now: float) -> None:
        serving = {worker.pid: worker for worker in self._workers if worker.phase is Phase.SERVING}
        for pid in self._looks.hung({pid: self._beats(worker.slot) for pid, worker in serving.items()}, now):
            log.error(
                "%s hangs: its event loop did not run for %g seconds; killing it", serving[pid].name, self._looks.span
            )
            _kill(pid, signal.SIGKILL)

    def _drain(self, worker: Worker) -> None:
        worker.phase, worker.began = Phase.DRAINING, self._now()
        worker.pipe.send(words.DRAIN)

    def _stop(self) -> None:
        self._reach(Stage.STOPPING)
        # Once the stage is reached: no worker starts any more.
        self._stopping()
        for worker in self._workers:
            self._drain(worker)

    def _kill_all(self) -> None:
        for worker in self._workers:
            _kill(worker.pid, signal.SIGKILL)

    # -- processes

    def _start(self, body: Body) -> None:
        slot = min(set(range(self.slots)) - {worker.slot for worker in self._workers})
        ours, theirs = line_pair()
        queuedoutput.drain()
        gc.collect()
        # Collections in the workers leave these pages alone, so that they stay shared.
        gc.freeze()
        # The child must not report a signal of its own to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            ours.close()
            theirs.close()
            self._failures += 1
            self._may_start_at = self._now() + self._limits.last_pause
            log.error("no worker can be started: %s", os.strerror(error.errno or errno.EAGAIN))
            return
        # The child closes what is not its own: a pipe would not end with the parent while another process holds it.
        if pid == 0:
            ours.close()
            for worker in self._workers:
                worker.pipe.close()
            _become_worker(body, slot, theirs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        theirs.close()
        self._workers.append(Worker(slot, pid, ours, body, self._now()))


def slots_for(count: int) -> int:
    """Return the number of slots of so many workers."""
    return count + 1


def _become_worker(body: Body, slot: int, pipe: WorkerPipe) -> None:
    """Run the body in a process that was just forked, and end the process. Nothing of the parent's runs after it."""
    code = EXIT_FAULT
    try:
        signal.set_wakeup_fd(-1)
        # Handlers first: a signal that was blocked is delivered when the mask is lifted.
        for number, handler in WORKER_SIGNALS.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = body(slot, pipe)
    except BaseException:
        log.exception("a worker ended by a fault")
    finally:
        queuedoutput.drain()
        os._exit(code)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_terminal() -> bool:
    """Return whether standard input is a terminal that is still there."""
    return os.isatty(0)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor from which the numbers of arriving signals are read, and restore the handlers afterwards."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    # A handler must not block when the pipe is full; one byte is enough to wake.
    os.set_blocking(writing, False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    before = signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _received(signals: int) -> bytes:
    try:
        return os.read(signals, 4096)
    except BlockingIOError:
        return b""
