"""Printable form of untrusted text, for terminals and logs.

Rules kept here: a character that is not printable (control characters, terminal escapes, line and paragraph separators, controls of
writing direction, zero-width and unassigned ones) becomes a visible escape such as `\\n`, `\\x1b` or `\\u202e`. So no text begins
another line, moves the cursor, or is displayed in another order. A text that is cut ends with the number of missing characters.
"""

from __future__ import annotations

import re

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_WORDS = re.compile(r"[ -~]*")
"""Printable ASCII: nearly all text matches and needs no check of each character."""


def clean(text: str, limit: int = 0) -> str:
    """Return `text` on one line, printable, and with at most `limit` of its characters unless `limit` is 0."""
    if limit and len(text) > limit:
        return f"{clean(text[:limit])}... ({len(text) - limit} more characters)"
    if _WORDS.fullmatch(text):
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    number = ord(character)
    return _SHORT.get(character) or (
        f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
    )
