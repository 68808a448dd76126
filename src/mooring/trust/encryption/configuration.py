"""The EncryptionConfiguration file: which resources are encrypted in the store, by which providers and keys.

Source: docs/protocol/encryption-at-rest.md#encryptionconfiguration.

Rules kept here:
* Reading is strict: an unknown or duplicate field and a wrong type are errors. All broken rules are reported at once, each with the
  path of its field, in kube-apiserver's words. An error never contains a key.
* An entry names resources (`secrets`, `leases.coordination.k8s.io`), `*.group`, `*.` (the core group) or `*.*`. Entries are read in
  order. An entry that an earlier one masks is an error. A resource in several entries has the providers of all of them.
* The first provider of a resource writes, and all of them read.
* KMS v1 is refused: kube-apiserver has turned it off, and it stores every data key beside its value.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from mooring.apimachinery.codec.fieldreader import FieldReader
from mooring.apimachinery.codec.yaml import YamlError, read_yaml
from mooring.apimachinery.schema import Obj
from mooring.duration import parse_duration
from mooring.errors import MAX_FIELD_ERRORS, ConfigError, FieldError, invalid, quoted, required
from mooring.secret import Secret

API_VERSION = "apiserver.config.k8s.io/v1"
KIND = "EncryptionConfiguration"
MAX_BYTES = 1 << 20
"""Bytes of a file; one with a hundred keys has a hundredth of this."""
MAX_ITEMS = 1000
"""Resource names, providers, or keys in one list: each value is compared with every key of its resource."""
ANY = "*"
DEFAULT_TIMEOUT = timedelta(seconds=3)
"""Time that a KMS plugin has for one call."""

AESCBC, AESGCM, SECRETBOX, KMS, IDENTITY = "aescbc", "aesgcm", "secretbox", "kms", "identity"
PROVIDERS = (AESGCM, AESCBC, SECRETBOX, IDENTITY, KMS)
KEY_SIZES: Mapping[str, tuple[int, ...]] = {AESCBC: (16, 24, 32), AESGCM: (16, 24, 32), SECRETBOX: (32,)}
"""Bytes of a key, by provider."""

_NOT_REST = ("apiserveripinfo", "serviceipallocations", "servicenodeportallocations")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MASKED = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked"


@dataclass(frozen=True, slots=True, order=True)
class GroupResource:
    """A resource and its API group; each may be `*`."""

    group: str
    resource: str

    def __str__(self) -> str:
        if self.resource == ANY:
            return f"{ANY}.{self.group}"
        return f"{self.resource}.{self.group}" if self.group else self.resource


ANYTHING = GroupResource(ANY, ANY)


def parse_group_resource(text: str) -> GroupResource:
    """Return the resource before the first dot, and the group behind it."""
    resource, _, group = text.partition(".")
    return GroupResource(group, resource)


@dataclass(frozen=True, slots=True)
class Key:
    """One named key of a provider."""

    name: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class KmsPlugin:
    """A KMS v2 plugin. `socket` is the path of its Unix socket, or `@` and an abstract name."""

    name: str
    socket: str
    timeout: timedelta = DEFAULT_TIMEOUT


@dataclass(frozen=True, slots=True)
class EncryptionProvider:
    """One provider: `keys` of aescbc, aesgcm and secretbox, or the `plugin` of kms."""

    kind: str
    keys: tuple[Key, ...] = ()
    plugin: KmsPlugin | None = None


@dataclass(frozen=True, slots=True)
class EncryptionConfiguration:
    """Providers by resource, each in order: the first one writes."""

    providers: Mapping[GroupResource, tuple[EncryptionProvider, ...]]

    def providers_of(self, resource: GroupResource) -> tuple[EncryptionProvider, ...]:
        """Return the providers of a resource; none when it is not encrypted."""
        for known in (resource, GroupResource(resource.group, ANY), ANYTHING):
            if known in self.providers:
                return self.providers[known]
        return ()

    @property
    def plugins(self) -> tuple[KmsPlugin, ...]:
        """Every KMS plugin, in order."""
        found = {one.plugin.name: one.plugin for all_of in self.providers.values() for one in all_of if one.plugin}
        return tuple(found.values())


NOTHING = EncryptionConfiguration({})
"""Configuration of a server without a file: values are stored as they are."""


def read_document(data: bytes, source: str) -> Obj:
    """Return the object in a YAML or JSON file. Raises ConfigError."""
    if not data:
        raise ConfigError(f"{source}: the file is empty")
    # Before it is parsed.
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: an {KIND} is at most {MAX_BYTES} bytes")
    try:
        document = read_yaml(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: the file is not UTF-8 text") from None
    except YamlError as error:
        # The text of a mistake in the syntax can quote the line, which may be a key.
        place = f" in line {error.line}" if error.line else ""
        raise ConfigError(f"{source}: the file is not valid YAML{place}") from None
    found = document.value
    if not isinstance(found, dict) or (found.get("apiVersion"), found.get("kind")) != (API_VERSION, KIND):
        raise ConfigError(f"{source}: one {KIND} is expected; say apiVersion: {API_VERSION} and kind: {KIND}")
    if document.duplicates:
        raise ConfigError(f"{source}: {document.duplicates[0]}")
    return found


def parse(data: bytes, source: str) -> EncryptionConfiguration:
    """Parse a file. Raises ConfigError that names `source` and every wrong field."""
    return _Parser(source).parse(read_document(data, source))


class _Parser:
    """One reading of a file, and the mistakes in it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._mistakes: list[FieldError] = []
        self._plugins: set[str] = set()

    def parse(self, document: Obj) -> EncryptionConfiguration:
        top = FieldReader(document, "", self._error)
        top.text("apiVersion"), top.text("kind")
        entries = top.each("resources", lambda value, path: self._read_entry(top.nested(value, path), path))
        top.refuse_unknown()
        if not entries:
            self._mistakes.append(_at_least_one("resources"))
        if self._mistakes:
            texts = [str(one) for one in self._mistakes[:MAX_FIELD_ERRORS]]
            raise self._error(texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")
        return EncryptionConfiguration(self._merged(entries))

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._source}: {text}")

    def _merged(
        self, entries: tuple[tuple[tuple[str, ...], tuple[EncryptionProvider, ...]], ...]
    ) -> Mapping[GroupResource, tuple[EncryptionProvider, ...]]:
        found: dict[GroupResource, tuple[EncryptionProvider, ...]] = {}
        for names, providers in entries:
            for one in map(parse_group_resource, names):
                for masking in (GroupResource(one.group, ANY), ANYTHING):
                    if masking in found:
                        # Its values would be written by other keys than the file says.
                        raise self._error(f'resource "{one}" is masked by earlier rule "{masking}"')
                found[one] = found.get(one, ()) + providers
        return found

    # -- one entry -----------------------------------------------------------------------------------------------------

    def _read_entry(self, reader: FieldReader, path: str) -> tuple[tuple[str, ...], tuple[EncryptionProvider, ...]]:
        names = reader.texts("resources")
        self._check_names(names, f"{path}.resources")
        providers = reader.each("providers", lambda value, at: self._read_provider(reader.nested(value, at), at))
        reader.refuse_unknown()
        if not providers:
            self._mistakes.append(_at_least_one(f"{path}.providers"))
        if len(names) > MAX_ITEMS or len(providers) > MAX_ITEMS:
            raise self._error(f"{path} has more than {MAX_ITEMS} resources or providers")
        return names, providers

    def _check_names(self, names: tuple[str, ...], path: str) -> None:
        if not names:
            self._mistakes.append(_at_least_one(path))
        parsed = [parse_group_resource(name) for name in names]
        if len(set(parsed)) < len(parsed):
            self._mistakes.append(invalid(path, names, "the same resource cannot be specified multiple times"))
        if _overlap(set(parsed)):
            self._mistakes.append(invalid(path, names, MASKED))
        for place, name in enumerate(names):
            if problem := _name_problem(name):
                self._mistakes.append(invalid(f"{path}[{place}]", name, problem))

    # -- one provider --------------------------------------------------------------------------------------------------

    def _read_provider(self, reader: FieldReader, path: str) -> EncryptionProvider:
        given = {kind: reader.value(kind) for kind in PROVIDERS}
        reader.refuse_unknown()
        present = [kind for kind in PROVIDERS if given[kind] is not None]
        if len(present) != 1:
            problem = (
                "more than one provider specified in a single element, should split into different list elements"
                if present
                else "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"
            )
            self._mistakes.append(invalid(path, present, problem))
            return EncryptionProvider(IDENTITY)
        kind = present[0]
        inner = reader.nested(given[kind], f"{path}.{kind}")
        if kind == IDENTITY:
            inner.refuse_unknown()
            return EncryptionProvider(kind)
        if kind == KMS:
            return EncryptionProvider(kind, plugin=self._read_plugin(inner, f"{path}.{kind}"))
        keys = inner.each("keys", lambda value, at: self._read_key(inner.nested(value, at), at, KEY_SIZES[kind]))
        inner.refuse_unknown()
        if not keys:
            self._mistakes.append(required(f"{path}.{kind}.keys", "at least one keys is required"))
        if len(keys) > MAX_ITEMS:
            raise self._error(f"{path}.{kind}.keys has more than {MAX_ITEMS} keys")
        return EncryptionProvider(kind, keys=keys)

    def _read_key(self, reader: FieldReader, path: str, sizes: tuple[int, ...]) -> Key:
        name, text = reader.text("name"), reader.text("secret")
        reader.refuse_unknown()
        if not name:
            self._mistakes.append(required(f"{path}.name", "name is a mandatory field for a key"))
        elif _CONTROL.search(name):
            self._mistakes.append(invalid(f"{path}.name", name, "a name of a key has no control characters"))
        if not text:
            self._mistakes.append(required(f"{path}.secret", "secret is a mandatory field for a key"))
            return Key(name, Secret(b""))
        try:
            secret = base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
        except (binascii.Error, ValueError):
            self._mistakes.append(invalid(f"{path}.secret", "REDACTED", "secrets must be base64 encoded"))
            return Key(name, Secret(b""))
        # The lengths are told, and never the secret.
        if len(secret) not in sizes:
            listed = " ".join(map(str, sizes))
            problem = f"secret is not of the expected length, got {len(secret)}, expected one of [{listed}]"
            self._mistakes.append(invalid(f"{path}.secret", "REDACTED", problem))
        return Key(name, Secret(secret))

    def _read_plugin(self, reader: FieldReader, path: str) -> KmsPlugin:
        version, name = reader.text("apiVersion"), reader.text("name")
        endpoint, cache_size = reader.text("endpoint"), reader.value("cachesize")
        timeout = self._read_timeout(reader.value("timeout"), f"{path}.timeout")
        reader.refuse_unknown()
        if not name:
            self._mistakes.append(required(f"{path}.name", "name is a mandatory field for a provider"))
        if ":" in name:
            problem = f"invalid KMS provider name {name}, must not contain ':'"
            self._mistakes.append(invalid(f"{path}.name", name, problem))
        if name in self._plugins:
            problem = f"duplicate KMS provider name {name}, names must be unique"
            self._mistakes.append(invalid(f"{path}.name", name, problem))
        self._plugins.add(name)
        socket = self._read_endpoint(endpoint, f"{path}.endpoint")
        if version in ("", "v1"):
            problem = "KMS v1 is not supported: use a plugin of KMS v2, and say apiVersion: v2"
            self._mistakes.append(invalid(f"{path}.apiVersion", version or "v1", problem))
        elif version != "v2":
            problem = "unsupported apiVersion apiVersion for KMS provider, only v2 is supported"
            self._mistakes.append(invalid(f"{path}.apiVersion", version, problem))
        elif cache_size is not None:
            self._mistakes.append(invalid(f"{path}.cachesize", cache_size, "cachesize is not supported in v2"))
        return KmsPlugin(name, socket, timeout)

    def _read_timeout(self, value: Any, path: str) -> timedelta:
        if value is None:
            return DEFAULT_TIMEOUT
        try:
            timeout = parse_duration(value if isinstance(value, str) else "")
        except ValueError:
            raise self._error(f"{path} must be a duration, such as 3s") from None
        if timeout <= timedelta(0):
            self._mistakes.append(invalid(path, value, "timeout should be a positive value"))
        return timeout

    def _read_endpoint(self, endpoint: str, path: str) -> str:
        if not endpoint:
            self._mistakes.append(invalid(path, "", "endpoint is a mandatory field for a kms"))
            return ""
        try:
            url = urlsplit(endpoint)
        except ValueError:
            self._mistakes.append(invalid(path, endpoint, "invalid endpoint for kms provider, error: not a URL"))
            return ""
        if url.scheme != "unix":
            problem = f"unsupported scheme {quoted(url.scheme)} for KMS provider, only unix is supported"
            self._mistakes.append(invalid(path, endpoint, problem))
        elif not url.path.startswith("/") or url.netloc:
            problem = "invalid endpoint for kms provider, error: give unix:// and the absolute path of a socket"
            self._mistakes.append(invalid(path, endpoint, problem))
        return url.path.removeprefix("/") if url.path.startswith("/@") else url.path


def _at_least_one(path: str) -> FieldError:
    return required(path, f"at least one {path} is required")


def _overlap(resources: set[GroupResource]) -> bool:
    """Return whether one resource of a list includes another of it."""
    wild = {one.group for one in resources if one.resource == ANY}
    return len(resources) > 1 and (ANY in wild or any(one.group in wild and one.resource != ANY for one in resources))


def _name_problem(name: str) -> str:
    """Return the reason why a resource cannot be named so, "" when it can."""
    parsed = parse_group_resource(name)
    if name.lower() != name:
        return "resource name should not contain capital letters"
    if name == ANY:
        return "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
    if name in _NOT_REST:
        return "resources which do not have REST API/s cannot be encrypted"
    if parsed.group == "events.k8s.io":
        return (
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. "
            "Use 'events' instead in the config file"
        )
    if parsed.group == "extensions":
        return "'extensions' group has been removed and cannot be used for encryption"
    if parsed.group == ANY and parsed.resource != ANY:
        return "encrypting the same resource across groups is not supported"
    return ""
