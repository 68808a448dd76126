"""Audit policy: the level at which each request is recorded (`--audit-policy-file`, audit.k8s.io/v1 Policy).

Source: docs/protocol/audit.md.

Rules kept here:
* The first rule that matches a request decides its level. A request that no rule matches is not recorded. A rule matches when all
  of its conditions hold; an absent condition always holds.
* `users`, `userGroups` and `verbs` list exact texts. One matching group of the user is enough.
* `resources` and `nonResourceURLs` exclude each other: a rule with `resources` or `namespaces` matches resource requests only, a
  rule with `nonResourceURLs` other requests only.
* A resource is written `pods`, `pods/log`, `pods/*` (every subresource of pods), `*/scale` (that subresource of all) or `*`
  (all, with subresources). A group without resources means all of it; `group` is "" for the core group. `resourceNames` need
  resources, and match requests for an object of one of these names.
* `namespaces`: "" means requests without a namespace.
* `nonResourceURLs` are exact paths, or prefixes that end in `*`.
* `omitStages` of the policy and of the rule are combined. `omitManagedFields` of the rule overrides that of the policy.
* Parsing is strict: an unknown or duplicate field, a wrong type and an unknown value are errors that name the field and the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from mooring.apimachinery.codec.fieldreader import FieldReader
from mooring.apimachinery.codec.yaml import YamlError, read_yaml
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.errors import ConfigError
from mooring.identity import UserInfo

API_VERSION = "audit.k8s.io/v1"
REQUEST_RECEIVED = "RequestReceived"
RESPONSE_STARTED = "ResponseStarted"
RESPONSE_COMPLETE = "ResponseComplete"
PANIC = "Panic"
STAGES = (REQUEST_RECEIVED, RESPONSE_STARTED, RESPONSE_COMPLETE, PANIC)
MAX_RULES = 1000
"""Rules of one policy. Each request may be compared with all; the longest published policies have about forty."""
MAX_BYTES = 1 << 20
"""Bytes of a policy file; a policy of a thousand rules has a tenth of this."""


class Level(IntEnum):
    """Amount of detail in a record; each level includes those before it."""

    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3

    @property
    def text(self) -> str:
        """The level as records and policies write it."""
        return _TEXTS[self]


_LEVELS = {
    "None": Level.NONE,
    "Metadata": Level.METADATA,
    "Request": Level.REQUEST,
    "RequestResponse": Level.REQUEST_RESPONSE,
}
_TEXTS = {level: text for text, level in _LEVELS.items()}


@dataclass(frozen=True, slots=True)
class AuditDecision:
    """Level and options of the records of one request."""

    level: Level
    omit_stages: frozenset[str] = frozenset()
    omit_managed_fields: bool = False

    def keeps(self, stage: str) -> bool:
        return self.level is not Level.NONE and stage not in self.omit_stages


NOTHING = AuditDecision(Level.NONE)
METADATA = AuditDecision(Level.METADATA, frozenset((REQUEST_RECEIVED, RESPONSE_STARTED)))
"""Decision without a policy file: one record for each request, at its end."""


@dataclass(frozen=True, slots=True)
class GroupResources:
    """Resources of one API group that a rule matches."""

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
class AuditRule:
    """One rule of a policy."""

    decision: AuditDecision
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
    """Rules in order; the first that matches decides."""

    rules: tuple[AuditRule, ...]

    @property
    def keeps_any(self) -> bool:
        """True when a rule that a request can reach has records."""
        for rule in self.rules:
            if rule.decision.level is not Level.NONE:
                return True
            if rule == AuditRule(rule.decision):
                break  # it matches every request
        return False

    def decide(self, user: UserInfo, info: RequestInfo) -> AuditDecision:
        for rule in self.rules:
            if rule.matches(user, info):
                return rule.decision
        return NOTHING


def parse_policy(data: bytes, source: str) -> AuditPolicy:
    """Return the policy of a YAML or JSON file. Raises ConfigError with `source`, the rule and the field."""

    def source_error(message: str) -> ConfigError:
        return ConfigError(f"{source}: {message}")

    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: an audit policy is at most {MAX_BYTES} bytes")
    try:
        document = read_yaml(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: the file is not UTF-8 text") from None
    except YamlError as error:
        raise ConfigError(f"{source}: yaml: {error}") from None
    if document.duplicates:
        raise ConfigError(f"{source}: {document.duplicates[0]}")
    if not isinstance(document.value, dict):
        raise ConfigError(f"{source}: one Policy of {API_VERSION} is expected")
    fields = FieldReader(document.value, "", source_error)
    if (fields.text("apiVersion"), fields.text("kind")) != (API_VERSION, "Policy"):
        raise ConfigError(f"{source}: one Policy of {API_VERSION} is expected; set apiVersion and kind")
    # Names and labels of a file have no effect.
    fields.object("metadata")
    omit_stages = _stages(fields, "omitStages")
    omit_managed_fields = fields.flag("omitManagedFields")
    rules = fields.each(
        "rules", lambda rule, path: _parse_rule(fields.nested(rule, path), omit_stages, omit_managed_fields)
    )
    # A misspelt field would leave out records, which is noticed only when they are needed.
    fields.refuse_unknown()
    if not rules or len(rules) > MAX_RULES:
        raise ConfigError(f"{source}: rules: from 1 to {MAX_RULES} rules are expected")
    return AuditPolicy(rules)


def _parse_rule(fields: FieldReader, omit_stages: tuple[str, ...], omit_managed_fields: bool) -> AuditRule:
    level = fields.text("level")
    if level not in _LEVELS:
        raise fields.error("level", f"give one of {', '.join(_LEVELS)}")
    overridden = fields.value("omitManagedFields") is not None
    decision = AuditDecision(
        _LEVELS[level],
        frozenset((*omit_stages, *_stages(fields, "omitStages"))),
        fields.flag("omitManagedFields") if overridden else omit_managed_fields,
    )
    rule = AuditRule(
        decision,
        users=frozenset(fields.texts("users")),
        groups=frozenset(fields.texts("userGroups")),
        verbs=frozenset(fields.texts("verbs")),
        resources=fields.each("resources", lambda entry, path: _parse_group_resources(fields.nested(entry, path))),
        namespaces=frozenset(fields.texts("namespaces")),
        urls=_urls(fields, "nonResourceURLs"),
    )
    fields.refuse_unknown()
    if rule.urls and (rule.resources or rule.namespaces):
        raise fields.error("nonResourceURLs", "a rule about paths has no resources and no namespaces")
    return rule


def _parse_group_resources(fields: FieldReader) -> GroupResources:
    group = fields.text("group")
    if "/" in group:
        raise fields.error("group", "give the group alone, without a version")
    resources = fields.texts("resources")
    names = fields.texts("resourceNames")
    fields.refuse_unknown()
    for pattern in resources:
        if pattern.count("/") > 1 or not all(pattern.split("/")):
            raise fields.error("resources", f'"{pattern}" is neither resource nor resource/subresource')
    if names and not resources:
        raise fields.error("resourceNames", "name their resources too")
    return GroupResources(group, resources, frozenset(names))


def _stages(fields: FieldReader, key: str) -> tuple[str, ...]:
    stages = fields.texts(key)
    for stage in stages:
        if stage not in STAGES:
            raise fields.error(key, f'"{stage}" is none of {", ".join(STAGES)}')
    return stages


def _urls(fields: FieldReader, key: str) -> tuple[str, ...]:
    urls = fields.texts(key)
    for url in urls:
        if url != "*" and (not url.startswith("/") or "*" in url[:-1]):
            raise fields.error(
                key, f'"{url}" is not a path: it must begin with /, and * may only be its last character'
            )
    return urls
