"""Configuration file of an agent, in the form of k3s's `/etc/rancher/k3s/config.yaml` and its drop-ins: the flags that it gives.

Rules kept here (docs/protocol/k3s.md#configuration-file-of-an-agent; k3s's pkg/configfilearg):
* A key is the long name of a flag, or its short form. A list repeats a flag. An empty value gives no flag.
* A later part replaces a value of an earlier one. With `key+` it appends to that value. A key that one part has twice is an error.
* A flag of k3s's runtime or log, or of `k3s server`, is listed, and its value is not read. Any other key is an error that
  names the nearest one. k3s skips both with a warning.
* Types are strict: a text that looks like a number needs quotes. All mistakes are reported at once, each with its file and line.
* No error repeats a value: some are secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pkgutil import get_data
from typing import Any

from mooring.apimachinery.codec.yaml import YamlDocument, YamlError, read_yaml
from mooring.errors import ConfigError, quoted
from mooring.settings.declaration import COMMA_SEPARATED, LINES, OPTIONAL_PORT, PORT, SWITCH, TEXTS, Setting, ValueType

_REPEATABLE = (TEXTS, LINES, COMMA_SEPARATED)
_ONE_VALUE = "the flag has one value, and a plus appends to lists: leave it out"

_MAX_SHOWN = 60
"""Characters of an unknown key in an error."""


@dataclass(frozen=True, slots=True)
class K3sKeys:
    """Keys of k3s by what they are about: the tables of agentfilekeys.yaml."""

    runtime: frozenset[str]
    log: frozenset[str]
    program: frozenset[str]
    server: frozenset[str]
    secret: frozenset[str]

    @property
    def ignored(self) -> frozenset[str]:
        """Keys that a file may have, and whose value is not read."""
        return self.runtime | self.log | self.program | self.server


@cache
def k3s_keys() -> K3sKeys:
    """Return the tables, read when a file or a flag is judged."""
    text = get_data(__name__, "agentfilekeys.yaml")
    assert text is not None, "the loader of this package reads no data"
    return K3sKeys(**{name: frozenset(keys) for name, keys in read_yaml(text).value.items()})


@dataclass(frozen=True, slots=True)
class AgentFile:
    """Flags that a file and its drop-ins give."""

    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Values by the long name of the flag. A flag that may be repeated has a tuple."""
    ignored: tuple[str, ...] = ()
    """Keys of k3s that do not concern joining, in order."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Paths of the parts that hold a secret, each with the key of the first one."""
    token_paths: tuple[str, ...] = ()
    """Paths of the parts that hold a value of `token`."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Path and line of each value, by the long name of the flag."""


@dataclass(slots=True)
class _Given:
    """Value of one flag, and the place that gave it last."""

    value: Any
    place: str
    key: str


