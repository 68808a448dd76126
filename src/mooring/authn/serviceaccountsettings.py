"""Settings of service account tokens.

Rules kept here (docs/protocol/authentication.md#chain, docs/protocol/service-account-tokens.md#keys-and-flags): flags carry
kube-apiserver's names. Tokens are signed for the first issuer and accepted of all. The audiences of the API are the issuers unless
they are given. The readers of key files check their content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import names_user, shown_value
from mooring.settings.declaration import (
    BOOLEAN,
    COMMA_SEPARATED,
    DURATION,
    TEXT,
    TEXTS,
    Settings,
    file_setting,
    https_url,
    setting,
)

DEFAULT_ISSUER = "https://kubernetes.default.svc.cluster.local"
"""kubeadm's `--service-account-issuer`."""
MAX_SERVICE_ACCOUNT_TOKEN = timedelta(days=365)
"""A token bound to nothing but a ServiceAccount should not outlive a certificate."""
LEAST_MAX_TOKEN = timedelta(hours=1)
MOST_MAX_TOKEN = timedelta(seconds=1 << 32)
"""Between these kube-apiserver takes a `--service-account-max-token-expiration`."""
MAX_ISSUERS = 32
"""A cluster gets a new first issuer when it is renamed, and keeps the old ones."""
MAX_AUDIENCES = 64
MAX_KEY_FILES = 32
_ISSUER = re.compile(r"[^\s:]+|[A-Za-z][A-Za-z0-9+.-]*:\S+")
"""RFC 7519 2, StringOrURI: an issuer with a colon is a URI."""


def _check_list(key: str, values: tuple[str, ...], most: int) -> None:
    if len(values) > most:
        raise ConfigError(f"{key}: {len(values)} are more than {most}")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ConfigError(f"{key}: {shown_value(value)} is given twice")


def _parse_issuers(issuers: tuple[str, ...], key: str) -> tuple[str, ...]:
    _check_list(key, issuers, MAX_ISSUERS)
    if not issuers:
        raise ConfigError(f"{key}: give an https URL, such as {DEFAULT_ISSUER}")
    for issuer in issuers:
        if "://" in issuer and names_user(issuer):
            raise ConfigError(
                f"{key}: every token names its issuer; give a URL without a user and a password, and with %40 for an @"
            )
        if _ISSUER.fullmatch(issuer) is None:
            raise ConfigError(
                f"{key}: {shown_value(issuer)} cannot be an issuer; give an https URL, such as {DEFAULT_ISSUER}"
            )
    return issuers


def _parse_audiences(audiences: tuple[str, ...], key: str) -> tuple[str, ...]:
    _check_list(key, audiences, MAX_AUDIENCES)
    return audiences


def _parse_key_files(paths: tuple[str, ...], key: str) -> tuple[str, ...]:
    _check_list(key, paths, MAX_KEY_FILES)
    if "" in paths:
        raise ConfigError(f"{key}: give the name of a PEM file")
    return paths


def _parse_max_token(life: timedelta, key: str) -> timedelta:
    if life and not LEAST_MAX_TOKEN <= life <= MOST_MAX_TOKEN:
        raise ConfigError(f"{key}: give 0 (no limit), or from 1h to 2^32 seconds (1193046h28m16s)")
    return life


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountSettings(Settings):
    """Tokens of service accounts."""

    heading: ClassVar[str] = "Tokens of service accounts"

    service_account_issuer: tuple[str, ...] = setting(
        TEXTS,
        default=(DEFAULT_ISSUER,),
        meaning="Issuer of service account tokens; repeatable: the first signs, tokens of all are accepted.",
        metavar="URL",
        parse=_parse_issuers,
    )
    api_audiences: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Whom tokens must be for that the API accepts.",
        default_note="the issuers",
        metavar="AUDIENCE,...",
        parse=_parse_audiences,
    )
    service_account_key_file: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="PEM file of keys, public or private, that verify service account tokens; repeatable. Read again when it changes.",
        default_note="pki/sa.pub of the data directory",
        metavar="FILE",
        parse=_parse_key_files,
    )
    service_account_signing_key_file: str = file_setting(
        "PEM file of the private key that signs service account tokens; it also verifies them. Read again when it changes.",
        default_note="pki/sa.key of the data directory",
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
        parse=_parse_max_token,
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a URI of keys that no discovery document can name."""
        if self.service_account_jwks_uri:
            https_url(self.service_account_jwks_uri, "service-account-jwks-uri")
            if not self.issuer.startswith("https://"):
                raise ConfigError(
                    "service-account-jwks-uri: nothing leads to it, because the first service-account-issuer is not an https URL"
                )

    @property
    def issuer(self) -> str:
        """Issuer of the tokens that this server signs."""
        return self.service_account_issuer[0]

    @property
    def audiences(self) -> tuple[str, ...]:
        """Audiences of the API: a token must be for one of them."""
        return self.api_audiences or self.service_account_issuer
