"""YAML read as Kubernetes reads it, as another spelling of JSON, and written as kube-apiserver writes it.

Rules kept here:
* One document, with nothing but empty ones behind it, and only the types of JSON. No tag but those of YAML's own core is accepted:
  nothing is constructed.
* Bytes are UTF-8, with or without a byte order mark, or UTF-16 with one, which PowerShell writes. Go's library reads both.
* A timestamp stays text, and keys become text (`1:` is "1"), as in sigs.k8s.io/yaml.
* Aliases are expanded as copies within a budget of values and characters. Nesting is limited.
* The last of duplicate keys counts. The first ones are reported with their line.
* Files that no program writes with anchors, aliases or tags, such as kubeconfigs, are read without them.
"""

from __future__ import annotations

import codecs
import copy
import re
from dataclasses import dataclass
from typing import Any

import yaml

from mooring.apimachinery.codec.json import MAX_BODY, MAX_DEPTH, MAX_PATH, MAX_REPORTED, MAX_VALUES
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, quoted

MAX_CHARACTERS = MAX_BODY
"""Characters of all texts of one document, aliases expanded: as many as the largest body has without aliases."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"y", "Y", "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_SHORT_BOOLS = frozenset({"y", "Y", "n", "N"})
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_OCTAL = re.compile(r"[-+]?0o?([0-7]+)", re.ASCII)
_HEX = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NUMBER_LIKE = re.compile(r"[-+]?[0-9.][0-9a-fA-FoxX_.:+-]*", re.ASCII)
MAX_TAG_DIRECTIVES = 64
"""`%TAG` lines of one text. libyaml compares each with all before it while it holds the interpreter, and no program writes any."""
_TAG_DIRECTIVE = re.compile(r"^%TAG|[\n\r\x85\u2028\u2029]%TAG")
MAX_DIGITS = 40
"""Digits of a number. A longer one fits no Kubernetes field and stays text."""
_TAGS = {
    f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
}


class YamlError(ValueError):
    """A document that cannot be read. `line` and `column` count from one; 0 when the place is not known.

    The message of a syntax error is the parser's own; the others quote at most the name of an anchor.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0, *, syntax: bool = False) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.syntax = syntax


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The JSON value of a document, and the places of its keys."""

    value: Any
    duplicates: tuple[str, ...]
    """Warnings about the first duplicate keys."""
    top_level_keys: tuple[tuple[str, int], ...]
    """Keys of the outermost object with their lines, in order, duplicates included."""


def read_yaml(
    data: str | bytes, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES, anchors_and_tags: bool = True
) -> YamlDocument:
    """Return the one document of a YAML or JSON text. Raises YamlError, and UnicodeDecodeError for bytes that are not text."""
    text = data if isinstance(data, str) else decoded(data)
    if text.count("%TAG") > MAX_TAG_DIRECTIVES < len(_TAG_DIRECTIVE.findall(text)):
        raise YamlError(f"more than {MAX_TAG_DIRECTIVES} tag directives")
    reader = _Reader(max_depth, max_values, anchors_and_tags)
    try:
        reader.read(text)
    except yaml.YAMLError as error:
        raise _syntax_error(error) from None
    except UnicodeEncodeError:
        raise YamlError("invalid Unicode", syntax=True) from None
    return YamlDocument(reader.result, tuple(reader.duplicates), tuple(reader.top_level_keys))


def decoded(data: bytes) -> str:
    """Return the text of a file. Raises UnicodeDecodeError."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")


def decode_yaml(data: str | bytes) -> tuple[Any, list[str]]:
    """Return the value of a request body and warnings about its first duplicate keys.

    Raises BadRequestError, and UnicodeDecodeError for bytes that are not text.
    """
    try:
        document = read_yaml(data)
    except YamlError as error:
        raise BadRequestError(f"yaml: {error}") from None
    return document.value, list(document.duplicates)


def _syntax_error(error: yaml.YAMLError) -> YamlError:
    """Return place and problem as Go's library words them: only its scanner counts lines from one."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return YamlError("control characters are not allowed", syntax=True)
    mark = error.problem_mark or error.context_mark
    line = error.problem_mark.line if error.problem_mark else 0
    if line and isinstance(error, yaml.scanner.ScannerError):
        line += 1
    message = f"line {line}: {error.problem}" if line else str(error.problem)
    return YamlError(message, *((mark.line + 1, mark.column + 1) if mark else ()), syntax=True)


def resolve_scalar(text: str) -> Any:
    """Return the value of an untagged plain scalar."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if len(text) > MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text.replace("o", ""), 8)
    if _HEX.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return text if number in (float("inf"), float("-inf")) else number
    return text


def _key_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return str(value)
    raise YamlError("a key must be a scalar")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


class _Collection:
    """A list or object that is being read, with the counts of values and characters before it."""

    def __init__(self, value: Any, anchor: str | None, before: tuple[int, int]) -> None:
        self.value = value
        self.anchor = anchor
        self.before = before
        self.key: str | None = None


