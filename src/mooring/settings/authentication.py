"""What an operator can say about authentication, as frozen values; every error names the flag and says what to give.

Rules kept here (docs/protocol/authentication.md, docs/protocol/openid-connect.md): flags carry kube-apiserver's names, those that
it has removed included; what contradicts itself is refused here, before a file is read. What is inside files is checked by whoever
reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar

from mooring.errors import ConfigError
from mooring.settings.checks import duration_within, https_url
from mooring.settings.declaration import Settings, setting
from mooring.settings.kinds import BOOLEAN, COMMA_SEPARATED, DURATION, TEXT, TEXTS, Kind, duration_from_file

SIGNING_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")
DEFAULT_ALGORITHMS = ("RS256",)
WEBHOOK_VERSIONS = ("v1beta1", "v1")
USERNAME_CLAIM = "sub"
CACHE_TTL = timedelta(seconds=10)
"""How long kube-apiserver remembers a token it accepted."""
WEBHOOK_CACHE_TTL = timedelta(minutes=2)
MAX_CACHE_TTL = timedelta(hours=1)
"""A verdict of somebody else's that is older than this is hearsay."""
LOGIN_TTL = timedelta(hours=1)
MAX_LOGIN_TTL = timedelta(hours=24)
MIN_LOGIN_TTL = timedelta(minutes=1)
DEADLINE = timedelta(seconds=5)
MAX_DEADLINE = timedelta(minutes=1)
MAX_AUTHENTICATORS = 16
"""Of the operator's own: each is asked about every credential that nobody else knows."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
"""RFC 9110 5.6.2: a token."""
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeaders:
    """An authenticating proxy: the CA of its certificate, and the headers it speaks in, in the case that the operator gave."""

    client_ca_file: str
    allowed_names: tuple[str, ...] = ()
    username_headers: tuple[str, ...]
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_headers_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcFlags:
    """One OpenID Connect provider, as flags say it."""

    issuer_url: str
    client_id: str
    ca_file: str = ""
    username_claim: str = USERNAME_CLAIM
    username_prefix: str = ""
    groups_claim: str = ""
    groups_prefix: str = ""
    signing_algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    required_claims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A service that answers TokenReviews."""

    config_file: str
    version: str = "v1beta1"
    cache_ttl: timedelta = WEBHOOK_CACHE_TTL


@dataclass(frozen=True, slots=True, kw_only=True)
class Keystone:
    """An OpenStack identity service. `user_domain` is where user names live that name no domain."""

    url: str
    ca_file: str = ""
    user_domain: str = "Default"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAuthenticator:
    """An authenticator of the operator's own: `module:Class`, made with `options`, which may hold secrets."""

    name: str
    location: str
    deadline: timedelta = DEADLINE
    cache_ttl: timedelta = CACHE_TTL
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationOptions:
    """Everything said about authentication. Paths are texts; empty means off."""

    anonymous_said: bool = False
    """Whether `--anonymous-auth` was given: then the configuration file may say nothing of it."""
    client_ca_file: str = ""
    """In place of the cluster's own CA, which is trusted for clients unless this is said."""
    token_auth_file: str = ""
    basic_auth_file: str = ""
    request_headers: RequestHeaders | None = None
    oidc: OidcFlags | None = None
    config_file: str = ""
    """An AuthenticationConfiguration (apiserver.config.k8s.io)."""
    webhook: Webhook | None = None
    keystone: Keystone | None = None
    own: tuple[OwnAuthenticator, ...] = ()
    cache_ttl: timedelta = CACHE_TTL
    login_ttl: timedelta = LOGIN_TTL
    """The life of what `mooring login` gets; zero offers no login."""
    login_from_request_header: bool = False
    """Whether whom an authenticating proxy names may log in, and go past the proxy then."""

    @property
    def passwords(self) -> bool:
        """Whether a file or Keystone judges passwords; a custom authenticator says so itself."""
        return bool(self.basic_auth_file or self.keystone)


NOTHING_SAID = AuthenticationOptions()


