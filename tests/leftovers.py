"""Descriptors that tests leave open, in the pytest session.

Rules kept here:
* A test that leaves a new descriptor open is followed by a collection of garbage. When Python finds then that a socket, transport
  or file of this test was not closed, the test fails: the one that opened it, and not the one during which it is found by chance.
* What is found later, because a thread or another reference held it until then, belongs to an earlier test. It fails no other test:
  the session lists it at its end, with the test that opened it. `--fail-on-leftovers` makes such a session fail.
* A descriptor is known by its number and what is open there: a number is used again once it was closed. Descriptors of which Python
  does not warn, such as those of `os.pipe`, are not noticed.
* No garbage is collected while pytest describes a failure: in Python 3.11 that could end the whole session.
* A process that a test started and did not wait for is listed with that test, too, where Linux lists the children of a thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.counts import counted

TASKS = "/proc/self/task"
DESCRIPTOR = re.compile(r"\bfd=(\d+)")
PROCESS = re.compile(r"subprocess (\d+) is still running")
OUTPUT = "leftovers"
"""Key of the lines that a worker of pytest-xdist sends to the controller."""

Opened = tuple[int, int, int]
"""An open descriptor: its number, and the device and inode behind it."""


class LeftOpenError(Exception):
    """A test did not close what it opened."""


@dataclass
class Watch:
    """Descriptors of this process, by the test that opened them."""

    default: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
    open_before: frozenset[Opened] = frozenset()
    """What was open when the running test began."""
    opened_by: dict[Opened, str] = field(default_factory=dict)
    children_before: frozenset[int] = frozenset()
    """Processes that ran when the running test began."""
    started_by: dict[int, str] = field(default_factory=dict)
    running: str = ""
    collecting: list[str] | None = None
    """What the collection at the end of the running test found of it; None at any other time."""
    found_later: list[str] = field(default_factory=list)

    def on_unraisable(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        """Assign what was not closed to its test; leave every other error to pytest."""
        if not isinstance(unraisable.exc_value, ResourceWarning):
            self.default(unraisable)
            return
        text = str(unraisable.exc_value)
        process = PROCESS.match(text)
        if process is not None and int(process[1]) in self.children_before:
            starter = self.started_by.get(int(process[1]), "an unknown test")
            self.found_later.append(f"{starter}: {text} (found during {self.running})")
            return
        opened = opened_at(descriptor_of(unraisable.object, text))
        if opened is not None and opened in self.open_before:
            opener = self.opened_by.get(opened, "an unknown test")
            self.found_later.append(f"{opener}: {text} (found during {self.running})")
        elif self.collecting is None:
            self.default(unraisable)
        elif opened is not None:
            self.collecting.append(text)
        elif process is not None and int(process[1]) in children():
            self.found_later.append(f"{self.running}: {text}")
        else:  # a process that nobody waited for, say, of this test or of one before
            self.found_later.append(f"{self.running}, or a test before it: {text}")

    def begin(self, test: str) -> None:
        self.running, self.open_before, self.children_before = test, open_descriptors(), children()

    def end(self) -> None:
        """Collect garbage if the running test left a descriptor open. Raises LeftOpenError."""
        if not (open_descriptors() - self.open_before or children() - self.children_before):
            return
        self.collecting = []
        try:
            gc.collect()
            unclosed = self.collecting
        finally:
            self.collecting = None
        now = open_descriptors()
        self.opened_by = {opened: test for opened, test in self.opened_by.items() if opened in now}
        self.opened_by |= dict.fromkeys(now - self.open_before, self.running)
        there = children()
        self.started_by = {child: test for child, test in self.started_by.items() if child in there}
        self.started_by |= dict.fromkeys(there - self.children_before, self.running)
        if unclosed:
            raise LeftOpenError(f"the test did not close what it opened: {'; '.join(unclosed)}")


def children() -> frozenset[int]:
    """Return the processes that threads of this one started, and that were not waited for; none where Linux does not list them."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # no /proc
        for task in os.listdir(TASKS):
            with (
                contextlib.suppress(OSError),
                open(f"{TASKS}/{task}/children", "rb") as listed,
            ):  # OSError: a thread that ended
                found.update(map(int, listed.read().split()))
    return frozenset(found)


def descriptor_of(found: Any, text: str) -> int | None:
    """Return the descriptor of a socket, transport or file that was not closed."""
    if match := DESCRIPTOR.search(text):
        return int(match[1])
    try:
        return int(found.fileno())
    except (AttributeError, OSError, ValueError, TypeError):
        return None


def opened_at(descriptor: int | None) -> Opened | None:
    """Return what is open at a number; None when nothing is."""
    try:
        found = os.fstat(-1 if descriptor is None else descriptor)
    except OSError:
        return None
    return -1 if descriptor is None else descriptor, found.st_dev, found.st_ino


def open_descriptors() -> frozenset[Opened]:
    """Return the open descriptors of this process, without the one that reads them."""
    found = (opened_at(int(name)) for name in os.listdir("/dev/fd"))
    return frozenset(opened for opened in found if opened is not None)


WATCH = pytest.StashKey[Watch]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-leftovers", action="store_true", help="fail when a test left a socket open that a later one found"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    watch = session.config.stash[WATCH] = Watch(sys.unraisablehook)
    sys.unraisablehook = watch.on_unraisable


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.config.stash[WATCH].begin(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    item.config.stash[WATCH].end()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Collect no garbage while pytest parses the lines of a failure.

    What finds something unclosed prints a traceback, for which Python 3.11 parses lines too. One parser inside another one's
    collection ends it with SystemError, and the whole session with it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if collecting:
            gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    watch = session.config.stash[WATCH]
    sys.unraisablehook = watch.default
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[OUTPUT] = watch.found_later
    elif watch.found_later and session.config.getoption("--fail-on-leftovers") and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take over what a worker found. It ends before the session of the controller."""
    output: dict[str, list[str]] = getattr(node, "workeroutput", {})
    config: pytest.Config = getattr(node, "config")  # noqa: B009 - the type of a node is not a public name
    config.stash[WATCH].found_later += output.get(OUTPUT, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash[WATCH].found_later:
        terminalreporter.write_sep("=", f"{counted(len(found), 'thing')} left open by earlier tests")
        for line in sorted(found):
            terminalreporter.write_line(line)
