"""YAML bodies, read as Kubernetes reads them: as another spelling of JSON.

Rules kept here:
* One document; only JSON's types come out. Tags other than YAML's own core are refused: nothing is constructed.
* A timestamp stays text, and keys become text (`1:` is "1"), as in sigs.k8s.io/yaml.
* Aliases are expanded as copies within a budget of values and characters, so that a "billion laughs" document is refused and not
  expanded; nesting is capped; the parser's events are read in a loop, so that no input can exhaust the stack.
* Duplicate keys keep the last value. The first ones are reported with their line.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import yaml

from mooring.apimachinery.codec.fieldpath import MAX_PATH, MAX_REPORTED
from mooring.apimachinery.codec.limits import MAX_DEPTH, MAX_VALUES
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, quoted

MAX_CHARACTERS = 3 * 1024 * 1024
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
MAX_DIGITS = 40
"""Digits of a number; longer ones fit no Kubernetes field, and stay text."""
_TAGS = {
    f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
}


def _bad(why: str) -> BadRequestError:
    return BadRequestError(f"yaml: {why}")


def _plain(text: str) -> Any:
    """What an untagged plain scalar means."""
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


def _key(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return str(value)
    raise _bad("a key must be a scalar")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


class _Frame:
    """A list or object being read, with the values and characters read before it."""

    def __init__(self, value: Any, anchor: str | None, before: tuple[int, int]) -> None:
        self.value = value
        self.anchor = anchor
        self.before = before
        self.key: str | None = None


class _Reader:
    """Builds JSON values from parser events, with an explicit stack."""

    def __init__(self) -> None:
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Any, int, int]] = {}
        """Values by anchor, each with the number of values and characters in it."""
        self.duplicates: list[str] = []
        self.values = 0
        self.characters = 0
        self.result: Any = None

    def read(self, text: str) -> None:
        documents = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise _bad("one document is expected")
                case yaml.ScalarEvent():
                    size = len(event.value)
                    self._grow(1, size)
                    value = _scalar(event)
                    if event.anchor:
                        self.anchors[event.anchor] = (value, 1, size)
                    self._add(value, _line(event))
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._open(event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._close(_line(event))
                case yaml.AliasEvent():
                    self._alias(event.anchor, _line(event))

    def _grow(self, values: int, characters: int) -> None:
        self.values += values
        self.characters += characters
        if self.values > MAX_VALUES:
            raise _bad(f"more than {MAX_VALUES} values, aliases expanded")
        if self.characters > MAX_CHARACTERS:
            raise _bad(f"more than {MAX_CHARACTERS} characters, aliases expanded")

    def _open(self, event: yaml.CollectionStartEvent) -> None:
        if event.tag is not None and event.tag not in _TAGS:
            raise _bad("tags are not supported")
        if len(self.stack) >= MAX_DEPTH:
            raise _bad(f"nested deeper than {MAX_DEPTH} levels")
        before = (self.values, self.characters)
        self._grow(1, 0)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Frame(value, event.anchor, before))

    def _close(self, line: int) -> None:
        frame = self.stack.pop()
        if frame.anchor:
            values, characters = frame.before
            self.anchors[frame.anchor] = (frame.value, self.values - values, self.characters - characters)
        self._add(frame.value, line)

    def _alias(self, anchor: str | None, line: int) -> None:
        if anchor is None or anchor not in self.anchors:
            raise _bad(f"unknown anchor '{(anchor or '')[:MAX_PATH]}' referenced")
        value, values, characters = self.anchors[anchor]
        self._grow(values, characters)
        self._add(copy.deepcopy(value), line)

    def _add(self, value: Any, line: int) -> None:
        if not self.stack:
            self.result = value
            return
        frame = self.stack[-1]
        if isinstance(frame.value, list):
            frame.value.append(value)
        elif frame.key is None:
            frame.key = _key(value)
            if frame.key in frame.value and len(self.duplicates) < MAX_REPORTED:
                shown = quoted(frame.key[:MAX_PATH]) if isinstance(value, str) else frame.key
                self.duplicates.append(f"line {line}: key {shown} already set in map")
        else:
            if frame.key == "<<":
                raise _bad("merge keys are not supported")
            frame.value[frame.key] = value
            frame.key = None


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if event.tag == "!":
        return text
    if event.tag is None:
        return _plain(text) if event.implicit[0] else text
    kind = _TAGS.get(event.tag)
    if kind is None:
        raise _bad("tags are not supported")
    if kind in ("str", "timestamp"):
        return text
    value = _plain(text)
    if isinstance(value, str):
        raise _bad(f"a value is not what its tag says ({kind})")
    return value


def _syntax_error(error: yaml.YAMLError) -> str:
    """Return place and problem as Go's library words them: only its scanner counts lines from one."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "control characters are not allowed"
    line = error.problem_mark.line if error.problem_mark else 0
    if line and isinstance(error, yaml.scanner.ScannerError):
        line += 1
    return f"line {line}: {error.problem}" if line else str(error.problem)


def decode_yaml(text: str) -> tuple[Any, list[str]]:
    """The document as a JSON value, and sentences about the first duplicate keys. Raises BadRequestError."""
    reader = _Reader()
    try:
        reader.read(text)
    except yaml.YAMLError as error:
        raise _bad(_syntax_error(error)) from None
    return reader.result, reader.duplicates


class _Dumper(yaml.CSafeDumper):
    """Writes every value in full: Kubernetes clients expect no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Quote text that Go reads as something else and PyYAML does not: `1e5` is a number there and `y` a boolean."""
    ambiguous = text in _SHORT_BOOLS or _NUMBER_LIKE.fullmatch(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if ambiguous else None)


_Dumper.add_representer(str, _write_text)


class _Pieces(list[bytes]):
    """Output of libyaml, about 16 kB at a time. It calls back into Python for each piece, so that other threads get a turn."""

    def write(self, piece: bytes) -> None:
        self.append(piece)


def encode_yaml(obj: Obj, *, ascii_only: bool = False) -> bytes:
    """Return the object as block-style YAML with sorted keys, as kube-apiserver writes it; `ascii_only` escapes everything else."""
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
