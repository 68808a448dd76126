"""What an operator can say about the tokens of service accounts, as frozen values; every error names the flag.

Rules kept here (docs/protocol/authentication.md#chain, docs/protocol/service-account-tokens.md#keys-and-flags): flags carry
kube-apiserver's names. The first issuer signs and all are accepted; the audiences of the API are the issuers unless they are said.
What is in key files is checked by whoever reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.checks import https_url
from mooring.settings.declaration import Settings, setting
from mooring.settings.kinds import BOOLEAN, COMMA_SEPARATED, DURATION, TEXT, TEXTS

DEFAULT_ISSUER = "https://kubernetes.default.svc.cluster.local"
"""kubeadm's `--service-account-issuer`."""
MAX_SERVICE_ACCOUNT_TOKEN = timedelta(days=365)
"""A token bound to nothing but a ServiceAccount should not outlive a certificate."""
LEAST_MAX_TOKEN = timedelta(hours=1)
MOST_MAX_TOKEN = timedelta(seconds=1 << 32)
"""Between these kube-apiserver takes a `--service-account-max-token-expiration`."""
MAX_ISSUERS = 32
"""Each was the first once; nobody renames a cluster that often."""
MAX_AUDIENCES = 64
MAX_KEY_FILES = 32
_ISSUER = re.compile(r"[^\s:]+|[A-Za-z][A-Za-z0-9+.-]*:\S+")
"""What a claim `iss` may be (RFC 7519 2, StringOrURI): with a colon in it, a URI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountOptions:
    """Everything said about tokens of service accounts. Paths are texts; empty means the data directory's own."""

    issuers: tuple[str, ...] = (DEFAULT_ISSUER,)
    """The first signs; tokens of all are accepted."""
    audiences: tuple[str, ...] = (DEFAULT_ISSUER,)
    """Whom a token must be for that the API accepts."""
    key_files: tuple[str, ...] = ()
    signing_key_file: str = ""
    jwks_uri: str = ""
    """Where relying parties fetch the keys; empty: at this server."""
    lookup: bool = True
    """Whether tokens that Secrets hold are refused when their Secret is gone."""
    extend: bool = True
    """Whether a token that a Pod got without asking lives for a year, and is warned about after its hour."""
    max_token: timedelta = MAX_SERVICE_ACCOUNT_TOKEN
    """The longest life of a token; zero: as long as is asked for."""

    @property
    def issuer(self) -> str:
        """Who signs."""
        return self.issuers[0]


NOTHING_SAID = ServiceAccountOptions()


def service_account_options(
    *,
    service_account_issuer: Sequence[str] = (DEFAULT_ISSUER,),
    api_audiences: Sequence[str] = (),
    service_account_key_file: Sequence[str] = (),
    service_account_signing_key_file: str = "",
    service_account_jwks_uri: str = "",
    service_account_lookup: bool = True,
    service_account_extend_token_expiration: bool = True,
    service_account_max_token_expiration: timedelta = MAX_SERVICE_ACCOUNT_TOKEN,
) -> ServiceAccountOptions:
    """Checked options from flag values. Raises ConfigError."""
    issuers = _listed("service-account-issuer", service_account_issuer, MAX_ISSUERS)
    if not issuers:
        raise ConfigError(f"service-account-issuer: give an https URL, such as {DEFAULT_ISSUER}")
    for issuer in issuers:
        if _ISSUER.fullmatch(issuer) is None:
            raise ConfigError(
                f'service-account-issuer: "{issuer}" is no issuer; give an https URL, such as {DEFAULT_ISSUER}'
            )
    audiences = _listed("api-audiences", api_audiences, MAX_AUDIENCES)
    if "" in audiences:
        raise ConfigError('api-audiences: "" is no audience; leave the flag out to accept the issuers')
    key_files = _listed("service-account-key-file", service_account_key_file, MAX_KEY_FILES)
    if "" in key_files:
        raise ConfigError("service-account-key-file: give the name of a PEM file")
    if service_account_jwks_uri:
        https_url(service_account_jwks_uri, "service-account-jwks-uri")
        if not issuers[0].startswith("https://"):
            raise ConfigError(
                "service-account-jwks-uri: nothing leads to it, because the first service-account-issuer is not an https URL"
            )
    most = service_account_max_token_expiration
    if most and not LEAST_MAX_TOKEN <= most <= MOST_MAX_TOKEN:
        raise ConfigError(
            "service-account-max-token-expiration: give 0 (no limit), or from 1h to 2^32 seconds (1193046h28m16s)"
        )
    return ServiceAccountOptions(
        issuers=issuers,
        audiences=audiences or issuers,
        key_files=key_files,
        signing_key_file=service_account_signing_key_file,
        jwks_uri=service_account_jwks_uri,
        lookup=service_account_lookup,
        extend=service_account_extend_token_expiration,
        max_token=most,
    )


def _listed(key: str, values: Sequence[str], most: int) -> tuple[str, ...]:
    if len(values) > most:
        raise ConfigError(f"{key}: {len(values)} are more than {most}")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ConfigError(f'{key}: "{value}" is given twice')
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountSettings(Settings):
    """Tokens of service accounts. `service_account_options` checks these together."""

    heading: ClassVar[str] = "Tokens of service accounts"

    service_account_issuer: tuple[str, ...] = setting(
        TEXTS,
        default=(DEFAULT_ISSUER,),
        meaning="Issuer of service account tokens; repeatable: the first signs, tokens of all are accepted.",
        metavar="URL",
    )
    api_audiences: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Whom tokens must be for that the API accepts.",
        default_note="the issuers",
        metavar="AUDIENCE,...",
    )
    service_account_key_file: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="PEM file of keys, public or private, that verify service account tokens; repeatable. Read again when it changes.",
        default_note="pki/sa.pub of the data directory",
        metavar="FILE",
    )
    service_account_signing_key_file: str = setting(
        TEXT,
        default="",
        meaning="PEM file of the private key that signs service account tokens; it also verifies them. Read again when it changes.",
        default_note="pki/sa.key of the data directory",
        metavar="FILE",
    )
    service_account_jwks_uri: str = setting(
        TEXT,
        default="",
        meaning="https URL under which others fetch the keys, as the discovery document names it.",
        default_note="this server's",
        metavar="URL",
    )
    service_account_lookup: bool = setting(
        BOOLEAN,
        default=True,
        meaning="Whether a token that a Secret holds is refused when the Secret, or its ServiceAccount, is gone.",
    )
    service_account_extend_token_expiration: bool = setting(
        BOOLEAN,
        default=True,
        meaning="Whether the token that every Pod gets lives for a year instead of an hour, with an audit annotation after the "
        "hour.",
    )
    service_account_max_token_expiration: timedelta = setting(
        DURATION,
        default=MAX_SERVICE_ACCOUNT_TOKEN,
        meaning="The longest life of a service account token; 0: as long as is asked for.",
    )

    def options(self) -> ServiceAccountOptions:
        """Return the checked options. Raises ConfigError."""
        return service_account_options(**{one.name: getattr(self, one.name) for one in fields(self)})
