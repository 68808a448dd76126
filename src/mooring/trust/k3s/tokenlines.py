"""Token lines of files that a k3s agent is configured by: environment files and config.yaml.

Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
* `K3S_TOKEN=…` (systemd's EnvironmentFile and shell files, with or without `export` and quotes) and `token: …` or `t: …`
  (config.yaml, with or without quotes and a comment behind) hold a token. A line is blanked only when it holds the token that was
  used. All else stays, and so does the comment, unless the token is in it, too.
* Other lines are not rewritten: a quoted key, a block, a flow mapping. `lines_with_token` finds the token in them.
* A token has several forms: the whole one, and what stands behind the hash. Each is given as a Secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mooring.secret import Secret

_LINE = re.compile(rb"(?m)^([ \t]*(?:(?:export[ \t]+)?K3S_TOKEN=|t(?:oken)?\+?:))([^\r\n]*)")
_QUOTES = (b"'", b'"')
_CONTINUED = re.compile(rb"\\\r?\n[ \t]*")
"""End of a line that goes on with the next one, in a shell, a unit of systemd, and a quoted text of YAML."""


def blank_token_lines(text: bytes, forms: Sequence[Secret]) -> bytes:
    """Return the text with an empty value in each line that holds the token in one of its forms."""

    def is_token(value: bytes) -> bool:
        return any(form.matches(_unquoted(value)) for form in forms)

    def blank(match: re.Match[bytes]) -> bytes:
        is_yaml, value = match[1].endswith(b":"), match[2].strip(b" \t")
        bare, mark, comment = value.partition(b" #") if is_yaml else (value, b"", b"")
        if is_token(value):
            mark = comment = b""
        elif not is_token(bare.rstrip(b" \t")):
            return match[0]
        kept = mark + comment if not any(form.reveal() in comment for form in forms) else b""
        return match[1] + (b" " if is_yaml else b"") + b'""' + kept

    return _LINE.sub(blank, text)


def lines_with_token(text: bytes, forms: Sequence[Secret]) -> tuple[int, ...] | None:
    """Return the numbers of the lines that hold the token; none when it is spread over several lines. None: it is not there.

    A form is found as a whole word: a short one is a part of other words by chance. Text in UTF-16 is searched as well.
    """
    text = text.replace(b"\0", b"")
    words = re.compile(b"|".join(rb"(?<![\w-])" + re.escape(form.reveal()) + rb"(?![\w-])" for form in forms))
    if lines := tuple(number for number, line in enumerate(text.split(b"\n"), start=1) if words.search(line)):
        return lines
    return () if words.search(_CONTINUED.sub(b"", text)) else None


def _unquoted(value: bytes) -> bytes:
    is_quoted = len(value) > 1 and value[:1] == value[-1:] and value[:1] in _QUOTES
    return value[1:-1] if is_quoted else value
