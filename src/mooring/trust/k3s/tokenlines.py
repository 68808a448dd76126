"""Token lines of files that a k3s agent is configured by: environment files and config.yaml.

Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
* `K3S_TOKEN=…` (systemd's EnvironmentFile and shell files, with or without `export` and quotes) and `token: …` (config.yaml) hold a
  token. A line is blanked only when it holds the token that was used. Every other byte stays.
"""

from __future__ import annotations

import re

from mooring.secret import Secret

_LINE = re.compile(rb"(?m)^([ \t]*(?:(?:export[ \t]+)?K3S_TOKEN=|token:))([^\r\n]*)")
_QUOTES = (b"'", b'"')


def blank_token_lines(text: bytes, token: Secret) -> bytes:
    """Return the text with an empty value in each line that holds `token`."""

    def blank(match: re.Match[bytes]) -> bytes:
        value = match[2].strip(b" \t")
        if len(value) > 1 and value[:1] == value[-1:] and value[:1] in _QUOTES:
            value = value[1:-1]
        space = b" " if match[1].endswith(b":") else b""
        return match[1] + space + b'""' if token.matches(value) else match[0]

    return _LINE.sub(blank, text)