def authentication_options(
    *,
    anonymous_said: bool = False,
    client_ca_file: str = "",
    token_auth_file: str = "",
    basic_auth_file: str = "",
    requestheader_client_ca_file: str = "",
    requestheader_allowed_names: Sequence[str] = (),
    requestheader_username_headers: Sequence[str] = (),
    requestheader_uid_headers: Sequence[str] = (),
    requestheader_group_headers: Sequence[str] = (),
    requestheader_extra_headers_prefix: Sequence[str] = (),
    oidc_issuer_url: str = "",
    oidc_client_id: str = "",
    oidc_ca_file: str = "",
    oidc_username_claim: str = USERNAME_CLAIM,
    oidc_username_prefix: str = "",
    oidc_groups_claim: str = "",
    oidc_groups_prefix: str = "",
    oidc_signing_algs: Sequence[str] = DEFAULT_ALGORITHMS,
    oidc_required_claim: Sequence[str] = (),
    authentication_config: str = "",
    authentication_token_webhook_config_file: str = "",
    authentication_token_webhook_version: str = "v1beta1",  # noqa: S107 - a version, not a password
    authentication_token_webhook_cache_ttl: timedelta = WEBHOOK_CACHE_TTL,
    keystone_url: str = "",
    keystone_ca_file: str = "",
    keystone_user_domain: str = "Default",
    authenticators: Sequence[Any] = (),
    authentication_cache_ttl: timedelta = CACHE_TTL,
    login_ttl: timedelta = LOGIN_TTL,
    login_from_request_header: bool = False,
) -> AuthenticationOptions:
    """Checked options from flag values. Raises ConfigError."""
    oidc = _oidc(
        oidc_issuer_url,
        oidc_client_id,
        ca_file=oidc_ca_file,
        username_claim=oidc_username_claim,
        username_prefix=oidc_username_prefix,
        groups_claim=oidc_groups_claim,
        groups_prefix=oidc_groups_prefix,
        signing_algorithms=tuple(oidc_signing_algs),
        required=oidc_required_claim,
    )
    if oidc is not None and authentication_config:
        raise ConfigError("authentication-config: it cannot be combined with oidc- flags; say everything in the file")
    if authentication_token_webhook_version not in WEBHOOK_VERSIONS:
        raise ConfigError(
            f'authentication-token-webhook-version: "{authentication_token_webhook_version}" is not known; give '
            + " or ".join(WEBHOOK_VERSIONS)
        )
    webhook = None
    if authentication_token_webhook_config_file:
        webhook = Webhook(
            config_file=authentication_token_webhook_config_file,
            version=authentication_token_webhook_version,
            cache_ttl=_within(
                "authentication-token-webhook-cache-ttl",
                authentication_token_webhook_cache_ttl,
                timedelta(0),
                MAX_CACHE_TTL,
            ),
        )
    if login_ttl:
        _within("login-ttl", login_ttl, MIN_LOGIN_TTL, MAX_LOGIN_TTL)
    return AuthenticationOptions(
        anonymous_said=anonymous_said,
        client_ca_file=client_ca_file,
        token_auth_file=token_auth_file,
        basic_auth_file=basic_auth_file,
        request_headers=_request_headers(
            requestheader_client_ca_file,
            tuple(requestheader_allowed_names),
            requestheader_username_headers,
            requestheader_uid_headers,
            requestheader_group_headers,
            requestheader_extra_headers_prefix,
        ),
        oidc=oidc,
        config_file=authentication_config,
        webhook=webhook,
        keystone=_keystone(keystone_url, keystone_ca_file, keystone_user_domain),
        own=own_authenticators(authenticators),
        cache_ttl=_within("authentication-cache-ttl", authentication_cache_ttl, timedelta(0), MAX_CACHE_TTL),
        login_ttl=login_ttl,
        login_from_request_header=login_from_request_header,
    )


def _within(key: str, value: timedelta, least: timedelta, most: timedelta) -> timedelta:
    return duration_within(least, most)(value, key)


