"""The server token of one server: as it was given, else as it stands in `<data-dir>/server/token`.

Rules kept here:
* The first server of a cluster makes a token. It is durable before keys are sealed with it.
* A token that opened the keys is kept, 0600, so that later starts need no flag.
* No error and no log line repeats it.
"""

from __future__ import annotations

from pathlib import Path

from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.plane.configuration import ServerConfig
from mooring.plane.exposed import warn_if_exposed
from mooring.secret import Secret
from mooring.trust.sharedkeys.servertoken import parse_token
from mooring.trust.sharedkeys.settings import SharedKeysSettings

MAX_FILE = 4096
"""Bytes: the longest token, and whitespace around it."""


class ServerTokenFile:
    """The server token of one data directory."""

    def __init__(self, config: ServerConfig) -> None:
        self.path = Path(config.data_dir) / "server" / "token"
        self._settings = config[SharedKeysSettings]

    @property
    def is_given(self) -> bool:
        """True when a setting gives the token."""
        return self._settings.server_token is not None or bool(self._settings.server_token_file)

    def given(self) -> Secret | None:
        """Return the token that a setting gives; None when none does. Raises ConfigError."""
        if self._settings.server_token is not None:
            return self._settings.server_token
        if file := self._settings.server_token_file:
            warn_if_exposed(Path(file))
            return _parsed(f"server-token-file: {file}", read_limited(Path(file), MAX_FILE))
        return None

    def kept(self) -> Secret | None:
        """Return the token in the data directory; None when there is none. Raises ConfigError."""
        if not self.path.exists():
            return None
        warn_if_exposed(self.path)
        return _parsed(str(self.path), read_limited(self.path, MAX_FILE))

    def keep(self, token: Secret) -> None:
        """Write the token into the data directory, unless it is there."""
        if not self.path.exists() or self.kept() != token:
            make_directory(self.path.parent)
            write_atomic(self.path, token.reveal() + b"\n")

    def forget(self) -> None:
        """Remove a token that was made in vain."""
        self.path.unlink(missing_ok=True)


def _parsed(place: str, data: bytes) -> Secret:
    try:
        return parse_token(data)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
