"""What of each request the audit log keeps: `--audit-policy-file`, audit.k8s.io/v1 Policy.

Source: docs/protocol/audit.md.

Rules kept here:
* The first rule that matches a request says its level; a request that none matches is not recorded. Every condition that a rule
  names must hold; a condition it does not name holds always.
* `users`, `userGroups` and `verbs` list exact texts. For a group one of the user's is enough.
* `resources` and `nonResourceURLs` exclude each other: a rule that names `resources` or `namespaces` is about resources alone, one
  that names `nonResourceURLs` about paths alone.
* A resource is written `pods`, `pods/log`, `pods/*` (every subresource of pods), `*/scale` (that subresource of all) or `*`
  (all, subresources too). No resources in a group are all of it; `group` is "" for the core group. `resourceNames` want
  resources, and hold for requests that name one of them.
* `namespaces`: "" stands for requests in no namespace.
* `nonResourceURLs` are exact, or end in `*`, which stands for any rest.
* `omitStages` of the policy and of the rule add up. `omitManagedFields` of the rule wins over that of the policy.
* Reading is strict: an unknown field, a repeated one, a wrong type and an unknown word are errors that name the field and the
  rule, because a policy that means less than it says is found out when the records are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.errors import ConfigError, MooringError
from mooring.identity import UserInfo

T = TypeVar("T")

API_VERSION = "audit.k8s.io/v1"
REQUEST_RECEIVED = "RequestReceived"
RESPONSE_STARTED = "ResponseStarted"
RESPONSE_COMPLETE = "ResponseComplete"
PANIC = "Panic"
STAGES = (REQUEST_RECEIVED, RESPONSE_STARTED, RESPONSE_COMPLETE, PANIC)
MAX_RULES = 1000
"""Each may be looked at for every request; the longest published policies have about forty."""
MAX_BYTES = 1 << 20
"""A policy of a thousand rules is a tenth of this."""


class Level(IntEnum):
    """How much is kept; each level keeps what those before it keep."""

    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3

    @property
    def text(self) -> str:
        return _TEXTS[self]


_LEVELS = {
    "None": Level.NONE,
    "Metadata": Level.METADATA,
    "Request": Level.REQUEST,
    "RequestResponse": Level.REQUEST_RESPONSE,
}
_TEXTS = {level: text for text, level in _LEVELS.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one request."""

    level: Level
    omit_stages: frozenset[str] = frozenset()
    omit_managed_fields: bool = False

    def keeps(self, stage: str) -> bool:
        return self.level is not Level.NONE and stage not in self.omit_stages


NOTHING = Decision(Level.NONE)
METADATA = Decision(Level.METADATA, frozenset((REQUEST_RECEIVED, RESPONSE_STARTED)))
"""Without a policy file: one record a request, when it is over."""


@dataclass(frozen=True, slots=True)
class GroupResources:
    """Some resources of one API group."""

    group: str
    resources: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    def matches(self, info: RequestInfo) -> bool:
        if self.group != info.group or (self.names and info.name not in self.names):
            return False
        return not self.resources or any(_is_resource(pattern, info) for pattern in self.resources)


def _is_resource(pattern: str, info: RequestInfo) -> bool:
    if pattern == "*":
        return True
    resource, slash, subresource = pattern.partition("/")
    if not slash:
        return resource == info.resource and not info.subresource
    if not info.subresource:
        return False
    return resource in ("*", info.resource) and subresource in ("*", info.subresource)


