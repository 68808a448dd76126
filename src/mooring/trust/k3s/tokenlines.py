"""Token lines of files that a k3s agent is configured by: environment files and config.yaml.

Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
* `K3S_TOKEN=…` (systemd's EnvironmentFile and shell files, with or without `export` and quotes) and `token: …` or `t: …`
  (config.yaml, with or without quotes and a comment behind) hold a token. A line is blanked only when it holds the token that was
  used. Every other byte stays, but for such a comment.
"""

from __future__ import annotations

import re

from mooring.secret import Secret

_LINE = re.compile(rb"(?m)^([ \t]*(?:(?:export[ \t]+)?K3S_TOKEN=|t(?:oken)?\+?:))([^\r\n]*)")
_QUOTES = (b"'", b'"')


def blank_token_lines(text: bytes, token: Secret) -> bytes:
    """Return the text with an empty value in each line that holds `token`."""

    def blank(match: re.Match[bytes]) -> bytes:
        is_yaml, value = match[1].endswith(b":"), match[2].strip(b" \t")
        forms = (value, value.partition(b" #")[0].rstrip(b" \t")) if is_yaml else (value,)
        if not any(token.matches(_unquoted(form)) for form in forms):
            return match[0]
        return match[1] + (b" " if is_yaml else b"") + b'""'

    return _LINE.sub(blank, text)


def _unquoted(value: bytes) -> bytes:
    is_quoted = len(value) > 1 and value[:1] == value[-1:] and value[:1] in _QUOTES
    return value[1:-1] if is_quoted else value