class _Reader:
    """Builds JSON values from parser events, with an explicit stack."""

    def __init__(self, max_depth: int, max_values: int, anchors_and_tags: bool) -> None:
        self.max_depth = max_depth
        self.max_values = max_values
        self.anchors_and_tags = anchors_and_tags
        self.stack: list[_Collection] = []
        self.anchors: dict[str, tuple[Any, int, int]] = {}
        """Values by anchor, each with the number of values and characters in it."""
        self.duplicates: list[str] = []
        self.top_level_keys: list[tuple[str, int]] = []
        self.values = 0
        self.characters = 0
        self.result: Any = None

    def read(self, text: str) -> None:
        documents = 0
        # Events in a loop, and no recursion: no input exhausts the stack.
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
            elif documents > 1 and isinstance(event, yaml.NodeEvent):
                _refuse_second_document(event)
                continue
            if isinstance(event, yaml.NodeEvent) and not self.anchors_and_tags:
                _refuse_anchors_and_tags(event)
            match event:
                case yaml.ScalarEvent():
                    size = len(event.value)
                    self._count(1, size)
                    value = _scalar_value(event)
                    if event.anchor:
                        self.anchors[event.anchor] = (value, 1, size)
                    self._add(value, _line(event))
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._open(event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._close(_line(event))
                case yaml.AliasEvent():
                    self._expand_alias(event.anchor, _line(event))

    def _count(self, values: int, characters: int) -> None:
        self.values += values
        self.characters += characters
        if self.values > self.max_values:
            raise YamlError(f"more than {self.max_values} values, aliases expanded")
        if self.characters > MAX_CHARACTERS:
            raise YamlError(f"more than {MAX_CHARACTERS} characters, aliases expanded")

    def _open(self, event: yaml.CollectionStartEvent) -> None:
        if event.tag is not None and event.tag not in _TAGS:
            raise YamlError("tags are not supported")
        if len(self.stack) >= self.max_depth:
            raise YamlError(f"nested deeper than {self.max_depth} levels")
        before = (self.values, self.characters)
        self._count(1, 0)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Collection(value, event.anchor, before))

    def _close(self, line: int) -> None:
        collection = self.stack.pop()
        # Known only now, at its end: no alias is a part of its own value.
        if collection.anchor:
            values, characters = collection.before
            self.anchors[collection.anchor] = (collection.value, self.values - values, self.characters - characters)
        self._add(collection.value, line)

    def _expand_alias(self, anchor: str | None, line: int) -> None:
        if anchor is None or anchor not in self.anchors:
            raise YamlError(f"unknown anchor '{(anchor or '')[:MAX_PATH]}' referenced")
        value, values, characters = self.anchors[anchor]
        # Before the copy: a "billion laughs" document is refused, and not expanded.
        self._count(values, characters)
        self._add(copy.deepcopy(value), line)

    def _add(self, value: Any, line: int) -> None:
        if not self.stack:
            self.result = value
            return
        collection = self.stack[-1]
        if isinstance(collection.value, list):
            collection.value.append(value)
        elif collection.key is None:
            key = collection.key = _key_text(value)
            if len(self.stack) == 1:
                self.top_level_keys.append((key, line))
            if key in collection.value and len(self.duplicates) < MAX_REPORTED:
                printed = quoted(key[:MAX_PATH]) if isinstance(value, str) else key
                self.duplicates.append(f"line {line}: key {printed} already set in map")
        else:
            if collection.key == "<<":
                raise YamlError(f"line {line}: merge keys are not supported", line)
            collection.value[collection.key] = value
            collection.key = None


def _refuse_second_document(event: yaml.NodeEvent) -> None:
    """Let an empty one pass: templates end their files with a separator."""
    is_empty = isinstance(event, yaml.ScalarEvent) and event.value == "" and event.implicit[0] and event.anchor is None
    if not is_empty:
        raise YamlError(f"one document is expected, and another begins in line {_line(event)}", _line(event))


def _refuse_anchors_and_tags(event: yaml.NodeEvent) -> None:
    if event.anchor is not None or getattr(event, "tag", None) is not None:
        raise YamlError(f"line {_line(event)}: anchors, aliases and tags are not supported", _line(event))


def _scalar_value(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if event.tag == "!":
        return text
    if event.tag is None:
        return resolve_scalar(text) if event.implicit[0] else text
    kind = _TAGS.get(event.tag)
    if kind is None:
        raise YamlError("tags are not supported")
    if kind in ("str", "timestamp"):
        return text
    value = resolve_scalar(text)
    if isinstance(value, str):
        raise YamlError(f"a value is not of the type of its tag ({kind})")
    return value


class _Dumper(yaml.CSafeDumper):
    """Writes every value in full: Kubernetes clients expect no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Quote text that Go reads as another type and PyYAML does not: `1e5` is a number to Go and `y` a boolean."""
    ambiguous = text in _SHORT_BOOLS or _NUMBER_LIKE.fullmatch(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if ambiguous else None)


_Dumper.add_representer(str, _represent_text)


class _Pieces(list[bytes]):
    """Output of libyaml, about 16 kB at a time. Each piece is a call into Python, so that other threads can run between them."""

    def write(self, piece: bytes) -> None:
        self.append(piece)


def encode_yaml(obj: Obj | str, *, ascii_only: bool = False) -> bytes:
    """Return an object or a text as block-style YAML with sorted keys. `ascii_only` escapes all other characters."""
    pieces = _Pieces()
    yaml.dump(
        obj,
        pieces,
        Dumper=_Dumper,
        default_flow_style=False,
        allow_unicode=not ascii_only,
        sort_keys=True,
        encoding="utf-8",
    )
    return b"".join(pieces)
