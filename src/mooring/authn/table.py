"""Every authenticator, in the order in which the chain calls them (law 10, docs/protocol/authentication.md#chain).

A row names an authenticator, its settings and the function that builds it. Flags, environment variables, configuration
keys, `config check` and the reference pages follow from the rows. The commands that start no server load the table
too, so a row names its builder as text, and the builder's module is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from mooring.authn.anonymous import AnonymousSettings
from mooring.authn.bootstraptoken import BootstrapTokenSettings
from mooring.authn.custom import CustomSettings
from mooring.authn.keystone import KeystoneSettings
from mooring.authn.login import LoginSettings
from mooring.authn.oidc.settings import OidcSettings
from mooring.authn.passwordfile import PasswordFileSettings
from mooring.authn.recovery import RecoverySettings
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.authn.tokenfile import TokenFileSettings
from mooring.authn.verdictcache import CacheSettings
from mooring.authn.webhook import WebhookSettings
from mooring.authn.x509 import ClientCertificateSettings
from mooring.settings.declaration import Settings

if TYPE_CHECKING:
    from mooring.authn.host import Configured, Host, Running


@dataclass(frozen=True, slots=True)
class AuthenticatorProvider:
    """One row: an authenticator, or all custom ones."""

    name: str
    """Name in the operator's records, e.g. `client-certificate`."""
    runtime: str
    """`module:function`; the function takes the settings and the host, and returns the running authenticator, or None when off."""
    settings: tuple[type[Settings], ...] = ()

    def load(self) -> Callable[[Configured, Host], Running | None]:
        """Return the function that builds the authenticator. Imports its module."""
        module, _, function = self.runtime.partition(":")
        return cast("Callable[[Configured, Host], Running | None]", getattr(import_module(module), function))


PROVIDERS: tuple[AuthenticatorProvider, ...] = (
    AuthenticatorProvider(
        "request-header",
        "mooring.server.authentication.providers:build_requestheader",
        (RequestHeaderSettings,),
    ),
    AuthenticatorProvider(
        "client-certificate",
        "mooring.server.authentication.providers:build_x509",
        (ClientCertificateSettings,),
    ),
    AuthenticatorProvider(
        "node-recovery", "mooring.server.authentication.providers:build_recovery", (RecoverySettings,)
    ),
    AuthenticatorProvider(
        "token-file", "mooring.server.authentication.providers:build_tokenfile", (TokenFileSettings,)
    ),
    AuthenticatorProvider(
        "legacy-service-account",
        "mooring.server.authentication.providers:build_legacy",
        (ServiceAccountSettings,),
    ),
    AuthenticatorProvider(
        "service-account",
        "mooring.server.authentication.providers:build_bound",
        (ServiceAccountSettings,),
    ),
    AuthenticatorProvider(
        "bootstrap-token",
        "mooring.server.authentication.providers:build_bootstraptoken",
        (BootstrapTokenSettings,),
    ),
    AuthenticatorProvider("join-rule", "mooring.server.authentication.providers:build_joinrule"),
    AuthenticatorProvider("user-token", "mooring.server.authentication.providers:build_login", (LoginSettings,)),
    AuthenticatorProvider("oidc", "mooring.server.authentication.oidc:build", (OidcSettings,)),
    AuthenticatorProvider("webhook", "mooring.server.authentication.webhook:build", (WebhookSettings,)),
    AuthenticatorProvider("k3s-token", "mooring.server.authentication.k3stoken:build"),
    AuthenticatorProvider(
        "password-file",
        "mooring.server.authentication.providers:build_passwordfile",
        (PasswordFileSettings, CacheSettings),
    ),
    AuthenticatorProvider(
        "keystone",
        "mooring.server.authentication.providers:build_keystone",
        (KeystoneSettings, CacheSettings),
    ),
    AuthenticatorProvider("own", "mooring.server.authentication.custom:build", (CustomSettings,)),
    AuthenticatorProvider("anonymous", "mooring.server.authentication.providers:build_anonymous", (AnonymousSettings,)),
)

NAMES = frozenset(row.name for row in PROVIDERS)

SUBJECTS: tuple[type[Settings], ...] = tuple(dict.fromkeys(subject for row in PROVIDERS for subject in row.settings))
"""Settings of all rows, each once."""


def build(config: Configured, host: Host) -> tuple[Running, ...]:
    """Return the authenticators that these settings turn on, in order. Raises ConfigError."""
    running = (row.load()(config, host) for row in PROVIDERS)
    return tuple(one for one in running if one is not None)
