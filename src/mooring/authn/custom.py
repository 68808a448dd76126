"""Authenticators that an operator has written: the settings that name them, and the verdicts that are made of their answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeGuard

from mooring.api.view import Views
from mooring.authn import plugin
from mooring.authn.chain import BASIC, BEARER
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.plugin import Offered, User
from mooring.authn.reasons import FAILED, RESERVED_NAME, TOKEN_TOO_LONG
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import CACHE_TTL, MAX_CACHE_TTL, VerdictCache
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.pki.jwt.token import MAX_CLAIMED_BYTES
from mooring.settings.declaration import Settings, ValueType, duration_from_file, duration_within, setting

DEADLINE = timedelta(seconds=5)
MAX_DEADLINE = timedelta(minutes=1)
MAX_AUTHENTICATORS = 16
"""Each judges every credential that no other authenticator recognises."""
_KEYS = ("name", "class", "deadline", "cache-ttl", "options")
_DURATIONS = ("deadline", "cache-ttl")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomAuthenticatorEntry:
    """One entry of `authenticators`: `location` is `module:Class`. The options may hold secrets."""

    name: str
    location: str
    deadline: timedelta = DEADLINE
    cache_ttl: timedelta = CACHE_TTL
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)


def _entries_from_file(value: Any) -> tuple[Any, ...]:
    """Return the entries with their durations read; `parse_entries` checks the rest. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("give a list of mappings with name and class")
    return tuple(_with_durations(value))


def _with_durations(entries: list[Any]) -> Iterator[Any]:
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            yield entry  # `parse_entries` rejects it
            continue
        yield {
            key: _duration(f"[{place}].{key}", value) if key in _DURATIONS else value for key, value in entry.items()
        }


def _duration(path: str, value: Any) -> timedelta:
    try:
        return duration_from_file(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_entries(entries: tuple[Any, ...], key: str) -> tuple[CustomAuthenticatorEntry, ...]:
    """Return the checked entries. Raises ConfigError."""
    if len(entries) > MAX_AUTHENTICATORS:
        raise ConfigError(f"{key}: {len(entries)} are more than {MAX_AUTHENTICATORS}")
    parsed = tuple(_parse_entry(f"{key}[{place}]", entry) for place, entry in enumerate(entries))
    names = [entry.name for entry in parsed]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f'{key}[{place}].name: "{name}" is taken already')
    return parsed


def _parse_entry(path: str, entry: Any) -> CustomAuthenticatorEntry:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}: give a mapping with name and class")
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f'{path}: "{key}" is not known; there are name, class, deadline, cache-ttl, and options')
    name, location, options = entry.get("name"), entry.get("class"), entry.get("options", {})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{path}.name: give a name of lower case letters, digits and dashes, such as ldap")
    if not isinstance(location, str) or not _CLASS.fullmatch(location):
        raise ConfigError(f"{path}.class: give module:Class, such as company.ldap:LdapAuthenticator")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigError(f"{path}.options: give a mapping")
    deadline, ttl = entry.get("deadline", DEADLINE), entry.get("cache-ttl", CACHE_TTL)
    for key, duration in (("deadline", deadline), ("cache-ttl", ttl)):
        if not isinstance(duration, timedelta):
            raise ConfigError(f"{path}.{key}: give a duration, such as 5s")
    return CustomAuthenticatorEntry(
        name=name,
        location=location,
        deadline=duration_within(timedelta(milliseconds=1), MAX_DEADLINE)(deadline, f"{path}.deadline"),
        cache_ttl=duration_within(timedelta(0), MAX_CACHE_TTL)(ttl, f"{path}.cache-ttl"),
        options=MappingProxyType(dict(options)),
    )


