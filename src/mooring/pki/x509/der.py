"""Elements of DER that the library has parsed before, as their bytes stand there.

Nothing is checked here: the caller passes bytes that a parser has accepted.
"""

from __future__ import annotations


def header_and_content(der: bytes) -> tuple[int, int]:
    """Return the lengths of the header and of the content of the first element."""
    first = der[1]
    if first < 0x80:
        return 2, first
    size = first & 0x7F
    return 2 + size, int.from_bytes(der[2 : 2 + size], "big")


def length(der: bytes) -> int:
    """Return the length of the first element, with its header."""
    return sum(header_and_content(der))


def content(der: bytes) -> bytes:
    """Return the content of the first element."""
    header, size = header_and_content(der)
    return der[header : header + size]