def read_agent_file(parts: Iterable[tuple[str, bytes]], settings: Sequence[Setting]) -> AgentFile:
    """Return the flags in parts of a configuration, each a path and a text, in order. Raises ConfigError."""
    kinds = {one.name: one.value_type for one in settings}
    short_forms = {one.short: one.name for one in settings if one.short}
    secret_keys = k3s_keys().secret.union(one.name for one in settings if one.secret)
    not_read = k3s_keys().ignored
    merged: dict[str, _Given] = {}
    ignored: dict[str, None] = {}
    secrets: dict[str, str] = {}
    token_paths: list[str] = []
    problems: list[str] = []
    for path, text in parts:
        document = _document(path, text)
        lines: dict[str, int] = {}
        for key, line in document.top_level_keys:
            name = short_forms.get(key, key)
            if key in lines and name.removesuffix("+") not in not_read:
                twice = f"it is there twice, first in line {lines[key]}"
                problems.append(f"{path}: line {line}: {quoted(key[:_MAX_SHOWN])}: {twice}")
            lines.setdefault(key, line)
        for key, value in (document.value or {}).items():
            name = key.removesuffix("+")
            name = short_forms.get(name, name)
            if name in secret_keys and value not in (None, "", []):
                secrets.setdefault(path, name)
                if name == "token":
                    token_paths.append(path)
            place = f"{path}: line {lines.get(key, 0)}"
            if name in kinds:
                before = merged.get(name)
                if before is None or not key.endswith("+"):
                    merged[name] = _Given(value, place, key)
                elif kinds[name] in _REPEATABLE:
                    merged[name] = _Given([*_listed(before.value), *_listed(value)], place, key)
                elif _listed(value) and _listed(before.value):
                    problems.append(f"{place}: {quoted(key)}: {_ONE_VALUE}")
                elif _listed(value):
                    merged[name] = _Given(value, place, key)
            elif name in not_read:
                ignored[name] = None
            else:
                problems.append(f"{place}: {quoted(key[:_MAX_SHOWN])}: {_unknown(name, kinds)}")
    values: dict[str, Any] = {}
    for name, given in merged.items():
        value = given.value
        # An item without a value, as a template leaves it, is an empty text to k3s.
        if isinstance(value, list):
            value = [one for one in value if one not in (None, "")]
        if value in (None, "", []):
            continue
        try:
            values[name] = _typed(kinds[name], value)
        except ValueError as error:
            problems.append(f"{given.place}: {quoted(given.key)}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))
    places = {name: given.place for name, given in merged.items()}
    return AgentFile(values, tuple(ignored), secrets, tuple(token_paths), places)


def refused_flag(flag: str) -> str:
    """Return why a flag of the command line, with its dashes, is not taken; "" for one that k3s does not know."""
    name, keys = flag.lstrip("-"), k3s_keys()
    if name in keys.runtime:
        return f"{flag} belongs to k3s's runtime, and Mooring's agent runs none: leave it out"
    if name in keys.log:
        return f"{flag} belongs to k3s's log: leave it out; -v and -vv make Mooring's agent log more"
    if name == "cluster-secret":
        return f"{flag} has been replaced by --token"
    if name in keys.server:
        return f"{flag} belongs to k3s server and not to an agent: leave it out"
    return ""


def ignored_keys(keys: Sequence[str]) -> str:
    """Return the sentence about keys that were ignored; "" without one."""
    known = k3s_keys()
    groups = (
        ("Mooring's agent runs no kubelet, container runtime or network", known.runtime),
        ("flags of k3s server", known.server),
        ("flags of k3s's log and program", known.log | known.program),
    )
    found = [(reason, [key for key in keys if key in group]) for reason, group in groups]
    texts = [f"{', '.join(names)} ({reason})" for reason, names in found if names]
    return f"ignored keys that do not concern joining: {'; '.join(texts)}" if texts else ""


def _document(path: str, text: bytes) -> YamlDocument:
    """Return the YAML in a part: an object, or nothing. Raises ConfigError."""
    try:
        document = read_yaml(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the file is not UTF-8 text") from None
    except YamlError as error:
        raise ConfigError(f"{path}: yaml: {error}") from None
    if document.value is not None and not isinstance(document.value, dict):
        raise ConfigError(
            f"{path}: a configuration is keys with values; write for example server: https://192.0.2.10:6443"
        )
    return document


def _listed(value: Any) -> list[Any]:
    if value in (None, ""):
        return []
    return value if isinstance(value, list) else [value]


def _typed(kind: ValueType[Any], value: Any) -> Any:
    """Return the value of a flag. Raises ValueError that says what to give.

    Booleans and ports are taken in quotes, too, as templates write them.
    """
    if kind is SWITCH and value in ("true", "false"):
        return value == "true"
    if (
        kind in (PORT, OPTIONAL_PORT)
        and isinstance(value, str)
        and value.isascii()
        and value.isdecimal()
        and len(value) <= 5
    ):
        return kind.from_file(int(value))
    return kind.normalise(kind.from_file(value))


def _unknown(name: str, known: Iterable[str]) -> str:
    plain = name.lstrip("-").replace("_", "-").lower()
    near = get_close_matches(plain, [*known, *sorted(k3s_keys().ignored)], n=1)
    return f'unknown key, did you mean "{near[0]}"?' if near else "unknown key"
