"""Runs the authenticator of bootstrap tokens, which reads Secrets from the views and follows nothing."""

from __future__ import annotations

from mooring.authn.bootstraptoken.authenticator import BootstrapTokenAuthenticator
from mooring.authn.host import Configured, Host, Running


def build(config: Configured, host: Host) -> Running:
    """Return the authenticator of bootstrap tokens, which is always on."""
    return Running(authenticators=(BootstrapTokenAuthenticator(),))
