"""Storage keys: validity, order and the end of a prefix.

Rules kept here: keys are ordered by their UTF-8 bytes, which for valid text is the order of its code points, so comparing
`str` gives the right order and no driver needs a collation of its own. A key that has no UTF-8 form is refused before any driver
sees it.
"""

from __future__ import annotations

from mooring.errors import StorageError

_LAST = "\U0010ffff"
_BEFORE_SURROGATES, _AFTER_SURROGATES = "\ud7ff", "\ue000"


def check_key(key: str) -> None:
    """Raise StorageError unless `key` can be stored. The message does not repeat the key."""
    if not key:
        raise StorageError("a key must not be empty")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            # `from None`: the error of the codec contains the key
            raise StorageError("a key must be valid Unicode text") from None


def end_of_prefix(prefix: str) -> str | None:
    """Return the smallest text greater than every text that starts with `prefix`; None when there is none."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    last = stem[-1]
    following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1)
    return stem[:-1] + following
