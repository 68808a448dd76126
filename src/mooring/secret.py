"""`Secret`: the type of every secret value, which does not print, serialise, hash, or compare in variable time (law 9).

Rules kept here: the bytes are available only through `reveal()`, a name that a reviewer can search for.
"""

from __future__ import annotations

import hmac
from typing import NoReturn


class Secret:
    """Secret bytes, protected from accidental output."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | str) -> None:
        self._value = value.encode() if isinstance(value, str) else bytes(value)

    def reveal(self) -> bytes:
        """Return the bytes. Never log or format them, and store them only at their destination."""
        return self._value

    def matches(self, other: bytes | Secret) -> bool:
        """Return true when the bytes are equal, compared in constant time."""
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
