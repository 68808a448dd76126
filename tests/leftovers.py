"""Descriptors that tests leave open, in the pytest session.

Rules kept here:
* A test that leaves a new descriptor open is followed by a collection of garbage. When that finds a socket, transport or file that
  was not closed, the test fails: the one that opened it, and not the one during which the garbage happens to be collected.
* What is found later, because a thread or another reference held it until then, belongs to an earlier test. It fails no other test:
  the session lists it at its end, with the test that opened it. `--fail-on-leftovers` makes such a session fail.
* Descriptors are what is compared: as long as something is not closed, its number is not used again.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import pytest

DESCRIPTOR = re.compile(r"\bfd=(\d+)")
OUTPUT = "leftovers"
"""Key of the lines that a worker of pytest-xdist sends to the controller."""


class LeftOpenError(Exception):
    """A test did not close what it opened."""


@dataclass
class Watch:
    """Descriptors of this process, by the test that opened them."""

    default: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
    open_before: frozenset[int] = frozenset()
    """Descriptors that were open when the running test began."""
    opened_by: dict[int, str] = field(default_factory=dict)
    running: str = ""
    collecting: list[str] | None = None
    """What the collection at the end of the running test found; None at any other time."""
    found_later: list[str] = field(default_factory=list)

    def on_unraisable(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        """Assign an unclosed descriptor to its test; leave every other error to pytest."""
        text = str(unraisable.exc_value)
        descriptor = DESCRIPTOR.search(text) if isinstance(unraisable.exc_value, ResourceWarning) else None
        if descriptor is not None and int(descriptor[1]) in self.open_before:
            opener = self.opened_by.get(int(descriptor[1]), "an unknown test")
            self.found_later.append(f"{opener}: {text} (found during {self.running})")
        elif self.collecting is not None:
            self.collecting.append(text)
        else:
            self.default(unraisable)

    def begin(self, test: str) -> None:
        self.running, self.open_before = test, open_descriptors()

    def end(self) -> None:
        """Collect garbage if the running test left a descriptor open. Raises LeftOpenError."""
        if not (open_descriptors() - self.open_before):
            return
        self.collecting = []
        try:
            gc.collect()
            unclosed = self.collecting
        finally:
            self.collecting = None
        now = open_descriptors()
        self.opened_by = {number: test for number, test in self.opened_by.items() if number in now}
        self.opened_by |= dict.fromkeys(now - self.open_before, self.running)
        if unclosed:
            raise LeftOpenError(f"the test did not close what it opened: {'; '.join(unclosed)}")


def open_descriptors() -> frozenset[int]:
    """Return the open descriptors of this process."""
    return frozenset(filter(_is_open, map(int, os.listdir("/dev/fd"))))


def _is_open(descriptor: int) -> bool:
    """Return False for the descriptor that read the list, which is closed by now."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


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
        terminalreporter.write_sep("=", f"{len(found)} descriptors were left open by earlier tests")
        for line in sorted(found):
            terminalreporter.write_line(line)
