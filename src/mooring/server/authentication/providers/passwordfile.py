"""Runs the authenticator of `--basic-auth-file`, which is followed while the server runs."""

from __future__ import annotations

from mooring.authn import verdictcache
from mooring.authn.chain import BASIC
from mooring.authn.host import Configured, Host, Running
from mooring.authn.passwordfile import KEY_BYTES, PasswordFileAuthenticator, PasswordFileSettings
from mooring.authn.verdictcache import CacheSettings, VerdictCache
from mooring.server.authentication.providers.userfile import follow

KEY = "basic-auth-file"


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without a file. Raises ConfigError."""
    path = config[PasswordFileSettings].basic_auth_file
    if not path:
        return None
    remembered = VerdictCache(host.entropy(verdictcache.KEY_BYTES), config[CacheSettings].authentication_cache_ttl)
    authenticator = PasswordFileAuthenticator(host.entropy(KEY_BYTES), remembered)
    follow(KEY, path, authenticator.read, authenticator.take, host.files)
    return Running(authenticators=(authenticator,), turned_on_by=KEY, schemes={BASIC: "Basic"})
