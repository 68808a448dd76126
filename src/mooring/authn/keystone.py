"""Passwords that Keystone judges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar

import msgspec

from mooring.api.view import Views
from mooring.authn.credentials import SECRET, Basic, Credentials
from mooring.authn.reasons import RESERVED_NAME, Code
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import VerdictCache
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.settings.declaration import TEXT, Settings, file_setting, https_url, setting
from mooring.trust.httpexchange import Exchange, HttpFailure, HttpRequest, HttpResponse


def _parse_url(text: str, key: str) -> str:
    if not text:
        return ""
    if re.search(r"/v2(\.0)?/?$", text):
        raise ConfigError(f'{key}: "{text}" is of version 2.0, which Keystone has removed; give the URL of version 3')
    return https_url(text, key).rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeystoneSettings(Settings):
    """OpenStack identity service that judges passwords."""

    heading: ClassVar[str] = "Keystone"

    keystone_url: str = setting(
        TEXT,
        default="",
        meaning="https URL of an OpenStack Keystone (v3) that judges passwords.",
        metavar="URL",
        former_name="experimental-keystone-url",
        parse=_parse_url,
    )
    keystone_ca_file: str = file_setting(
        "CAs to verify Keystone with; read again when it changes.",
        default_note="the machine's",
        former_name="experimental-keystone-ca-file",
    )
    keystone_user_domain: str = setting(
        TEXT,
        default="Default",
        meaning="Domain of users who name none.",
        metavar="DOMAIN",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for settings without a URL, and for a domain that no user can have."""
        if not self.keystone_url:
            if self.keystone_ca_file:
                raise ConfigError("keystone-url: it is needed with keystone-ca-file")
            return
        domain = self.keystone_user_domain
        if not domain:
            raise ConfigError("keystone-user-domain: give the name of a domain, such as Default")
        if "@" in domain:
            raise ConfigError(f'keystone-user-domain: "{domain}" holds an @, behind which users name their domain')


NOT_A_NAME = Code("no-keystone-name")
WRONG = Code("wrong-user-or-password")
MORE_FACTORS = Code("needs-more-than-a-password")
FORBIDDEN = Code("keystone-forbids")
NOT_V3 = Code("keystone-not-found")
BUSY = Code("keystone-busy")
BROKEN = Code("keystone-failed")
UNEXPECTED = Code("keystone-unexpected-status")
UNREACHABLE = Code("keystone-unreachable")
UNREADABLE = Code("keystone-answer-unreadable")


# Passwords that an OpenStack Keystone judges.
#
# Rules kept here (OpenStack Identity API v3, POST /v3/auth/tokens; docs/protocol/authentication.md#removed-authenticators):
# 1. The method is `password`, the scope `unscoped`: the token in the response has next to no rights. It stands in a header that
#    is never read.
# 2. `jane` is a user of the configured domain, `jane@people` one of the domain people; the last @ counts. Each user of Keystone
#    therefore has exactly one name here: `jane@example.com` of the configured domain is `jane@example.com@Default`, and never the
#    jane of a domain called example.com.
# 3. Name and domain are those of the response: Keystone on MySQL takes Jane for jane. The uid is Keystone's id. There are no
#    groups, because roles of Keystone are about projects, and its administrators are not those of this cluster.
# 4. Names that begin with `system:` are rejected, because they belong to the cluster.
# 5. Any other response is a rejection with a reason for the operator. Keystone does not reveal whether the user or the password
#    was wrong. Acceptances are remembered briefly, failures never.

TARGET = "keystone"
"""Target of every request: the URL of `tokens_url`, under its trust."""

CALL_SECONDS = 5.0
"""Keystone hashes with bcrypt: a third of a second of its CPU, and it may have others to serve."""
DEADLINE = 6.0
MAX_ANSWER = 64 << 10
"""Bytes: an unscoped token's description has half a kB."""
MAX_NAME = 255
"""Characters of a user's name in Keystone."""
MAX_DOMAIN = 64
MAX_PASSWORD = 4096
"""Bytes: Keystone's own limit, `max_password_length`."""
_NOT_MINE = NotMine()
_BY_STATUS = {
    401: (WRONG, ""),
    403: (FORBIDDEN, ""),
    404: (NOT_V3, "there is no Identity API v3 at the URL"),
    429: (BUSY, ""),
}
_HEADERS = (("content-type", "application/json"), ("accept", "application/json"))


