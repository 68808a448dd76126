"""Runs the authenticator of user tokens, which follows the keys of the cluster's tokens."""

from __future__ import annotations

from mooring.authn.host import Configured, Host, Running
from mooring.authn.login import LoginSettings, UserTokenAuthenticator


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None when `--login-ttl` is zero, which turns logins off."""
    if not config[LoginSettings].login_ttl:
        return None
    authenticator = UserTokenAuthenticator(host.token_keys.verifying)
    host.token_keys.subscribe(authenticator.replace)
    return Running(authenticators=(authenticator,), turned_on_by="login-ttl")
