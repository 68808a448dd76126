"""Runs the authenticator of requests without a credential."""

from __future__ import annotations

from mooring.authn.anonymous.authenticator import Anonymous
from mooring.authn.anonymous.settings import AnonymousSettings
from mooring.authn.anonymousaccess import AnonymousAccess
from mooring.authn.host import Configured, Host, Running
from mooring.settings.authorization import AuthorizationSettings


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None when every request needs a credential.

    The AuthenticationConfiguration may decide in place of `--anonymous-auth`. The mode AlwaysAllow turns anonymous access off in
    every case, because it would let every caller do everything.
    """
    access = host.configuration.anonymous or AnonymousAccess(config[AnonymousSettings].enabled)
    if not access.enabled or config[AuthorizationSettings].always_allow:
        return None
    return Running(authenticators=(Anonymous(access),), turned_on_by="anonymous-auth")
