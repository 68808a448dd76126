"""Text that counts its comparisons: a linear check makes few, a check of each item against each makes many."""

from __future__ import annotations


class Compared(str):
    """A `str`; `times` counts the comparisons of all instances."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def many(count: int) -> list[str]:
    """Return `count` different texts and set the counter to 0."""
    Compared.times = 0
    return [Compared(f"text-{number}") for number in range(count)]
