"""Token lines of files that a k3s agent is configured by: environment files and config.yaml.

Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
* `K3S_TOKEN=…` (systemd's EnvironmentFile and shell files, with or without `export` and quotes) and `token: …` or `t: …`
  (config.yaml, with or without quotes and a comment behind) hold a token. A line is blanked only when it holds the token that was
  used. All else stays, and so does the comment, unless the token is in it, too.
* Other lines are not rewritten: a quoted key, a block, a flow mapping. `holds_token` finds the token in them.
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
        bare, mark, comment = value.partition(b" #") if is_yaml else (value, b"", b"")
        if token.matches(_unquoted(value)):
            mark = comment = b""
        elif not token.matches(_unquoted(bare.rstrip(b" \t"))):
            return match[0]
        kept = mark + comment if token.reveal() not in comment else b""
        return match[1] + (b" " if is_yaml else b"") + b'""' + kept

    return _LINE.sub(blank, text)


def holds_token(text: bytes, token: Secret) -> bool:
    """Return True when the text has the token as a whole word: a short one is a part of other words by chance."""
    return re.search(rb"(?<![\w-])" + re.escape(token.reveal()) + rb"(?![\w-])", text) is not None


def _unquoted(value: bytes) -> bytes:
    is_quoted = len(value) > 1 and value[:1] == value[-1:] and value[:1] in _QUOTES
    return value[1:-1] if is_quoted else value
