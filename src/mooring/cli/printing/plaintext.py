"""Printable form of untrusted text, for terminals and logs.

Rules kept here: a character that is not printable (control characters, terminal escapes, line and paragraph separators, controls of
writing direction, zero-width and unassigned ones) becomes a visible escape such as `\n`, `\x1b` or `\u202e`. So no text begins
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


# Redaction of secrets in messages (law 9).
#
# Rules kept here: of a bootstrap token the public id stays, and of a K10 token the hash. User and password after it, those in a
# URL, a signed token (JWT) and a private key are removed whole. The token in Kubernetes' documentation, which messages show as an
# example, stays. Redaction is the last protection, for messages that repeat input; the messages of this program hold no secrets.

_SECRETS = (
    (re.compile(r"(?<![a-z0-9])(?!abcdef\.0123456789abcdef)([a-z0-9]{6})\.[a-z0-9]{16}(?![a-z0-9])"), r"\1.(redacted)"),
    (re.compile(r"(K10(?:[0-9a-f]{64})?::)[^\s:]{0,253}:\S+"), r"\1(redacted)"),
    (
        re.compile(
            r"(?<![A-Za-z0-9_-])((?>[A-Za-z0-9_-]*?(?=eyJ)))"  # the text before a JWT, tried once: the work stays linear
            r"eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+\.[A-Za-z0-9_-]++"
        ),
        r"\1(redacted)",
    ),
    (
        re.compile(
            r"(?<=://)(?:(?:[^\s/@]++@)+"
            # a password with a slash, behind which the address looks like a path; it ends before another URL
            r"|(?![\d.]+:)[^\s/@:?#\[]++:(?:(?:(?!://)[^\s?#@])*+@)+)"
        ),
        "(redacted)@",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), "(redacted)"),
)


def redacted(text: str) -> str:
    """Return the text without parts that look like secrets."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
