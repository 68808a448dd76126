"""Flags about authentication, with kube-apiserver's names, those that it has removed included.

Rules kept here: what a flag means is checked by `mooring.config.authentication`; what its file says, by whoever reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mooring.cli.options.flags import DURATION, Decorator, Renamed, flag, listed
from mooring.config.authentication import (
    DEFAULT_ALGORITHMS,
    SIGNING_ALGORITHMS,
    USERNAME_CLAIM,
    WEBHOOK_VERSIONS,
    AuthenticationOptions,
    authentication_options,
)

_FILE = {"default": "", "metavar": "FILE"}
_NAMES = {"multiple": True, "metavar": "NAME,..."}

AUTHENTICATION_FLAGS: tuple[Decorator[..., Any], ...] = (
    flag(
        "--client-ca-file",
        "Certificates of the CAs that client certificates are verified under; read again when it changes. "
        "[default: the cluster's CA]",
        **_FILE,
    ),
    flag("--token-auth-file", 'CSV of bearer tokens: token,user,uid,"group,..."; read again when it changes.', **_FILE),
    flag(
        "--basic-auth-file",
        'CSV of passwords: password,user,uid,"group,..."; a password may be hashed (mooring auth hash-password). '
        "Read again when it changes.",
        **_FILE,
    ),
    flag("--requestheader-client-ca-file", "CAs of the certificate an authenticating proxy shows.", **_FILE),
    flag("--requestheader-allowed-names", "Common names that may; none: every certificate of these CAs.", **_NAMES),
    flag(
        "--requestheader-username-headers", "Headers that name the user; the first that is not empty counts.", **_NAMES
    ),
    flag("--requestheader-uid-headers", "Headers that hold the user's uid.", **_NAMES),
    flag("--requestheader-group-headers", "Headers that hold groups; all count.", **_NAMES),
    flag("--requestheader-extra-headers-prefix", "What headers begin with that hold extra attributes.", **_NAMES),
    flag("--oidc-issuer-url", "https URL of the OpenID Connect provider.", default="", metavar="URL"),
    flag("--oidc-client-id", "Audience that its tokens must be for.", default="", metavar="ID"),
    flag("--oidc-ca-file", "CAs to verify the provider with. [default: the machine's]", **_FILE),
    flag(
        "--oidc-username-claim",
        "Claim that names the user.",
        default=USERNAME_CLAIM,
        show_default=True,
        metavar="CLAIM",
    ),
    flag(
        "--oidc-username-prefix",
        "Put before every user name; - puts nothing. [default: the issuer and #, unless the claim is email]",
        default="",
        metavar="PREFIX",
    ),
    flag("--oidc-groups-claim", "Claim that holds the groups.", default="", metavar="CLAIM"),
    flag("--oidc-groups-prefix", "Put before every group.", default="", metavar="PREFIX"),
    flag(
        "--oidc-signing-algs",
        f"Algorithms the provider may sign with, of {', '.join(SIGNING_ALGORITHMS)}.",
        multiple=True,
        default=DEFAULT_ALGORITHMS,
        show_default=True,
        metavar="ALG,...",
    ),
    flag(
        "--oidc-required-claim",
        "Claim and value that a token must have; repeatable.",
        multiple=True,
        metavar="CLAIM=VALUE",
    ),
    flag(
        "--authentication-config",
        "AuthenticationConfiguration (apiserver.config.k8s.io): JWT issuers and anonymous access; read again when it changes.",
        **_FILE,
    ),
    flag(
        "--authentication-token-webhook-config-file",
        "Kubeconfig of a service that answers TokenReviews.",
        **_FILE,
    ),
    flag(
        "--authentication-token-webhook-version",
        f"Version of the TokenReviews it is sent: {' or '.join(WEBHOOK_VERSIONS)}.",
        default=WEBHOOK_VERSIONS[0],
        show_default=True,
        metavar="VERSION",
    ),
    flag(
        "--authentication-token-webhook-cache-ttl",
        "For how long its answers are remembered.",
        type=DURATION,
        default="2m0s",
        show_default=True,
    ),
    flag(
        "--keystone-url",
        "https URL of an OpenStack Keystone (v3) that judges passwords.",
        default="",
        metavar="URL",
        cls=Renamed,
        former="--experimental-keystone-url",
    ),
    flag(
        "--keystone-ca-file",
        "CAs to verify Keystone with; read again when it changes. [default: the machine's]",
        cls=Renamed,
        former="--experimental-keystone-ca-file",
        **_FILE,
    ),
    flag(
        "--keystone-user-domain",
        "Domain of users who name none.",
        default="Default",
        show_default=True,
        metavar="DOMAIN",
    ),
    flag(
        "--authentication-cache-ttl",
        "For how long an accepted password, and what an authenticator of your own accepted, is remembered; 0: not at all.",
        type=DURATION,
        default="10s",
        show_default=True,
    ),
    flag(
        "--login-ttl",
        "How long the credential lives that `mooring login` gets; 0: no login.",
        type=DURATION,
        default="1h0m0s",
        show_default=True,
    ),
    flag(
        "--login-from-request-header",
        "Whether users whom an authenticating proxy names may log in: their credential goes past the proxy.",
        type=bool,
        is_flag=False,
        flag_value="true",
        default=False,
        show_default=True,
        metavar="BOOL",
    ),
)

_LISTS = (
    "requestheader_allowed_names", "requestheader_username_headers", "requestheader_uid_headers",
    "requestheader_group_headers", "requestheader_extra_headers_prefix", "oidc_signing_algs",
)  # fmt: skip


def read(values: Mapping[str, Any]) -> AuthenticationOptions:
    """The checked options that these flags mean. Raises ConfigError."""
    given: dict[str, Any] = {**values, **{name: listed(values[name]) for name in _LISTS}}
    return authentication_options(**given)
