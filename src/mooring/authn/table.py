"""Every authenticator, in the order they are asked (law 10).

Source: docs/protocol/authentication.md#chain.

A row is a name and what builds the authenticator from `Settings`; None means that the settings do not want it. Only `own` may be
several: those of the operator's own have names of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mooring.authn.anonymous.authenticator import Anonymous, AnonymousAccess
from mooring.authn.authenticator import Authenticator
from mooring.authn.bootstraptoken.authenticator import BootstrapTokenAuthenticator
from mooring.authn.custom.authenticator import ContainedAuthenticator
from mooring.authn.keystone.authenticator import KeystoneAuthenticator
from mooring.authn.login.authenticator import UserTokenAuthenticator
from mooring.authn.oidc.authenticator import OidcAuthenticator
from mooring.authn.passwordfile.authenticator import PasswordFileAuthenticator
from mooring.authn.requestheader.authenticator import HeaderNames, RequestHeaderAuthenticator
from mooring.authn.serviceaccount.authenticator import ServiceAccountAuthenticator
from mooring.authn.serviceaccount.lastuses import LastUses
from mooring.authn.serviceaccount.legacy import LegacyServiceAccountAuthenticator
from mooring.authn.tokenfile.authenticator import TokenFileAuthenticator
from mooring.authn.webhook.authenticator import WebhookAuthenticator
from mooring.authn.x509.authenticator import ClientCertificateAuthenticator
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.x509.verify import ClientTrust


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What authenticators are built from. Empty means off, except for anonymous access, which is said in full."""

    request_header: tuple[ClientTrust, HeaderNames, tuple[str, ...]] | None = None
    """The proxy's CAs, the headers it speaks in, and the common names that may."""
    client_trust: ClientTrust | None = None
    token_file: TokenFileAuthenticator | None = None
    """Already built, like all that follow something that changes: who follows it holds it as well."""
    issuers: tuple[str, ...] = ()
    service_account_keys: KeySet | None = None
    service_account_lookup: bool = True
    api_audiences: tuple[str, ...] = ()
    """Whom a token that a Secret holds is good for."""
    last_uses: LastUses = field(default_factory=LastUses)
    """Where the use of such a token is noted."""
    bootstrap_tokens: bool = False
    user_token_keys: KeySet | None = None
    """Of the tokens that a login hands out."""
    oidc: OidcAuthenticator | None = None
    webhook: WebhookAuthenticator | None = None
    password_file: PasswordFileAuthenticator | None = None
    keystone: KeystoneAuthenticator | None = None
    own: tuple[ContainedAuthenticator, ...] = ()
    anonymous: bool
    anonymous_paths: frozenset[str] = frozenset()


Builder = Callable[[Settings], Authenticator | tuple[Authenticator, ...] | None]


def _request_header(settings: Settings) -> Authenticator | None:
    return None if settings.request_header is None else RequestHeaderAuthenticator(*settings.request_header)


def _client_certificate(settings: Settings) -> Authenticator | None:
    return None if settings.client_trust is None else ClientCertificateAuthenticator(settings.client_trust)


def _token_file(settings: Settings) -> Authenticator | None:
    return settings.token_file


def _legacy_service_account(settings: Settings) -> Authenticator | None:
    if not settings.issuers or settings.service_account_keys is None:
        return None
    return LegacyServiceAccountAuthenticator(
        settings.service_account_keys, settings.api_audiences, settings.last_uses, settings.service_account_lookup
    )


def _service_account(settings: Settings) -> Authenticator | None:
    if not settings.issuers or settings.service_account_keys is None:
        return None
    return ServiceAccountAuthenticator(settings.issuers, settings.service_account_keys)


def _bootstrap_token(settings: Settings) -> Authenticator | None:
    return BootstrapTokenAuthenticator() if settings.bootstrap_tokens else None


def _user_token(settings: Settings) -> Authenticator | None:
    return None if settings.user_token_keys is None else UserTokenAuthenticator(settings.user_token_keys)


def _oidc(settings: Settings) -> Authenticator | None:
    return settings.oidc


def _webhook(settings: Settings) -> Authenticator | None:
    return settings.webhook


def _password_file(settings: Settings) -> Authenticator | None:
    return settings.password_file


def _keystone(settings: Settings) -> Authenticator | None:
    return settings.keystone


def _own(settings: Settings) -> tuple[Authenticator, ...]:
    return settings.own


def _anonymous(settings: Settings) -> Authenticator | None:
    return Anonymous(AnonymousAccess(True, settings.anonymous_paths)) if settings.anonymous else None


AUTHENTICATORS: tuple[tuple[str, Builder], ...] = (
    ("request-header", _request_header),
    ("client-certificate", _client_certificate),
    ("token-file", _token_file),
    ("legacy-service-account", _legacy_service_account),
    ("service-account", _service_account),
    ("bootstrap-token", _bootstrap_token),
    ("user-token", _user_token),
    ("oidc", _oidc),
    ("webhook", _webhook),
    ("password-file", _password_file),
    ("keystone", _keystone),
    ("own", _own),
    ("anonymous", _anonymous),
)


def build(settings: Settings) -> tuple[Authenticator, ...]:
    """The authenticators these settings want, in order."""
    found: list[Authenticator] = []
    for _, builder in AUTHENTICATORS:
        built = builder(settings)
        if isinstance(built, tuple):
            found += built
        elif built is not None:
            found.append(built)
    return tuple(found)