def _is_url(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy."""

    decision: Decision
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    resources: tuple[GroupResources, ...] = ()
    namespaces: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()

    def matches(self, user: UserInfo, info: RequestInfo) -> bool:
        if self.users and user.username not in self.users:
            return False
        if self.groups and self.groups.isdisjoint(user.groups):
            return False
        if self.verbs and info.verb not in self.verbs:
            return False
        if not info.is_resource:
            if self.resources or self.namespaces:
                return False
            return not self.urls or any(_is_url(pattern, info.path) for pattern in self.urls)
        if self.urls or (self.namespaces and info.namespace not in self.namespaces):
            return False
        return not self.resources or any(one.matches(info) for one in self.resources)


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """Rules in order."""

    rules: tuple[Rule, ...]

    def decide(self, user: UserInfo, info: RequestInfo) -> Decision:
        for rule in self.rules:
            if rule.matches(user, info):
                return rule.decision
        return NOTHING


def parse_policy(data: bytes, source: str) -> AuditPolicy:
    """The policy in a YAML or JSON file. Raises ConfigError that names `source`, the rule and the field."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: an audit policy is at most {MAX_BYTES} bytes")
    try:
        document, duplicates = decode_yaml(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: the file is not UTF-8 text") from None
    except MooringError as error:
        raise ConfigError(f"{source}: {error}") from None
    if duplicates:
        raise ConfigError(f"{source}: {duplicates[0]}")
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: one Policy of {API_VERSION} is expected")
    policy = _Reader(document, source)
    if (policy.take("apiVersion", _text), policy.take("kind", _text)) != (API_VERSION, "Policy"):
        raise ConfigError(f"{source}: one Policy of {API_VERSION} is expected; say so in apiVersion and kind")
    policy.take("metadata", _object)  # names and labels of a file mean nothing here
    stages = policy.take("omitStages", _stages)
    managed = policy.take("omitManagedFields", _truth)
    entries = policy.take("rules", _list)
    policy.end()
    if not entries or len(entries) > MAX_RULES:
        raise ConfigError(f"{source}: rules: from 1 to {MAX_RULES} rules are expected")
    return AuditPolicy(
        tuple(_rule(entry, f"{source}: rules[{index}]", stages, managed) for index, entry in enumerate(entries))
    )


def _rule(entry: Any, where: str, stages: tuple[str, ...], managed: bool) -> Rule:
    reader = _Reader(entry, where)
    word = reader.take("level", _text)
    if word not in _LEVELS:
        raise ConfigError(f"{where}.level: give one of {', '.join(_LEVELS)}")
    own = reader.has("omitManagedFields")
    omit = reader.take("omitManagedFields", _truth)
    decision = Decision(
        _LEVELS[word], frozenset((*stages, *reader.take("omitStages", _stages))), omit if own else managed
    )
    rule = Rule(
        decision,
        users=frozenset(reader.take("users", _texts)),
        groups=frozenset(reader.take("userGroups", _texts)),
        verbs=frozenset(reader.take("verbs", _texts)),
        resources=tuple(
            _group_resources(item, f"{where}.resources[{index}]")
            for index, item in enumerate(reader.take("resources", _list))
        ),
        namespaces=frozenset(reader.take("namespaces", _texts)),
        urls=reader.take("nonResourceURLs", _urls),
    )
    reader.end()
    if rule.urls and (rule.resources or rule.namespaces):
        raise ConfigError(f"{where}.nonResourceURLs: a rule about paths has no resources and no namespaces")
    return rule


def _group_resources(entry: Any, where: str) -> GroupResources:
    reader = _Reader(entry, where)
    group = reader.take("group", _text)
    if "/" in group:
        raise ConfigError(f"{where}.group: give the group alone, without a version")
    resources = reader.take("resources", _texts)
    names = reader.take("resourceNames", _texts)
    reader.end()
    for pattern in resources:
        if pattern.count("/") > 1 or not all(pattern.split("/")):
            raise ConfigError(f'{where}.resources: "{pattern}" is neither resource nor resource/subresource')
    if names and not resources:
        raise ConfigError(f"{where}.resourceNames: say of which resources")
    return GroupResources(group, resources, frozenset(names))


class _Reader:
    """Takes the known fields out of one object, and then knows what is left."""

    def __init__(self, entry: Any, where: str) -> None:
        if not isinstance(entry, dict):
            raise ConfigError(f"{where} must be an object")
        self._left = dict(entry)
        self._where = where

    def has(self, key: str) -> bool:
        return self._left.get(key) is not None

    def take(self, key: str, read: Callable[[Any, str], T]) -> T:
        return read(self._left.pop(key, None), f"{self._where}.{key}")

    def end(self) -> None:
        if self._left:
            raise ConfigError(f'{self._where}: unknown field "{next(iter(self._left))}"')


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be a text")
    return value


def _truth(value: Any, where: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{where}[{index}]") for index, item in enumerate(_list(value, where)))


def _stages(value: Any, where: str) -> tuple[str, ...]:
    stages = _texts(value, where)
    for stage in stages:
        if stage not in STAGES:
            raise ConfigError(f'{where}: "{stage}" is none of {", ".join(STAGES)}')
    return stages


def _urls(value: Any, where: str) -> tuple[str, ...]:
    urls = _texts(value, where)
    for url in urls:
        if url != "*" and (not url.startswith("/") or "*" in url[:-1]):
            raise ConfigError(f'{where}: "{url}" is no path; it begins with /, and * stands at its end only')
    return urls
