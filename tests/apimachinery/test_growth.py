"""The work of every decoder, selector and patch grows no faster than its input: law 13 of docs/architecture.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mooring.apimachinery.apply.applyconfiguration import decode_apply
from mooring.apimachinery.apply.fieldset import FieldSet, path_text, paths
from mooring.apimachinery.apply.managedfields import Author, apply_configuration, entries_after_update
from mooring.apimachinery.codec.protobuf import decode_message, encode_message
from mooring.apimachinery.codec.requestbody import decode_body
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.negotiation import JSON, YAML
from mooring.apimachinery.patch import json_patch, merge_patch, strategic_merge_patch
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import label_selector_from_object, parse_field_selector, parse_label_selector
from mooring.clock import parse_rfc3339
from tests.support.shapes import EXAMPLE, WIDGETS
from tests.support.work import Word, grows_linearly

SIZE = 200

Body = Callable[[int], str]
Pair = Callable[[int], tuple[Obj, Any]]


def example(**members: Any) -> Obj:
    return {"kind": "Widget", "apiVersion": "v1", "metadata": {"name": "a"}, **members}


def parts(numbers: range) -> list[Obj]:
    return [{"id": f"p{number}", "size": number + 1} for number in numbers]


def words(numbers: range) -> list[str]:
    return [f"w{number}" for number in numbers]


LONG = "k" * 5_000

BODIES: dict[str, Body] = {
    "empty objects": lambda n: json.dumps({"anything": {"a": [{}] * n}}),
    "empty lists": lambda n: json.dumps({"anything": {"a": [[]] * n}}),
    "lists in lists": lambda n: json.dumps({"anything": {"a": [[[[[]]]]] * n}}),
    "unknown fields": lambda n: json.dumps({f"u{index}": 1 for index in range(n)}),
    "unknown fields below a long key": lambda n: json.dumps({"named": {LONG: {f"u{index}": 1 for index in range(n)}}}),
    "repeated keys": lambda n: '{"anything":{' + ",".join('"a":1' for _ in range(n)) + "}}",
    "repeated keys below a long key": lambda n: (
        f'{{"anything":{{"{LONG}":{{' + ",".join(f'"a{index // 2}":1' for index in range(n)) + "}}}"
    ),
    "objects with repeated keys": lambda n: '{"anything":{"a":[' + ",".join('{"b":1,"b":2}' for _ in range(n)) + "]}}",
    "items below a long key": lambda n: json.dumps({"extra": {LONG: ["v"] * n}}),
    "long keys": lambda n: json.dumps({"named": {f"{index:0100}": {"size": 1} for index in range(n)}}),
    "items": lambda n: json.dumps({"parts": parts(range(n))}),
    "times": lambda n: json.dumps({"anything": {}, "words": ["2026-01-01T00:00:00Z"] * n}),
}


@pytest.mark.parametrize("media", [JSON, YAML])
@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BODIES.items()])
def test_decoding_text(body: Body, media: str) -> None:
    def make(size: int) -> Callable[[], object]:
        raw = body(size).encode()
        return lambda: decode_body(raw, media, EXAMPLE, kind="Widget", api_version="v1")

    grows_linearly(make, SIZE)


@pytest.mark.parametrize("text", ["&a [1] ", "&a {b: 1} ", "&a word "])
def test_decoding_yaml_aliases(text: str) -> None:
    def make(size: int) -> Callable[[], object]:
        raw = f"anything:\n  a: {text}\n  b: [{'*a , ' * size}]".encode()
        return lambda: decode_body(raw, YAML, EXAMPLE, kind="Widget", api_version="v1")

    grows_linearly(make, SIZE)


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(lambda n: {"parts": parts(range(n))}, id="messages"),
        pytest.param(lambda n: {"words": words(range(n))}, id="texts"),
        pytest.param(lambda n: {"numbers": list(range(n))}, id="numbers"),
        pytest.param(lambda n: {"data": dict.fromkeys(words(range(n)), "YQ==")}, id="a map"),
        pytest.param(
            lambda n: {"named": {key: {"id": "a", "size": 1} for key in words(range(n))}}, id="a map of messages"
        ),
        pytest.param(
            lambda n: {"owned": {"f:a": {key: {} for key in (f"f:{w}" for w in words(range(n)))}}}, id="fields"
        ),
    ],
)
def test_protobuf_and_yaml_out_and_protobuf_in(members: Callable[[int], Obj]) -> None:
    def decoding(size: int) -> Callable[[], object]:
        raw = encode_message(example(**members(size)), EXAMPLE)
        return lambda: decode_message(raw, EXAMPLE)

    grows_linearly(decoding, SIZE)
    grows_linearly(lambda size: lambda: encode_message(example(**members(size)), EXAMPLE), SIZE)
    grows_linearly(lambda size: lambda: encode_yaml(example(**members(size))), SIZE)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"\xa2\x01\x00", id="empty messages"),
        pytest.param(b"\x92\x01\x00", id="one message again and again"),
        pytest.param(b"\x82\x01\x00", id="empty entries of a map"),
        pytest.param(b"\xfa\x7f\x00", id="unknown fields"),
    ],
)
def test_decoding_protobuf(field: bytes) -> None:
    full = encode_message(example(part={"id": "a", "size": 1}, data={"a": "YQ=="}), EXAMPLE)
    grows_linearly(lambda size: lambda: decode_message(full + field * size, EXAMPLE), SIZE)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda n: ",".join(f"a{index}=b" for index in range(n)), id="requirements"),
        pytest.param(lambda n: f"a in ({','.join(words(range(n)))})", id="values"),
        pytest.param(lambda n: "a in (" + "," * n + ")", id="empty values"),
        pytest.param(lambda n: "," * n, id="commas"),
        pytest.param(lambda n: "a=" + "\\," * n, id="escapes"),
        pytest.param(lambda n: " " * n, id="blanks"),
        pytest.param(lambda n: "!" * n, id="signs"),
    ],
)
@pytest.mark.parametrize("parse", [parse_label_selector, parse_field_selector])
def test_selectors(text: Body, parse: Callable[[str], object]) -> None:
    grows_linearly(lambda size: lambda: parse(text(size)), 40)


def test_selectors_of_objects() -> None:
    def make(size: int) -> Callable[[], object]:
        expressions = [{"key": "a", "operator": "In", "values": words(range(size))}] * 2
        selector = {"matchLabels": dict.fromkeys(words(range(size)), "b"), "matchExpressions": expressions}
        return lambda: label_selector_from_object(selector)

    grows_linearly(make, SIZE)


PATCHES: dict[str, tuple[Callable[[Obj, Any], Obj], Pair]] = {
    "JSON patch: append": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "add", "path": "/words/-", "value": "x"}] * n),
    ),
    "JSON patch: insert": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "add", "path": "/words/0", "value": "x"}] * n),
    ),
    "JSON patch: remove": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "remove", "path": "/words/0"}] * n),
    ),
    "JSON patch: move": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "move", "from": "/words/0", "path": "/words/-"}] * n),
    ),
    "JSON patch: copy": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "copy", "from": "/words/0", "path": "/words/-"}] * n),
    ),
    "JSON patch: replace": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "replace", "path": "/words/0", "value": "x"}] * n),
    ),
    "JSON patch: test": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "test", "path": "/words/0", "value": "w0"}] * n),
    ),
    "JSON patch: test of everything": (
        json_patch,
        lambda n: (example(words=words(range(n))), [{"op": "test", "path": "/words", "value": words(range(n))}]),
    ),
    "merge patch": (
        merge_patch,
        lambda n: (
            example(named={key: {"size": 1} for key in words(range(n))}),
            {"named": dict.fromkeys(words(range(n)))},
        ),
    ),
    "strategic merge: items changed": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (example(parts=parts(range(n))), {"parts": parts(range(n)[::-1])}),
    ),
    "strategic merge: items added": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (example(parts=parts(range(n))), {"parts": parts(range(n, 2 * n))}),
    ),
    "strategic merge: items deleted": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (
            example(parts=parts(range(n))),
            {"parts": [{"$patch": "delete", "id": part["id"]} for part in parts(range(n))]},
        ),
    ),
    "strategic merge: items in order": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (
            example(parts=parts(range(n))),
            {"parts": parts(range(n)), "$setElementOrder/parts": [{"id": part["id"]} for part in parts(range(n))]},
        ),
    ),
    "strategic merge: values": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (example(words=words(range(n))), {"words": words(range(n // 2, n + n // 2))}),
    ),
    "strategic merge: values deleted": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (example(words=words(range(n))), {"$deleteFromPrimitiveList/words": words(range(n)[::-1])}),
    ),
    "strategic merge: keys retained, compared": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (
            example(),
            {"data": {"$retainKeys": [Word(w) for w in words(range(n))], **{Word(w): "Yg==" for w in words(range(n))}}},
        ),
    ),
    "strategic merge: keys retained": (
        lambda obj, patch: strategic_merge_patch(obj, patch, EXAMPLE),
        lambda n: (
            example(data=dict.fromkeys(words(range(n)), "YQ==")),
            {"data": {"$retainKeys": words(range(n)[::-1]), **dict.fromkeys(words(range(n)), "Yg==")}},
        ),
    ),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patches(name: str) -> None:
    patch, pair = PATCHES[name]

    def make(size: int) -> Callable[[], object]:
        obj, change = pair(size)
        return lambda: patch(obj, change)

    grows_linearly(make, SIZE)


AUTHOR = Author("me", "v1", EXAMPLE, "", parse_rfc3339("2026-01-01T00:00:00Z"))
CONFIGS: dict[str, Callable[[range], Obj]] = {
    "items": lambda numbers: example(parts=parts(numbers)),
    "values of a set": lambda numbers: example(words=words(numbers)),
    "members of a map": lambda numbers: example(data=dict.fromkeys(words(numbers), "YQ==")),
    "members of a map below a long key": lambda numbers: example(
        named={LONG: {"id": "a"}, **{key: {"id": "a"} for key in words(numbers)}}
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_apply(name: str) -> None:
    config = CONFIGS[name]

    def decoding(size: int) -> Callable[[], object]:
        raw = json.dumps(config(range(size))).encode()
        return lambda: decode_apply(raw, WIDGETS)

    def creating(size: int) -> Callable[[], object]:
        given = config(range(size))
        return lambda: apply_configuration({}, given, AUTHOR, force=False)

    def applying(size: int, *, conflict: bool) -> Callable[[], object]:
        live, entries = apply_configuration({}, config(range(size)), AUTHOR, force=False)
        live["metadata"]["managedFields"] = entries
        if conflict:
            other = Author("other", "v1", EXAMPLE, "", AUTHOR.now)
            given = json.loads(
                json.dumps(config(range(size))).replace('"YQ=="', '"Yg=="').replace('"size": ', '"size": 1')
            )
            return lambda: apply_configuration(live, given, other, force=False)
        given = config(range(size // 2, size + size // 2)[::-1])
        return lambda: apply_configuration(live, given, AUTHOR, force=True)

    def updating(size: int) -> Callable[[], object]:
        live, entries = apply_configuration({}, config(range(size)), AUTHOR, force=False)
        live["metadata"]["managedFields"] = entries
        new = config(range(size // 2, size + size // 2)[::-1])
        return lambda: entries_after_update(live, new, None, AUTHOR)

    grows_linearly(decoding, SIZE)
    grows_linearly(creating, SIZE)
    grows_linearly(lambda size: applying(size, conflict=False), SIZE)
    grows_linearly(lambda size: applying(size, conflict=True), SIZE)
    grows_linearly(updating, SIZE)


def test_many_managers() -> None:
    def make(size: int) -> Callable[[], object]:
        entry = {"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z"}
        entries = [
            {**entry, "manager": f"m{index}", "fieldsV1": {"f:data": {f"f:w{index}": {}}}} for index in range(size)
        ]
        live, new = example(data={"a": "YQ=="}), example(data={"a": "Yg=="})
        return lambda: entries_after_update(live, new, entries, AUTHOR)

    grows_linearly(make, SIZE)


def test_path_text() -> None:
    def make(size: int) -> Callable[[], object]:
        fields: FieldSet = {"f:data": {f"f:w{index}": {} for index in range(size)}}
        return lambda: [path_text(path) for path in paths(fields)]

    grows_linearly(make, SIZE)