def _request_headers(
    ca_file: str,
    allowed: tuple[str, ...],
    username: Sequence[str],
    uid: Sequence[str],
    group: Sequence[str],
    extra: Sequence[str],
) -> RequestHeaders | None:
    key = "requestheader-"
    if not ca_file:
        for name, given in (
            ("allowed-names", allowed), ("username-headers", username), ("uid-headers", uid), ("group-headers", group),
            ("extra-headers-prefix", extra),
        ):  # fmt: skip
            if given:
                raise ConfigError(
                    f"{key}client-ca-file: it is needed with {key}{name}; who may speak for others is told by it"
                )
        return None
    if not username:
        raise ConfigError(f"{key}username-headers: it is needed with {key}client-ca-file, for example X-Remote-User")
    return RequestHeaders(
        client_ca_file=ca_file,
        allowed_names=allowed,
        username_headers=_header_names(f"{key}username-headers", username),
        uid_headers=_header_names(f"{key}uid-headers", uid),
        group_headers=_header_names(f"{key}group-headers", group),
        extra_headers_prefixes=_header_names(f"{key}extra-headers-prefix", extra),
    )


def _header_names(key: str, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not _HEADER.fullmatch(name):
            raise ConfigError(f'{key}: "{name}" is not the name of a header')
        if name.lower() == "authorization":
            raise ConfigError(f'{key}: "{name}" carries credentials; choose another header')
    return tuple(names)


def _oidc(
    issuer_url: str,
    client_id: str,
    *,
    ca_file: str,
    username_claim: str,
    username_prefix: str,
    groups_claim: str,
    groups_prefix: str,
    signing_algorithms: tuple[str, ...],
    required: Sequence[str],
) -> OidcFlags | None:
    if not issuer_url and not client_id:
        for name, given in (
            ("ca-file", ca_file), ("groups-claim", groups_claim), ("username-prefix", username_prefix),
            ("groups-prefix", groups_prefix), ("required-claim", required),
            ("username-claim", username_claim != USERNAME_CLAIM), ("signing-algs", signing_algorithms != DEFAULT_ALGORITHMS),
        ):  # fmt: skip
            if given:
                raise ConfigError(f"oidc-issuer-url: it is needed with oidc-{name}, and so is oidc-client-id")
        return None
    if not issuer_url or not client_id:
        missing, given_flag = ("issuer-url", "client-id") if client_id else ("client-id", "issuer-url")
        raise ConfigError(f"oidc-{missing}: it is needed with oidc-{given_flag}")
    if not username_claim:
        raise ConfigError("oidc-username-claim: give the name of a claim")
    for algorithm in signing_algorithms:
        if algorithm not in SIGNING_ALGORITHMS:
            raise ConfigError(f'oidc-signing-algs: "{algorithm}" is not one of {", ".join(SIGNING_ALGORITHMS)}')
    if not signing_algorithms:
        raise ConfigError(f"oidc-signing-algs: give at least one of {', '.join(SIGNING_ALGORITHMS)}")
    claims = dict(_required_claim(text) for text in required)
    return OidcFlags(
        issuer_url=https_url(issuer_url, "oidc-issuer-url"),
        client_id=client_id,
        ca_file=ca_file,
        username_claim=username_claim,
        username_prefix=username_prefix,
        groups_claim=groups_claim,
        groups_prefix=groups_prefix,
        signing_algorithms=signing_algorithms,
        required_claims=tuple(claims.items()),
    )


def _required_claim(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f'oidc-required-claim: "{text}" is not claim=value')
    return name, value


def _keystone(url: str, ca_file: str, user_domain: str) -> Keystone | None:
    if not url:
        if ca_file:
            raise ConfigError("keystone-url: it is needed with keystone-ca-file")
        return None
    if not user_domain:
        raise ConfigError("keystone-user-domain: give the name of a domain, such as Default")
    if "@" in user_domain:
        raise ConfigError(f'keystone-user-domain: "{user_domain}" holds an @, behind which users name their domain')
    if re.search(r"/v2(\.0)?/?$", url):
        raise ConfigError(
            f'keystone-url: "{url}" is of version 2.0, which Keystone has removed; give the URL of version 3'
        )
    return Keystone(url=https_url(url, "keystone-url").rstrip("/"), ca_file=ca_file, user_domain=user_domain)


def own_authenticators(listed: Sequence[Any]) -> tuple[OwnAuthenticator, ...]:
    """The `authenticators` of the configuration file: a list of mappings. Durations are seconds. Raises ConfigError."""
    if len(listed) > MAX_AUTHENTICATORS:
        raise ConfigError(f"authenticators: {len(listed)} are more than {MAX_AUTHENTICATORS}")
    found = tuple(_own(f"authenticators[{place}]", one) for place, one in enumerate(listed))
    names = [one.name for one in found]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f'authenticators[{place}].name: "{name}" is taken already')
    return found


