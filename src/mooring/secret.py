"""Secrets have a type (law 9).

Rules kept here: a `Secret` never prints, formats, pickles, copies into JSON or compares in variable time. The bytes come
out only through `reveal()`, a name that a reviewer can grep for.
"""

from __future__ import annotations

import hmac
from typing import NoReturn


class Secret:
    """Bytes nobody may see by accident."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | str) -> None:
        self._value = value.encode() if isinstance(value, str) else bytes(value)

    def reveal(self) -> bytes:
        """The bytes themselves. Never log, format or store what this returns except where it is meant to go."""
        return self._value

    def matches(self, other: bytes | Secret) -> bool:
        """Constant-time equality."""
        return hmac.compare_digest(self._value, other.reveal() if isinstance(other, Secret) else other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other)

    def __hash__(self) -> NoReturn:
        raise TypeError("a Secret is not hashed: a table lookup compares in variable time")

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(redacted)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not serialised")