ENTRIES: ValueType[tuple[Any, ...]] = ValueType("list of mappings", _entries_from_file, tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSettings(Settings):
    """Authenticators of the operator's own."""

    heading: ClassVar[str] = "Custom authenticators"

    authenticators: tuple[CustomAuthenticatorEntry, ...] = setting(
        ENTRIES,
        default=(),
        meaning="Authenticators of your own: each has `name`, `class` (`module:Class`), and may have `deadline`, `cache-ttl` and "
        "`options`.",
        flag=False,
        secret=True,
        parse=parse_entries,
    )


# Custom authenticators, as the chain calls them: last, and with every result checked.
#
# Rules kept here:
# 1. A custom authenticator judges credentials of its schemes that no other authenticator accepted. An empty password is never
#    passed on, because directories take it for an anonymous bind and accept (RFC 4513 5.1.2). Neither is a token that is too long
#    to read its issuer.
# 2. Requests with the same token or password at the same time share one call. Only acceptances are remembered, under an HMAC, for
#    the configured time. A credential of another scheme is passed on each time and shared with no other request, because it may
#    be good for one use, as those of Kerberos are.
# 3. The result is a `User`, `NotMine` or `Rejected` of `mooring.authn.plugin`, and every value of it is checked. Anything else is a
#    rejection. The operator learns what was wrong with the result, not its content.
# 4. No user name or group begins with `system:`, and no extra key is one of Kubernetes': a directory does not decide about rights
#    in the cluster.
# 5. A detail that repeats the secret is left out.
# 6. An acceptance is for this server: the result names no audience.

MAX_USER = 65_536
"""Characters of all that a user has: a thousand groups of sixty; a verdict is remembered, and goes into every audit record."""
MAX_DETAIL = 256
"""Characters of a detail that are kept."""
_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_MAX_CODE = 63
_KUBERNETES = re.compile(r"([^/]*\.)?(kubernetes|k8s)\.io(/.*)?", re.ASCII)
_NOT_MINE = NotMine()


class CustomAuthenticator:
    """One custom authenticator. `ask` returns its result, or an `own.Rejected` after a failure."""

    judges = SECRET

    def __init__(
        self,
        name: str,
        ask: Callable[[Offered], Awaitable[object]],
        deadline: timedelta,
        remembered: VerdictCache,
        schemes: Collection[str] = (BEARER, BASIC),
    ) -> None:
        self.name = name
        self.schemes = frozenset(schemes)
        """In lower case."""
        self._ask = ask
        self._deadline = deadline.total_seconds()
        self._remembered = remembered

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        token, basic, other, asked = credentials.bearer, credentials.basic, credentials.other, tuple(audiences)
        parts: tuple[bytes, ...]
        if other is not None and other.value and other.scheme in self.schemes:
            offered = Offered(scheme=other.scheme, credential=other.value, now=now, audiences=asked)
            return Deferred(coroutine=partial(self._ask_and_read, offered), deadline=self._deadline)
        if token and BEARER in self.schemes:
            if len(token.reveal()) > MAX_CLAIMED_BYTES:
                return NotMine(TOKEN_TOO_LONG)
            offered = Offered(token=token, now=now, audiences=asked)
            parts = (b"token", token.reveal())
        elif basic is not None and basic.user and basic.password and BASIC in self.schemes:
            offered = Offered(user=basic.user, password=basic.password, now=now, audiences=asked)
            parts = (b"password", basic.user.encode(), basic.password.reveal())
        else:
            return _NOT_MINE
        place = self._remembered.place(*parts, *(one.encode("utf-8", "surrogatepass") for one in asked))
        return self._remembered.get(place, now) or Deferred(
            coroutine=partial(self._ask_and_read, offered),
            key=place,
            deadline=self._deadline,
            on_verdict=partial(self._remembered.put, place),
        )

    async def _ask_and_read(self, offered: Offered) -> Verdict:
        return read(await self._ask(offered), offered)


def read(result: object, offered: Offered) -> Verdict:
    """Return the verdict for the result of a custom authenticator about `offered` (rules 3 to 6)."""
    if isinstance(result, User):
        return _check_user(result)
    if not isinstance(result, plugin.NotMine | plugin.Rejected):
        return Rejected(FAILED, f"it answered {type(result).__name__}, which is no User, NotMine or Rejected")
    reason: object = result.reason
    if isinstance(result, plugin.NotMine) and reason == "":
        return _NOT_MINE
    if not isinstance(reason, str) or len(reason) > _MAX_CODE or not _CODE.fullmatch(reason):
        return Rejected(FAILED, f"its reason is no code of at most {_MAX_CODE} lower case letters, digits and dashes")
    return (
        NotMine(reason)
        if isinstance(result, plugin.NotMine)
        else Rejected(reason, _printable_detail(result.detail, offered))
    )


def _check_user(result: User) -> Verdict:
    groups: object = result.groups
    extra: object = result.extra
    if not _is_text(result.username) or not result.username:
        return Rejected(FAILED, "the user name is no printable text")
    if not _is_text(result.uid):
        return Rejected(FAILED, "the uid is no printable text")
    if not _is_text_list(groups) or not all(groups):
        return Rejected(FAILED, "the groups are no list of printable texts")
    if not isinstance(extra, Mapping) or not all(
        _is_text(key) and _is_text_list(values) for key, values in extra.items()
    ):
        return Rejected(FAILED, "the extra is no mapping of printable texts to lists of them")
    if any(not key or key != key.lower() for key in extra):
        return Rejected(FAILED, "a key of the extra is empty or not in lower case")
    texts = (result.username, result.uid, *groups, *extra, *(value for values in extra.values() for value in values))
    if sum(map(len, texts)) > MAX_USER:
        return Rejected(FAILED, f"the user has more than {MAX_USER} characters")
    # Names that begin with system: have rights in every cluster. Only the authenticators of this program may give them.
    if result.username.startswith("system:"):
        return Rejected(RESERVED_NAME, "the user name begins with system:")
    if any(group.startswith("system:") for group in groups):
        return Rejected(RESERVED_NAME, "a group begins with system:")
    if any(_KUBERNETES.fullmatch(key) for key in extra):
        return Rejected(RESERVED_NAME, "a key of the extra is one of kubernetes.io or k8s.io")
    kept = MappingProxyType({key: tuple(values) for key, values in extra.items()})
    return Accepted(UserInfo(result.username, result.uid, tuple(dict.fromkeys(groups)), kept))


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable()


def _is_text_list(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(_is_text(one) for one in value)


def _printable_detail(result: object, offered: Offered) -> str:
    """Return the detail as one line, "" when it is not text."""
    if not isinstance(result, str):
        return ""
    secret = offered.token or offered.password or offered.credential
    if secret is not None and secret.reveal().decode("utf-8", "replace") in result:
        return "it repeated the secret, which is left out"
    return "".join(one if one.isprintable() else " " for one in result[:MAX_DETAIL])