def _own(path: str, value: Any) -> OwnAuthenticator:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: give a mapping with name and class")
    for key in value:
        if key not in ("name", "class", "deadline", "cache-ttl", "options"):
            raise ConfigError(f'{path}: "{key}" is not known; there are name, class, deadline, cache-ttl, and options')
    name, location, options = value.get("name"), value.get("class"), value.get("options", {})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{path}.name: give a name of lower case letters, digits and dashes, such as ldap")
    if not isinstance(location, str) or not _CLASS.fullmatch(location):
        raise ConfigError(f"{path}.class: give module:Class, such as company.ldap:LdapAuthenticator")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigError(f"{path}.options: give a mapping")
    deadline, ttl = value.get("deadline", DEADLINE), value.get("cache-ttl", CACHE_TTL)
    for key, duration in (("deadline", deadline), ("cache-ttl", ttl)):
        if not isinstance(duration, timedelta):
            raise ConfigError(f"{path}.{key}: give a duration, such as 5s")
    return OwnAuthenticator(
        name=name,
        location=location,
        deadline=_within(f"{path}.deadline", deadline, timedelta(milliseconds=1), MAX_DEADLINE),
        cache_ttl=_within(f"{path}.cache-ttl", ttl, timedelta(0), MAX_CACHE_TTL),
        options=MappingProxyType(dict(options)),
    )


