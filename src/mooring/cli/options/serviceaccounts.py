"""Flags about the tokens of service accounts, with kube-apiserver's names.

Rules kept here: what a flag means is checked by `mooring.config.serviceaccounts`; what its file says, by whoever reads the file.
An issuer or a file is one value of a repeatable flag and may hold a comma; audiences may be given at once, with commas.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from mooring.cli.options.flags import DURATION, Decorator, flag, listed
from mooring.config.serviceaccounts import DEFAULT_ISSUER, ServiceAccountOptions, service_account_options

_BOOL = {
    "type": bool,
    "is_flag": False,
    "flag_value": "true",
    "default": True,
    "show_default": True,
    "metavar": "BOOL",
}  # fmt: skip

SERVICE_ACCOUNT_FLAGS: tuple[Decorator[..., Any], ...] = (
    flag(
        "--service-account-issuer",
        "Issuer of service account tokens; repeatable: the first signs, tokens of all are accepted.",
        multiple=True,
        default=(DEFAULT_ISSUER,),
        show_default=True,
        metavar="URL",
    ),
    flag(
        "--api-audiences",
        "Whom tokens must be for that the API accepts. [default: the issuers]",
        multiple=True,
        metavar="AUDIENCE,...",
    ),
    flag(
        "--service-account-key-file",
        "PEM file of keys, public or private, that verify service account tokens; repeatable. Read again when it changes. "
        "[default: pki/sa.pub of the data directory]",
        multiple=True,
        metavar="FILE",
    ),
    flag(
        "--service-account-signing-key-file",
        "PEM file of the private key that signs service account tokens; it also verifies them. Read again when it changes. "
        "[default: pki/sa.key of the data directory]",
        default="",
        metavar="FILE",
    ),
    flag(
        "--service-account-jwks-uri",
        "https URL under which others fetch the keys, as the discovery document names it. [default: this server's]",
        default="",
        metavar="URL",
    ),
    flag(
        "--service-account-lookup",
        "Whether a token that a Secret holds is refused when the Secret, or its ServiceAccount, is gone.",
        **_BOOL,
    ),
    flag(
        "--service-account-extend-token-expiration",
        "Whether the token that every Pod gets lives for a year instead of an hour, with an audit annotation after the hour.",
        **_BOOL,
    ),
    flag(
        "--service-account-max-token-expiration",
        "The longest life of a service account token; 0: as long as is asked for.",
        type=DURATION,
        default="8760h0m0s",
        show_default=True,
    ),
)

_NAMES = (
    "service_account_issuer", "api_audiences", "service_account_key_file", "service_account_signing_key_file",
    "service_account_jwks_uri", "service_account_lookup", "service_account_extend_token_expiration",
    "service_account_max_token_expiration",
)  # fmt: skip


def take(values: MutableMapping[str, Any]) -> ServiceAccountOptions:
    """The checked options that these flags mean; they are taken out of `values`. Raises ConfigError."""
    given = {name: values.pop(name) for name in _NAMES}
    return service_account_options(**{**given, "api_audiences": listed(given["api_audiences"])})
