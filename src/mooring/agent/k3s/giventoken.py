"""The token that an agent was given, and its removal from the disk after the first certificate.

Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
* A token file is read when the token is needed, so that a new token in it is found. An empty file, and none,
  hold no token.
* After the certificates are on disk, the token file is emptied, and the lines of the given environment files that hold the token
  are blanked. Other files of the machine are not searched.
* A file is replaced whole, with its mode. A file that cannot be written is reported, and so is one that still has the token, on a
  line of another form. Neither stops anything.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mooring.client.files import read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.k3s.token import K3sToken, TokenFormatError, parse_token
from mooring.trust.k3s.tokenlines import blank_token_lines, holds_token

MAX_TOKEN_FILE = 64 << 10
"""Bytes: a token has a hundred, an environment file a few thousand."""
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""Places that can be read once, and not written: a token from there is given as a value."""


@dataclass(frozen=True, slots=True)
class GivenToken:
    """Token of a flag or of the environment, the file of one, and the environment files that may hold it, too."""

    value: Secret | None = None
    file: Path | None = None
    environment_files: tuple[Path, ...] = ()
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
        """Remove the token from the files. Return those that changed, and what could not be done."""
        used = self._text()
        if used is None or self.keeps_files:
            return (), ()
        changed, problems = [], []
        for path in (*(() if self.file is None else (self.file,)), *self.environment_files):
            try:
                is_changed, is_left = _blank(path, used, whole=path == self.file)
            except ConfigError as error:
                problems.append(str(error))
                continue
            if is_changed:
                changed.append(path)
            if is_left:
                problems.append(f"{path} has it on a line of another form; remove it there")
        return changed, problems


def _blank(path: Path, token: Secret, *, whole: bool) -> tuple[bool, bool]:
    """Return whether the file was changed, and whether the token is still in it. `whole`: the file is nothing but the token."""
    path = path.resolve()  # the file is replaced, not a link to it
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return False, False
    content = read_limited(path, MAX_TOKEN_FILE)
    after = b"" if whole else blank_token_lines(content, token)
    if after != content:
        write_atomic(path, after, mode)
    return after != content, holds_token(after, token)
