"""Every authenticator, in the order in which the chain calls them (law 10, docs/protocol/authentication.md#chain).

A row names an authenticator, its settings, its reasons and the function that builds it. Flags, environment variables, configuration
keys, `config check`, `auth explain` and the reference pages follow from the rows. The commands that start no server load the table
too, so a row names its builder as text, and the builder's module is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from mooring.authn.anonymous.reasons import REASONS as ANONYMOUS_REASONS
from mooring.authn.anonymous.settings import AnonymousSettings
from mooring.authn.bootstraptoken.reasons import REASONS as BOOTSTRAP_TOKEN_REASONS
from mooring.authn.bootstraptoken.settings import BootstrapTokenSettings
from mooring.authn.custom.settings import CustomSettings
from mooring.authn.k3stoken.reasons import REASONS as K3S_TOKEN_REASONS
from mooring.authn.keystone.reasons import REASONS as KEYSTONE_REASONS
from mooring.authn.keystone.settings import KeystoneSettings
from mooring.authn.login.settings import LoginSettings
from mooring.authn.oidc.reasons import REASONS as OIDC_REASONS
from mooring.authn.oidc.settings import OidcSettings
from mooring.authn.passwordfile.reasons import REASONS as PASSWORD_FILE_REASONS
from mooring.authn.passwordfile.settings import PasswordFileSettings
from mooring.authn.reasons import SHARED_REASONS, Reason
from mooring.authn.recovery.reasons import REASONS as RECOVERY_REASONS
from mooring.authn.recovery.settings import RecoverySettings
from mooring.authn.requestheader.reasons import REASONS as REQUEST_HEADER_REASONS
from mooring.authn.requestheader.settings import RequestHeaderSettings
from mooring.authn.serviceaccount.reasons import REASONS as SERVICE_ACCOUNT_REASONS
from mooring.authn.serviceaccount.settings import ServiceAccountSettings
from mooring.authn.settings import CacheSettings
from mooring.authn.tokenfile.settings import TokenFileSettings
from mooring.authn.webhook.reasons import REASONS as WEBHOOK_REASONS
from mooring.authn.webhook.settings import WebhookSettings
from mooring.authn.x509.reasons import REASONS as X509_REASONS
from mooring.authn.x509.settings import ClientCertificateSettings
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
    reasons: Mapping[str, Reason] = field(default_factory=dict)

    def load(self) -> Callable[[Configured, Host], Running | None]:
        """Return the function that builds the authenticator. Imports its module."""
        module, _, function = self.runtime.partition(":")
        return cast("Callable[[Configured, Host], Running | None]", getattr(import_module(module), function))


PROVIDERS: tuple[AuthenticatorProvider, ...] = (
    AuthenticatorProvider(
        "request-header",
        "mooring.server.authentication.providers.requestheader:build",
        (RequestHeaderSettings,),
        REQUEST_HEADER_REASONS,
    ),
    AuthenticatorProvider(
        "client-certificate",
        "mooring.server.authentication.providers.x509:build",
        (ClientCertificateSettings,),
        X509_REASONS,
    ),
    AuthenticatorProvider(
        "node-recovery", "mooring.server.authentication.providers.recovery:build", (RecoverySettings,), RECOVERY_REASONS
    ),
    AuthenticatorProvider(
        "token-file", "mooring.server.authentication.providers.tokenfile:build", (TokenFileSettings,)
    ),
    AuthenticatorProvider(
        "legacy-service-account",
        "mooring.server.authentication.providers.serviceaccount:build_legacy",
        (ServiceAccountSettings,),
        SERVICE_ACCOUNT_REASONS,
    ),
    AuthenticatorProvider(
        "service-account",
        "mooring.server.authentication.providers.serviceaccount:build_bound",
        (ServiceAccountSettings,),
        SERVICE_ACCOUNT_REASONS,
    ),
    AuthenticatorProvider(
        "bootstrap-token",
        "mooring.server.authentication.providers.bootstraptoken:build",
        (BootstrapTokenSettings,),
        BOOTSTRAP_TOKEN_REASONS,
    ),
    AuthenticatorProvider("user-token", "mooring.server.authentication.providers.login:build", (LoginSettings,)),
    AuthenticatorProvider("oidc", "mooring.server.authentication.providers.oidc:build", (OidcSettings,), OIDC_REASONS),
    AuthenticatorProvider(
        "webhook", "mooring.server.authentication.providers.webhook:build", (WebhookSettings,), WEBHOOK_REASONS
    ),
    AuthenticatorProvider(
        "k3s-token", "mooring.server.authentication.providers.k3stoken:build", reasons=K3S_TOKEN_REASONS
    ),
    AuthenticatorProvider(
        "password-file",
        "mooring.server.authentication.providers.passwordfile:build",
        (PasswordFileSettings, CacheSettings),
        PASSWORD_FILE_REASONS,
    ),
    AuthenticatorProvider(
        "keystone",
        "mooring.server.authentication.providers.keystone:build",
        (KeystoneSettings, CacheSettings),
        KEYSTONE_REASONS,
    ),
    AuthenticatorProvider("own", "mooring.server.authentication.providers.custom:build", (CustomSettings,)),
    AuthenticatorProvider(
        "anonymous", "mooring.server.authentication.providers.anonymous:build", (AnonymousSettings,), ANONYMOUS_REASONS
    ),
)

NAMES = frozenset(row.name for row in PROVIDERS)

SUBJECTS: tuple[type[Settings], ...] = tuple(dict.fromkeys(subject for row in PROVIDERS for subject in row.settings))
"""Settings of all rows, each once."""

REASONS: Mapping[str, Reason] = MappingProxyType(
    {**SHARED_REASONS, **{code: reason for row in PROVIDERS for code, reason in row.reasons.items()}}
)
"""Every reason code that an authenticator of this server can give, but for those of custom authenticators."""


def reason_of(code: str) -> Reason | None:
    """Return the row of a code; None for a code of a custom authenticator."""
    return REASONS.get(code)


def build(config: Configured, host: Host) -> tuple[Running, ...]:
    """Return the authenticators that these settings turn on, in order. Raises ConfigError."""
    running = (row.load()(config, host) for row in PROVIDERS)
    return tuple(one for one in running if one is not None)
