"""Redaction of secrets in messages (law 9).

Rules kept here: of a bootstrap token the public id stays, and of a K10 token the hash. User and password after it, those in a URL,
a signed token (JWT) and a private key are removed whole. The token in Kubernetes' documentation, which messages show as an example,
stays. Redaction is the last protection, for messages that repeat input; the messages of this program hold no secrets.
"""

from __future__ import annotations

import re

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
