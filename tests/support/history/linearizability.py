"""Linearizability of the operations on one key (Wing and Gong 1993, with Lowe's memory of configurations, as in Porcupine).

The search places operations one after another, each between its begin and its end, so that every reply follows from the state
before it. A configuration is the set of operations placed and the state they lead to; one that was tried before is not tried
again. Operations without a reply may be placed or left out: the search has succeeded when all others are placed. A record is
linearizable when each of its keys is (locality, Herlihy and Wing 1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.history.operations import ABSENT, Operation, Record

MAX_CONFIGURATIONS = 2_000_000
"""Configurations of one key, about 300 MB: a record of 10 000 operations with 20 clients on 20 keys needs a hundredth."""


class TooManyConfigurationsError(Exception):
    """The record of one key cannot be judged within MAX_CONFIGURATIONS."""


@dataclass(frozen=True, slots=True)
class NotLinearizable:
    """The longest prefix of a linearization that was found, and an operation that no order lets follow."""

    placed: tuple[Operation, ...]
    stuck: Operation
    state: str

    def __str__(self) -> str:
        before = "\n  ".join(str(operation) for operation in self.placed[-6:])
        state = self.state or "absent"
        return f"{self.stuck.key} is not linearizable: no order explains\n  {self.stuck}\nwhere it is {state}, after\n  {before}"


def judge_record(record: Record) -> list[NotLinearizable]:
    """Return the finding of each key whose operations are not linearizable."""
    found = (judge(operations) for operations in record.of_each_key().values())
    return [finding for finding in found if finding is not None]


def judge(operations: Sequence[Operation]) -> NotLinearizable | None:
    """Return None when the operations of one key, which is absent at first, are linearizable."""
    return _Search(operations).run()


class _Search:
    """Events of the record form a doubly linked list. Placing an operation takes its begin and its end out of the list."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        events = [(operation.begin, number, True) for number, operation in enumerate(operations)]
        events += [(op.end, number, False) for number, op in enumerate(operations) if op.end is not None]
        events.sort()
        self._events = [(number, is_begin) for _, number, is_begin in events]
        size = len(events)
        self._after = [*range(1, size + 1), 0]
        self._before = [size, *range(size)]
        self._head = size
        self._ends = {number: place for place, (number, is_begin) in enumerate(self._events) if not is_begin}

    def run(self) -> NotLinearizable | None:
        """Search depth first. The head of the list is also its end: there, no operation is left that must be placed."""
        tried: set[tuple[int, str]] = set()
        placed: list[tuple[int, str, int]] = []
        longest: NotLinearizable | None = None
        done, state = 0, ABSENT
        place = self._after[self._head]
        left = len(self._ends)
        while left:
            number, is_begin = self._events[place]
            operation = self._operations[number]
            if is_begin:
                after = operation.state_after(state)
                configuration = (done | 1 << number, after or ABSENT)
                useless = operation.end is None and after == state
                if after is None or useless or configuration in tried:
                    place = self._after[place]
                    continue
                tried.add(configuration)
                if len(tried) > MAX_CONFIGURATIONS:
                    raise TooManyConfigurationsError(operation.key)
                placed.append((place, state, done))
                done, state = configuration
                left -= operation.end is not None
                self._take_out(place, number)
                place = self._after[self._head]
                continue
            if longest is None or len(placed) > len(longest.placed):
                order = tuple(self._operations[self._events[one][0]] for one, _, _ in placed)
                longest = NotLinearizable(order, operation, state)
            if not placed:
                return longest
            place, state, done = placed.pop()
            number, _ = self._events[place]
            left += self._operations[number].end is not None
            self._put_back(place, number)
            place = self._after[place]
        return None

    def _take_out(self, place: int, number: int) -> None:
        for one in (place, self._ends.get(number)):
            if one is not None:
                self._after[self._before[one]] = self._after[one]
                self._before[self._after[one]] = self._before[one]

    def _put_back(self, place: int, number: int) -> None:
        for one in (self._ends.get(number), place):
            if one is not None:
                self._after[self._before[one]] = one
                self._before[self._after[one]] = one
