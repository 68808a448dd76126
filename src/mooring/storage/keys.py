"""Keys: their order, their prefixes, what may be one.

Rules kept here: keys are ordered by their UTF-8 bytes, which for valid text is the order of its code points, so `str`
compares rightly and no driver needs a collation of its own. A key that has no UTF-8 form is refused before any driver sees it.
"""

from __future__ import annotations

from mooring.errors import StorageError

_LAST = "\U0010ffff"
_BEFORE_SURROGATES, _AFTER_SURROGATES = "\ud7ff", "\ue000"


def check_key(key: str) -> None:
    """Raises StorageError unless `key` can be stored. The key itself is not repeated: error texts carry none."""
    if not key:
        raise StorageError("a key must not be empty")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            # `from None`: the codec's own error would carry the key along
            raise StorageError("a key must be valid Unicode text") from None


def end_of_prefix(prefix: str) -> str | None:
    """The smallest text greater than every text that starts with `prefix`; None when nothing is."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    last = stem[-1]
    following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1)
    return stem[:-1] + following
