"""Record of operations on single keys, and the sequential specification that a linearization has to satisfy.

Rules kept here:
* Positions in the record are the real-time order: an operation that ends before another begins has the lower position.
* A write without a reply has no end: it may take effect at any time after its beginning, or never. A read without a reply says
  nothing and is not recorded.
* The state of a key is the value that it has, or ABSENT. Every write of a record has a value of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

ABSENT = ""
"""State of a key that does not exist."""
ANY = ""
"""Precondition of an update or delete of whatever value the key has."""


class Verb(Enum):
    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Outcome(Enum):
    """Reply to an operation."""

    DONE = "done"
    EXISTS = "the key exists"
    CONFLICT = "the key has another value"
    MISSING = "the key does not exist"
    UNKNOWN = "no reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `value` is written or was read, `expected` the precondition, `revision` that of the reply (0: none)."""

    client: str
    key: str
    verb: Verb
    begin: int
    end: int | None
    outcome: Outcome = Outcome.DONE
    value: str = ABSENT
    expected: str = ANY
    revision: int = 0

    def __str__(self) -> str:
        parts = [self.client, self.verb.value, self.key]
        if self.value:
            parts.append(self.value)
        if self.expected:
            parts.append(f"over {self.expected}")
        return f"[{self.begin}, {'…' if self.end is None else self.end}] {' '.join(parts)}: {self.outcome.value}"

    @property
    def is_write(self) -> bool:
        return self.verb is not Verb.READ

    def state_after(self, state: str) -> str | None:
        """Return the state after the operation took effect on `state`; None when its reply is impossible there.

        An operation of unknown outcome takes effect here as if it had been acknowledged.
        """
        present = state != ABSENT
        match self.verb, self.outcome:
            case Verb.READ, _:
                return state if state == self.value else None
            case Verb.CREATE, Outcome.EXISTS:
                return state if present else None
            case Verb.CREATE, _:
                return None if present else self.value
            case _, Outcome.MISSING:
                return None if present else state
            case _, Outcome.CONFLICT:
                return state if present and state != self.expected else None
            case _:
                if not present or self.expected not in (ANY, state):
                    return None
                return self.value if self.verb is Verb.UPDATE else ABSENT


@dataclass
class Record:
    """Operations in the order in which they ended, and the clock of positions that all clients of one process share."""

    operations: list[Operation] = field(default_factory=list)
    _position: int = 0

    def position(self) -> int:
        """Return the next position."""
        self._position += 1
        return self._position

    def add(
        self,
        client: str,
        key: str,
        verb: Verb,
        begin: int,
        outcome: Outcome = Outcome.DONE,
        *,
        value: str = ABSENT,
        expected: str = ANY,
        revision: int = 0,
    ) -> None:
        """Record an operation that began at `begin` and has its outcome now."""
        unknown = outcome is Outcome.UNKNOWN
        if unknown and verb is Verb.READ:
            return
        self.operations.append(
            Operation(
                client=client,
                key=key,
                verb=verb,
                begin=begin,
                end=None if unknown else self.position(),
                outcome=outcome,
                value=value,
                expected=expected,
                revision=revision,
            )
        )

    def of_each_key(self) -> dict[str, list[Operation]]:
        """Return the operations by key."""
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            found.setdefault(operation.key, []).append(operation)
        return found
