"""Runs the authenticator of requests without a credential."""

from __future__ import annotations

import logging

from mooring.authn.anonymous import Anonymous, AnonymousAccess, AnonymousSettings
from mooring.authn.host import ONCE_A_SERVER, Configured, Host, Running
from mooring.settings.authorization import AuthorizationSettings

log = logging.getLogger("mooring.authentication")


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None when every request needs a credential.

    The AuthenticationConfiguration may decide in place of `--anonymous-auth`. The mode AlwaysAllow turns anonymous access off in
    every case, because it would let every caller do everything, and a warning says so where anonymous access was asked for.
    """
    access = host.configuration.anonymous or AnonymousAccess(config[AnonymousSettings].enabled)
    if access.enabled and config[AuthorizationSettings].always_allow:
        if host.configuration.anonymous or config[AnonymousSettings].anonymous_auth:
            log.warning(
                "anonymous-auth: anonymous access is off, because authorization-mode AlwaysAllow would let every caller do "
                "everything; choose other authorizers",
                extra=ONCE_A_SERVER,
            )
        return None
    if not access.enabled:
        return None
    return Running(authenticators=(Anonymous(access),), turned_on_by="anonymous-auth")