class _Domain(msgspec.Struct):
    name: str


class _User(msgspec.Struct):
    id: str
    name: str
    domain: _Domain


class _Token(msgspec.Struct):
    user: _User


class _Description(msgspec.Struct):
    """Description of a token in Keystone's response; other fields are ignored."""

    token: _Token


def tokens_url(url: str) -> str:
    """Return the URL of tokens for the URL of Keystone, with or without its version."""
    return f"{url.rstrip('/').removesuffix('/v3')}/v3/auth/tokens?nocatalog"


class KeystoneAuthenticator:
    """Judges passwords in the second stage. `domain` is that of users who name none."""

    name = "keystone"
    judges = SECRET

    def __init__(self, domain: str, remembered: VerdictCache) -> None:
        self._domain = domain
        self._remembered = remembered

    def forget(self) -> None:
        """Clear the remembered acceptances, because Keystone answers under another CA now."""
        self._remembered.clear()

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        basic = credentials.basic
        if basic is None or not basic.user:
            return _NOT_MINE
        name, at, domain = basic.user.rpartition("@")
        name, domain = (name, domain) if at else (domain, self._domain)
        if (
            not _is_usable(name, MAX_NAME)
            or not _is_usable(domain, MAX_DOMAIN)
            or len(basic.password.reveal()) > MAX_PASSWORD
        ):
            return NotMine(NOT_A_NAME)
        place = self._remembered.place(basic.user.encode(), basic.password.reveal())
        return self._remembered.get(place, now) or Deferred(
            exchange=partial(self._exchange, name, domain, basic),
            key=place,
            deadline=DEADLINE,
            on_verdict=partial(self._remembered.put, place),
        )

    def _exchange(self, name: str, domain: str, basic: Basic, now: datetime) -> Exchange[Verdict | None]:
        answer = yield HttpRequest(
            TARGET, "POST", "", _HEADERS, _request_body(name, domain, basic), CALL_SECONDS, MAX_ANSWER
        )
        if not isinstance(answer, HttpResponse):
            return Rejected(UNREACHABLE, answer.text if isinstance(answer, HttpFailure) else "")
        if answer.status != 201:
            return _rejection(answer)
        return self._read_user(answer.body)

    def _read_user(self, body: bytes) -> Verdict:
        try:
            user = msgspec.json.decode(body, type=_Description).token.user
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Rejected(UNREADABLE, "it does not describe a token")
        name, domain = user.name, user.domain.name
        if (
            not _is_usable(name, MAX_NAME)
            or not _is_usable(domain, MAX_DOMAIN)
            or "@" in domain
            or not _is_usable(user.id, MAX_NAME)
        ):
            return Rejected(UNREADABLE, "the user has no name, id and domain that could be used")
        if name.startswith("system:"):
            return Rejected(RESERVED_NAME, "the name begins with system:")
        full = name if domain == self._domain and "@" not in name else f"{name}@{domain}"
        return Accepted(UserInfo(full, user.id))


def _request_body(name: str, domain: str, basic: Basic) -> bytes:
    user = {"name": name, "domain": {"name": domain}, "password": basic.password.reveal().decode()}
    identity = {"methods": ["password"], "password": {"user": user}}
    return msgspec.json.encode({"auth": {"identity": identity, "scope": "unscoped"}})


def _is_usable(name: str, most: int) -> bool:
    return 0 < len(name) <= most and name.isprintable()


def _rejection(answer: HttpResponse) -> Verdict:
    if answer.status == 401 and "openstack-auth-receipt" in answer.headers:
        return Rejected(MORE_FACTORS, "Keystone wants another factor of this user")
    known = _BY_STATUS.get(answer.status)
    if known is not None:
        return Rejected(*known)
    return Rejected(BROKEN if answer.status >= 500 else UNEXPECTED, f"status {answer.status}")