def _authenticators_from_file(value: Any) -> tuple[Any, ...]:
    """Return the entries with their durations read; `own_authenticators` checks the rest. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("give a list of mappings with name and class")
    return tuple(_entries(value))


def _entries(value: list[Any]) -> Iterator[Any]:
    for place, entry in enumerate(value):
        if not isinstance(entry, dict):
            yield entry  # refused where its other keys would be looked at
            continue
        yield {
            key: _entry_duration(f"[{place}].{key}", one) if key in ("deadline", "cache-ttl") else one
            for key, one in entry.items()
        }


def _entry_duration(path: str, value: Any) -> timedelta:
    try:
        return duration_from_file(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


MAPPINGS: Kind[tuple[Any, ...]] = Kind("list of mappings", _authenticators_from_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationSettings(Settings):
    """Authenticators and what they read. `authentication_options` checks these together."""

    heading: ClassVar[str] = "Authentication"

    client_ca_file: str = setting(
        TEXT,
        default="",
        meaning="Certificates of the CAs that client certificates are verified under; read again when it changes.",
        default_note="the cluster's CA",
        metavar="FILE",
    )
    token_auth_file: str = setting(
        TEXT,
        default="",
        meaning='CSV of bearer tokens: token,user,uid,"group,..."; read again when it changes.',
        metavar="FILE",
    )
    basic_auth_file: str = setting(
        TEXT,
        default="",
        meaning='CSV of passwords: password,user,uid,"group,..."; a password may be hashed (mooring auth hash-password). '
        "Read again when it changes.",
        metavar="FILE",
    )
    requestheader_client_ca_file: str = setting(
        TEXT,
        default="",
        meaning="CAs of the certificate an authenticating proxy shows.",
        metavar="FILE",
    )
    requestheader_allowed_names: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Common names that may; none: every certificate of these CAs.",
        metavar="NAME,...",
    )
    requestheader_username_headers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Headers that name the user; the first that is not empty counts.",
        metavar="NAME,...",
    )
    requestheader_uid_headers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Headers that hold the user's uid.",
        metavar="NAME,...",
    )
    requestheader_group_headers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Headers that hold groups; all count.",
        metavar="NAME,...",
    )
    requestheader_extra_headers_prefix: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="What headers begin with that hold extra attributes.",
        metavar="NAME,...",
    )
    oidc_issuer_url: str = setting(
        TEXT,
        default="",
        meaning="https URL of the OpenID Connect provider.",
        metavar="URL",
    )
    oidc_client_id: str = setting(
        TEXT,
        default="",
        meaning="Audience that its tokens must be for.",
        metavar="ID",
    )
    oidc_ca_file: str = setting(
        TEXT,
        default="",
        meaning="CAs to verify the provider with.",
        default_note="the machine's",
        metavar="FILE",
    )
    oidc_username_claim: str = setting(
        TEXT,
        default=USERNAME_CLAIM,
        meaning="Claim that names the user.",
        metavar="CLAIM",
    )
    oidc_username_prefix: str = setting(
        TEXT,
        default="",
        meaning="Put before every user name; - puts nothing.",
        default_note="the issuer and #, unless the claim is email",
        metavar="PREFIX",
    )
    oidc_groups_claim: str = setting(
        TEXT,
        default="",
        meaning="Claim that holds the groups.",
        metavar="CLAIM",
    )
    oidc_groups_prefix: str = setting(
        TEXT,
        default="",
        meaning="Put before every group.",
        metavar="PREFIX",
    )
    oidc_signing_algs: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=DEFAULT_ALGORITHMS,
        meaning=f"Algorithms the provider may sign with, of {', '.join(SIGNING_ALGORITHMS)}.",
        metavar="ALG,...",
    )
    oidc_required_claim: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="Claim and value that a token must have; repeatable.",
        metavar="CLAIM=VALUE",
    )
    authentication_config: str = setting(
        TEXT,
        default="",
        meaning="AuthenticationConfiguration (apiserver.config.k8s.io): JWT issuers and anonymous access; read again when it "
        "changes.",
        metavar="FILE",
    )
    authentication_token_webhook_config_file: str = setting(
        TEXT,
        default="",
        meaning="Kubeconfig of a service that answers TokenReviews.",
        metavar="FILE",
    )
    authentication_token_webhook_version: str = setting(
        TEXT,
        default=WEBHOOK_VERSIONS[0],
        meaning=f"Version of the TokenReviews it is sent: {' or '.join(WEBHOOK_VERSIONS)}.",
        metavar="VERSION",
    )
    authentication_token_webhook_cache_ttl: timedelta = setting(
        DURATION,
        default=WEBHOOK_CACHE_TTL,
        meaning="For how long its answers are remembered.",
    )
    keystone_url: str = setting(
        TEXT,
        default="",
        meaning="https URL of an OpenStack Keystone (v3) that judges passwords.",
        metavar="URL",
        former_name="experimental-keystone-url",
    )
    keystone_ca_file: str = setting(
        TEXT,
        default="",
        meaning="CAs to verify Keystone with; read again when it changes.",
        default_note="the machine's",
        metavar="FILE",
        former_name="experimental-keystone-ca-file",
    )
    keystone_user_domain: str = setting(
        TEXT,
        default="Default",
        meaning="Domain of users who name none.",
        metavar="DOMAIN",
    )
    authentication_cache_ttl: timedelta = setting(
        DURATION,
        default=CACHE_TTL,
        meaning="For how long an accepted password, and what an authenticator of your own accepted, is remembered; 0: not at all.",
    )
    login_ttl: timedelta = setting(
        DURATION,
        default=LOGIN_TTL,
        meaning="How long the credential lives that `mooring login` gets; 0: no login.",
    )
    login_from_request_header: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Whether users whom an authenticating proxy names may log in: their credential goes past the proxy.",
    )
    authenticators: tuple[Any, ...] = setting(
        MAPPINGS,
        default=(),
        meaning="Authenticators of your own: each has `name`, `class` (`module:Class`), and may have `deadline`, `cache-ttl` and "
        "`options`.",
        flag=False,
        secret=True,
    )

    def options(self, *, anonymous_said: bool) -> AuthenticationOptions:
        """Return the checked options. Raises ConfigError."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return authentication_options(anonymous_said=anonymous_said, **given)
