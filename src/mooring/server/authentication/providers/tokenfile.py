"""Runs the authenticator of `--token-auth-file`, which is followed while the server runs."""

from __future__ import annotations

from mooring.authn.host import Configured, Host, Running
from mooring.authn.tokenfile import KEY_BYTES, TokenFileAuthenticator, TokenFileSettings
from mooring.server.authentication.providers.userfile import follow

KEY = "token-auth-file"


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without a file. Raises ConfigError."""
    path = config[TokenFileSettings].token_auth_file
    if not path:
        return None
    authenticator = TokenFileAuthenticator(host.entropy(KEY_BYTES))
    follow(KEY, path, authenticator.read, authenticator.take, host.files)
    return Running(authenticators=(authenticator,), turned_on_by=KEY)
