"""Numbers in sentences of the suite's own plugins."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """Return "1 test", or "2 tests"."""
    return f"{count} {what}{'' if count == 1 else 's'}"
