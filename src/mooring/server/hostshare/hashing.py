"""Keys of tables in shared memory.

Rules kept here:
* Names have any length, and cells have one word. A key is a keyed hash (BLAKE2b, RFC 7693) of a name, under a random secret that is
  made at the start of the server. A client cannot find another name with the same key, nor choose with whom it shares a set.
* A table is divided into sets of WAYS cells. A name has its place in one set only, so that finding it costs the same at any size.
* 0 marks a free cell.
"""

from __future__ import annotations

from hashlib import blake2b

WAYS = 16
"""Cells of a set. Sets that are a third full on average overflow once in a million."""
SECRET_BYTES = 16


def key_of(name: str, secret: bytes) -> int:
    """Return the key of a name: a word that is not 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8, key=secret).digest(), "little") or 1


def first_cell(key: int, cells: int) -> int:
    """Return the first cell of the set of a key, in a table of `cells` cells."""
    return key % (cells // WAYS) * WAYS
