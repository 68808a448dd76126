"""Text that counts how often it is compared: what tells a linear check from one that compares each with each."""

from __future__ import annotations


class Compared(str):
    """A `str`; `times` counts the comparisons of all of them."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def many(count: int) -> list[str]:
    """`count` different texts; the counter starts at 0."""
    Compared.times = 0
    return [Compared(f"text-{number}") for number in range(count)]
