"""Runs the authenticator of bootstrap tokens, which reads Secrets from the views and follows nothing."""

from __future__ import annotations

from mooring.authn.bootstraptoken import BootstrapTokenAuthenticator, BootstrapTokenSettings
from mooring.authn.host import Configured, Host, Running


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator of bootstrap tokens, unless it is turned off."""
    if not config[BootstrapTokenSettings].enable_bootstrap_token_auth:
        return None
    return Running(authenticators=(BootstrapTokenAuthenticator(host.last_uses),))
