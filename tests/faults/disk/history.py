"""Writes of programs under disk faults, with every answer, and the judge of them.

Rules kept here: each key has one writer, which begins an operation after the answer to the one before. A write that was refused is
not there, an acknowledged one is, and one of unknown outcome, or without an answer, may be. The state of an absent key is None.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


@dataclass(frozen=True, slots=True)
class Final:
    """A key as a restarted program reads it."""

    value: str
    revision: int


@dataclass
class Keys:
    """Possible states of each key, and the revisions that were acknowledged."""

    possible: dict[str, set[str | None]] = field(default_factory=dict)
    revisions: dict[int, str] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """Revision of the last write to a key, as long as no later one is unknown."""
    newest: int = 0
    findings: list[str] = field(default_factory=list)
    _pending: dict[str, tuple[str | None, int]] = field(default_factory=dict)

    def begin(self, key: str, value: str | None) -> None:
        """Record a write that begins; `value` is None for a deletion."""
        self._pending[key] = value, self.newest

    def end(self, key: str, outcome: str, revision: int = 0) -> None:
        """Record the answer. `revision` is 0 when the answer has none."""
        value, floor = self._pending.pop(key)
        if outcome == UNKNOWN:
            self.states(key).add(value)
            self.last.pop(key, None)
        elif outcome == DONE:
            self.possible[key] = {value}
            self.last.pop(key, None)
            if revision:
                self._acknowledge(key, revision, floor)

    def _acknowledge(self, key: str, revision: int, floor: int) -> None:
        if revision <= floor:
            self.findings.append(f"{key} was written at revision {revision} after {floor} was acknowledged")
        if revision in self.revisions:
            self.findings.append(f"revision {revision} was given to {self.revisions[revision]} and to {key}")
        self.revisions[revision] = key
        self.last[key] = revision
        self.newest = max(self.newest, revision)

    def read(self, key: str, value: str | None) -> None:
        """Record what a read returned, while no write to the key is under way."""
        if value not in self.states(key):
            self.findings.append(f"{key} was read as {_shown(value)}, and may be {self._expected(key)}")

    def states(self, key: str) -> set[str | None]:
        """Return the possible states of a key."""
        return self.possible.setdefault(key, {None})

    def lose(self) -> None:
        """Record that the program ended: no answer comes any more."""
        for key in list(self._pending):
            self.end(key, UNKNOWN)

    def merge(self, other: Keys) -> None:
        """Add the record of another program on the same store, which wrote other keys at the same time."""
        self.findings += other.findings
        self.findings += [
            f"revision {revision} was given to {self.revisions[revision]} and to {key}"
            for revision, key in other.revisions.items()
            if revision in self.revisions
        ]
        self.possible |= other.possible
        self.revisions |= other.revisions
        self.last |= other.last
        self.newest = max(self.newest, other.newest)

    def judge(self, found: Mapping[str, Final], newest: int) -> None:
        """Compare with what a restarted program reads at its `newest` revision."""
        for key in sorted({*self.possible, *found}):
            final = found.get(key)
            self.read(key, None if final is None else final.value)
            if final is not None and key in self.last and final.revision != self.last[key]:
                self.findings.append(f"{key} is at revision {final.revision}, acknowledged was {self.last[key]}")
        if newest < self.newest:
            self.findings.append(f"the newest revision is {newest}, {self.newest} was acknowledged")

    def _expected(self, key: str) -> str:
        return " or ".join(sorted(map(_shown, self.states(key))))


def _shown(value: str | None) -> str:
    return "absent" if value is None else value


def replay(keys: Keys, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Feed the record of one program, whose lines are JSON, to `keys`. Yield the lines that are no operations."""
    for line in lines:
        event = json.loads(line)
        if "outcome" in event:
            keys.end(event["key"], event["outcome"], event.get("revision", 0))
        elif "write" in event:
            keys.begin(event["key"], event["write"])
        elif "read" in event:
            keys.read(event["key"], event["read"])
        else:
            yield event
    keys.lose()
