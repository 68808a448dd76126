"""The token that an agent was given, and its removal from the disk after the first certificate.

Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
* A token file is read when the token is needed, so that a new token in it is found. An empty file, and none,
  hold no token.
* After the certificates are on disk, the token file is emptied, and the lines of the given environment files that hold the token
  are blanked. Other files of the machine are not searched.
* A file is replaced whole, with its mode. What was not done is reported, and stops nothing: a file that cannot be written, one that
  still has the token, on a line of another form, and one that was named and is not there.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mooring.client.files import os_reason, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.k3s.token import K3sToken, TokenFormatError, blank_token_lines, lines_with_token, parse_token

MAX_TOKEN_FILE = 64 << 10
"""Bytes: a token has a hundred, an environment file a few thousand."""
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""Places that can be read once, and not written: a token from there is given as a value."""
MIN_PASSWORD = 8
"""Characters of a password that is looked for without its hash and user: a shorter one is a word of the file by chance."""


@dataclass(frozen=True, slots=True)
class GivenToken:
    """Token of a flag or of the environment, the file of one, and the environment files that may hold it, too."""

    value: Secret | None = None
    file: Path | None = None
    environment_files: tuple[Path, ...] = ()
    default_files: tuple[Path, ...] = ()
    """Default environment files, which no flag names: they may be missing."""
    keeps_files: bool = False

    def read(self) -> K3sToken | None:
        """Return the token; None when none is given. Raises ConfigError."""
        text = self._text()
        if text is None:
            return None
        try:
            return parse_token(text.reveal())
        except TokenFormatError as error:
            source = f"the token in {self.file}" if self.file is not None else "the token"
            raise ConfigError(f"{source} cannot be used: {error}") from None

    def _text(self) -> Secret | None:
        if self.file is None:
            return self.value
        try:
            return Secret(read_limited(self.file, MAX_TOKEN_FILE).strip()) or None
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def forget(self) -> tuple[Sequence[Path], Sequence[str]]:
        """Remove the token from the files. Return those that changed, and what was not done."""
        used = self._text()
        if used is None or self.keeps_files:
            return (), ()
        forms = _forms(used)
        changed, problems = [], []
        own = () if self.file is None else (self.file,)
        for path in dict.fromkeys((*own, *self.environment_files, *self.default_files)):
            if path in self.default_files and not path.exists():
                continue
            try:
                content = read_limited(path, MAX_TOKEN_FILE)
            except ConfigError as error:
                problems.append(f"no token was removed from a file: {error}")
                continue
            after = b"" if path == self.file else blank_token_lines(content, forms)
            try:
                if after != content:
                    _replace(path, after)
                    changed.append(path)
            except ConfigError as error:
                problems.append(f"the token is still on disk: {error}")
                continue
            left = lines_with_token(after, forms)
            if left is not None:
                place = f"{path}, {_numbered(left)}," if left else f"{path}, on several lines,"
                problems.append(f"the token is still on disk: {place} in a form that is not rewritten; remove it there")
        return changed, problems


def _forms(text: Secret) -> tuple[Secret, ...]:
    """Return the token as it was given, and what stands behind its hash."""
    try:
        token = parse_token(text.reveal())
    except TokenFormatError:
        return (text,)
    if token.bootstrap is not None:
        return text, Secret(token.bootstrap.reveal())
    password = token.password
    return (text, password) if password is not None and len(password.reveal()) >= MIN_PASSWORD else (text,)


def _numbered(lines: Sequence[int]) -> str:
    return f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"


def _replace(path: Path, content: bytes) -> None:
    """Replace a file, not a link to it, and keep its mode. Raises ConfigError."""
    target = path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {os_reason(error)}") from None
    write_atomic(target, content, mode)
