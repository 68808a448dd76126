"""What must not be repeated, however it got into a message (law 9).

Rules kept here: a bootstrap token keeps its public id; a signed token (JWT) and a private key keep nothing. The token of
everyone's documentation, which our own messages show as an example, is none. This is the last net
under messages that repeat what was typed; messages of our own never hold a secret to begin with.
"""

from __future__ import annotations

import re

_SECRETS = (
    (re.compile(r"(?<![a-z0-9])(?!abcdef\.0123456789abcdef)([a-z0-9]{6})\.[a-z0-9]{16}(?![a-z0-9])"), r"\1.(redacted)"),
    (re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+"), "(redacted)"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), "(redacted)"),
)


def redacted(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
