"""A long text in any field of any kind costs no more than its length, whatever it repeats (law 13 of docs/architecture.md).

Rules kept here:
* Work inside regular expressions and string methods is invisible to `tests.support.work`. So the texts are so long that quadratic
  work takes minutes where linear work takes milliseconds, and a test that does not end within `CPU_SECONDS` of CPU time fails.
* A field of a message is tried once, where a kind has it first: every kind that has the message calls the same code.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import KINDS
from mooring.apimachinery.codec.requestbody import decode_body
from mooring.apimachinery.codec.yaml import YamlError, read_yaml
from mooring.apimachinery.negotiation import JSON
from mooring.apimachinery.options import parse_get_options, parse_list_options, parse_timeout
from mooring.apimachinery.quantity import canonical, decimal_value
from mooring.apimachinery.schema import ListOf, MapOf, Message, Scalar, Type
from mooring.apimachinery.selectors import MAX_SELECTOR, parse_field_selector, parse_label_selector
from mooring.authn.impersonation import read_impersonation
from mooring.cli.printing import redacted
from mooring.clock import parse_rfc3339
from mooring.duration import parse_duration
from mooring.errors import ApiError
from mooring.identity import UserInfo
from mooring.pki import pem
from mooring.pki.errors import PemError
from tests.api.test_growth import rules
from tests.support.longlists import named, value
from tests.support.rows import each_row

LENGTH = 100_000
"""Characters: 5 000 000 000 steps of quadratic work."""
CPU_SECONDS = 30
REPEATED = ("a", "0", ".", "-", "a.", "1.", "/", ":", "%", " ", "\\", "\0")
PARSED = (
    *REPEATED,
    "0:",
    "\n",
    '"',
    "A",
    "=",
    ",",
    "*",
    "0s",
    "eyJ",
    "K10::",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN A-----\n",
    "%41",
    "é",
    "&a ",
    "- ",
    "? ",
    "[",
    "{",
)
KEY = "a key"
Step = str | int
Place = tuple[Step, ...]
_TEXTS = (
    Scalar.STRING,
    Scalar.QUANTITY,
    Scalar.TIME,
    Scalar.MICRO_TIME,
    Scalar.BYTES,
    Scalar.INT_OR_STRING,
    Scalar.STRING_LIST,
)


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Raise AssertionError in what uses more than `CPU_SECONDS` of CPU time. Regular expressions look for signals, too."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it takes more than {CPU_SECONDS} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _texts(schema: Type, met: set[tuple[str, str]], above: Place = ()) -> Iterator[Place]:
    """Yield the places of texts and of keys of maps in `schema`, each field of a message once."""
    if isinstance(schema, Message):
        for field in schema.fields:
            if (schema.name, field.name) not in met:
                met.add((schema.name, field.name))
                yield from _texts(field.type, met, (*above, field.name))
    elif isinstance(schema, ListOf):
        yield from _texts(schema.item, met, (*above, 0))
    elif isinstance(schema, MapOf):
        yield (*above, KEY)
        yield from _texts(schema.value, met, (*above, "k"))
    elif schema in _TEXTS:
        yield above


def _with_text(schema: Type, place: Place, text: str) -> Any:
    """Return a value of `schema` with `text` at `place`, and otherwise with required fields alone."""
    if not place:
        return [text] if schema is Scalar.STRING_LIST else text
    first, rest = place[0], place[1:]
    if isinstance(schema, ListOf):
        return [_with_text(schema.item, rest, text)]
    if isinstance(schema, MapOf):
        return {text: value(schema.value, 0, 3)} if first == KEY else {first: _with_text(schema.value, rest, text)}
    assert isinstance(schema, Message)
    obj = {field.name: value(field.type, 0, 3) for field in schema.fields if field.required}
    return {**obj, str(first): _with_text(schema.by_name[str(first)].type, rest, text)}


def _cases() -> Iterator[tuple[Kind, list[Place]]]:
    met: set[tuple[str, str]] = set()
    for kind in KINDS:
        if places := list(_texts(kind.resource.schema, met)):
            yield kind, places


@pytest.mark.parametrize(
    ("kind", "places"), [pytest.param(kind, places, id=kind.resource.plural) for kind, places in _cases()]
)
def test_texts_of_objects(kind: Kind, places: list[Place]) -> None:
    resource = kind.resource
    for place in places:
        old = named(_with_text(resource.schema, place, "a"), resource.kind, resource.api_version)
        for repeated in REPEATED:
            text = repeated * (LENGTH // len(repeated)) + "!"
            obj = _with_text(resource.schema, place, text)
            if place[0] != "metadata":
                obj = named(obj, resource.kind, resource.api_version)
            with _in_time(), contextlib.suppress(ApiError):
                body = json.dumps(obj).encode()
                new = decode_body(body, JSON, resource.schema, kind=resource.kind, api_version=resource.api_version).obj
                for rule in rules(kind, new, old):
                    with contextlib.suppress(ApiError, KeyError, ValueError, TypeError, AttributeError):
                        rule()


PARSERS: dict[str, Callable[[str], object]] = {
    "quantity": canonical,
    "stored quantity": decimal_value,
    "duration": parse_duration,
    "time": parse_rfc3339,
    "fraction of a time": lambda text: parse_rfc3339("2026-01-01T00:00:00." + text),
    "label selector": lambda text: parse_label_selector(text[-MAX_SELECTOR:]),
    "field selector": lambda text: parse_field_selector(text[-MAX_SELECTOR:]),
    "timeout": lambda text: parse_timeout({"timeout": [text]}),
    "resourceVersion": lambda text: parse_get_options({"resourceVersion": [text]}),
    "limit": lambda text: parse_list_options({"limit": [text]}),
    "continue": lambda text: parse_list_options({"continue": [text]}),
    "YAML": read_yaml,
    "YAML in a flow": lambda text: read_yaml("[" + text),
    "YAML in quotes": lambda text: read_yaml('"' + text),
    "PEM": lambda text: list(pem.blocks(text.encode())),
    "PEM label": lambda text: list(pem.blocks(b"-----BEGIN " + text.encode() + b"-----\n")),
    "PEM block": lambda text: list(pem.blocks(b"-----BEGIN A-----\n" + text.encode())),
    "redaction": lambda text: redacted(text[:-1] * 4),
    "impersonated user": lambda text: list(
        read_impersonation({"impersonate-user": ["a"], "impersonate-extra-" + text: ["b"]}, UserInfo("jane"))
    ),
}


@pytest.mark.parametrize("name", PARSERS)
@each_row("repeated", PARSED, repr)
def test_texts_of_parsers(name: str, repeated: str) -> None:
    text = repeated * (LENGTH // len(repeated)) + "!"
    with _in_time(), contextlib.suppress(ApiError, ValueError, PemError, YamlError):
        PARSERS[name](text)


def test_directives_of_yaml_are_few() -> None:
    """libyaml compares each tag directive with all before it, with the interpreter locked."""
    text = "".join(f"%TAG !a{number}! x\n" for number in range(LENGTH // 10)) + "--- a\n"
    for line in ("\n", "\r", "\x85", "\u2028"):
        with _in_time(), pytest.raises(YamlError, match="more than 64 tag directives"):
            read_yaml(text.replace("\n", line))
    assert read_yaml("a: |\n" + "  %TAG\n" * 100).value == {"a": "%TAG\n" * 100}
