"""Bodies: decoding by Content-Type, wrong spelling, canonical encoding (reference/kubernetes.md 7.10, 7.12, 7.17)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.errors import BadRequestError, RequestEntityTooLargeError, UnsupportedMediaTypeError
from mooring.wire import protobuf
from mooring.wire.codec import (
    JSON,
    MAX_BODY,
    MAX_DEPTH,
    MAX_VALUES,
    PROTOBUF,
    YAML,
    Decoded,
    apply_field_validation,
    body_media,
    decode_body,
    decode_json,
    encode_json,
    encode_yaml,
    pretty,
)
from mooring.wire.metav1 import DELETE_OPTIONS
from mooring.wire.schema import Obj
from tests.support.shapes import EXAMPLE, objects

OBJECT: Obj = {"kind": "Example", "apiVersion": "v1", "metadata": {"name": "a"}, "text": "b", "data": {"k": "YQ=="}}


def _decode(body: bytes, content_type: str = JSON) -> Decoded:
    return decode_body(body, content_type, EXAMPLE, kind="Example", api_versions=("v1", "v2"))


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(encode_json(OBJECT), JSON, id="JSON"),
        pytest.param(encode_json(OBJECT), "", id="no Content-Type means JSON"),
        pytest.param(
            encode_json(OBJECT), "Application/JSON; charset=utf-8", id="parameters and letter case do not matter"
        ),
        pytest.param(pretty(encode_json(OBJECT)), JSON, id="indented JSON"),
        pytest.param(encode_yaml(OBJECT), YAML, id="YAML"),
        pytest.param(protobuf.encode_object(OBJECT, EXAMPLE), PROTOBUF, id="protobuf"),
    ],
)
def test_every_representation_gives_the_same_object(body: bytes, content_type: str) -> None:
    decoded = _decode(body, content_type)
    assert decoded == Decoded(OBJECT)
    assert list(decoded.obj)[:3] == ["kind", "apiVersion", "metadata"]


def test_unknown_types_are_415_and_listed() -> None:
    with pytest.raises(UnsupportedMediaTypeError) as caught:
        _decode(b"{}", "text/plain")
    assert str(caught.value) == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    )
    assert body_media("application/yaml") == "yaml"


def test_large_bodies_are_413() -> None:
    with pytest.raises(RequestEntityTooLargeError) as caught:
        _decode(b" " * (MAX_BODY + 1))
    assert str(caught.value) == "Request entity too large: limit is 3145728"


@pytest.mark.parametrize("content_type", [JSON, YAML])
def test_what_is_left_out_is_filled_in(content_type: str) -> None:
    decoded = _decode(b'{"text": "b", "kind": null}', content_type)
    assert decoded.obj == {"kind": "Example", "apiVersion": "v1", "metadata": {}, "text": "b"}


def test_any_of_the_expected_versions_may_be_named() -> None:
    assert _decode(b'{"apiVersion": "v2"}').obj["apiVersion"] == "v2"


def test_messages_without_metadata_get_none() -> None:
    decoded = decode_body(b'{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}', "", DELETE_OPTIONS)
    assert decoded.obj == {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}


_UNRECOGNIZED = "the object provided is unrecognized (must be of type Example): couldn't get version/kind; "
_UNHANDLED = 'Example in version "v1" cannot be handled as a Example: '


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        pytest.param(b"", JSON, _UNRECOGNIZED + "json parse error: input data was truncated", id="nothing"),
        pytest.param(b"{", JSON, _UNRECOGNIZED + "json parse error: input data was truncated", id="half a body"),
        pytest.param(
            b"{} x",
            JSON,
            _UNRECOGNIZED + "json parse error: JSON is malformed: trailing characters (byte 4)",
            id="a tail",
        ),
        pytest.param(b"[]", JSON, _UNRECOGNIZED + "the body is not an object", id="a list"),
        pytest.param(b"null", JSON, _UNRECOGNIZED + "the body is not an object", id="null"),
        pytest.param(b'{"text":"\xff"}', JSON, _UNRECOGNIZED + "json parse error: invalid UTF-8", id="invalid UTF-8"),
        pytest.param(
            b"text: \xff", YAML, _UNRECOGNIZED + "yaml parse error: invalid UTF-8", id="invalid UTF-8 in YAML"
        ),
        pytest.param(
            b"a: [",
            YAML,
            _UNRECOGNIZED + "error converting YAML to JSON: yaml: line 2: did not find expected node content",
            id="bad YAML",
        ),
        pytest.param(b"- a", YAML, _UNRECOGNIZED + "the body is not an object", id="a YAML list"),
        pytest.param(
            b"[" * 101 + b"]" * 101,
            JSON,
            _UNRECOGNIZED + "json parse error: exceeded max depth of 100",
            id="deep nesting",
        ),
        pytest.param(
            b"[" * MAX_VALUES,
            JSON,
            _UNRECOGNIZED + "json parse error: exceeded max depth of 100",
            id="very deep nesting",
        ),
        pytest.param(
            b'{"a":' * 100_000,
            JSON,
            _UNRECOGNIZED + "json parse error: exceeded max depth of 100",
            id="very deep objects",
        ),
        pytest.param(
            b'{"kind":5}', JSON, _UNRECOGNIZED + "json: kind and apiVersion must be strings", id="kind a number"
        ),
        pytest.param(
            b'{"apiVersion":[1]}',
            JSON,
            _UNRECOGNIZED + "json: kind and apiVersion must be strings",
            id="apiVersion a list",
        ),
        pytest.param(
            b'{"text":5}',
            JSON,
            _UNHANDLED + "json: cannot unmarshal number 5 into Go struct field Example.text of type string",
            id="wrong type",
        ),
        pytest.param(
            b'{"text":1e999}', JSON, _UNRECOGNIZED + "json parse error: number out of range", id="a number beyond range"
        ),
        pytest.param(
            b'{"kind":"Other"}',
            JSON,
            'Other in version "v1" cannot be handled as a Example: the kinds differ',
            id="another kind",
        ),
        pytest.param(
            b'{"apiVersion":"apps/v1"}',
            JSON,
            "the API version in the data (apps/v1) does not match the expected API version (v1)",
            id="another version",
        ),
        pytest.param(
            b"\x0a\x00",
            PROTOBUF,
            _UNRECOGNIZED + "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            id="protobuf without its prefix",
        ),
        pytest.param(
            protobuf.encode_envelope("v1", "Example", b"\x12\x05a"),
            PROTOBUF,
            _UNHANDLED + "protobuf: Example: unexpected end of data",
            id="truncated protobuf",
        ),
    ],
)
def test_bad_bodies_are_told_in_plain_words(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        _decode(body, content_type)
    assert str(caught.value) == message


def test_nothing_is_expected_when_nothing_is_said() -> None:
    decoded = decode_body(b'{"kind":"Anything","apiVersion":"x/v1"}', "", EXAMPLE)
    assert decoded.obj == {"kind": "Anything", "apiVersion": "x/v1", "metadata": {}}
    with pytest.raises(BadRequestError, match=r"^the object provided is unrecognized: couldn't get version/kind; json"):
        decode_body(b"", "", EXAMPLE)
    with pytest.raises(BadRequestError, match=r'^Anything in version "v1" cannot be handled as a Anything: json'):
        decode_body(b'{"kind":"Anything","apiVersion":"x/v1","text":[]}', "", EXAMPLE)


def test_secrets_in_a_bad_body_are_not_quoted() -> None:
    for body in (
        b'{"data":{"k":"hunter2!"}}',
        b'{"at":"hunter2"}',
        b'{"data":"hunter2"}',
        b'"hunter2',
        b'{"memory":"hunter2"}',
    ):
        with pytest.raises(BadRequestError) as caught:
            _decode(body)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "unknown", "duplicates"),
    [
        pytest.param(b'{"foo":1,"part":{"bar":{"baz":1}}}', ("foo", "part.bar"), (), id="unknown fields"),
        pytest.param(b'{"text":"a","text":"b"}', (), ("text",), id="a duplicate"),
        pytest.param(b'{"data":{"x":"","x":"","x":""}}', (), ("data.x",), id="one name three times is told once"),
        pytest.param(b'{"parts":[{"id":"a"},{"id":"b","id":"c"}]}', (), ("parts[1].id",), id="in a list"),
        pytest.param(b'{"foo":1,"foo":2}', ("foo",), ("foo",), id="both at once"),
        pytest.param(
            b'{"metadata":{"labels":{"a":"b","a":"c"},"x":0}}',
            ("metadata.x",),
            ("metadata.labels.a",),
            id="in metadata",
        ),
        pytest.param(b'{"text":"{\\"a\\":1,\\"a\\":2}"}', (), (), id="not inside text"),
        pytest.param(b'{"small":12,"ratio":1.5,"text":"a\\u0000"}', (), (), id="numbers and escapes are no trouble"),
    ],
)
def test_unknown_and_duplicate_fields_are_found(
    body: bytes, unknown: tuple[str, ...], duplicates: tuple[str, ...]
) -> None:
    decoded = _decode(body)
    assert (decoded.unknown, decoded.duplicates) == (unknown, duplicates)


def test_the_last_of_duplicates_counts() -> None:
    assert _decode(b'{"text":"a","text":"b"}').obj["text"] == "b"
    assert _decode(b"text: a\ntext: b", YAML) == Decoded(
        {"kind": "Example", "apiVersion": "v1", "metadata": {}, "text": "b"}, (), ("text",)
    )


@pytest.mark.parametrize(
    ("policy", "warnings"),
    [
        pytest.param("Ignore", [], id="Ignore says nothing"),
        pytest.param("Warn", ['unknown field "spec.foo"', 'duplicate field "data.x"'], id="Warn tells"),
        pytest.param("", ['unknown field "spec.foo"', 'duplicate field "data.x"'], id="Warn is the default"),
    ],
)
def test_field_validation_warns(policy: str, warnings: list[str]) -> None:
    assert apply_field_validation(policy, ["spec.foo"], ["data.x"]) == warnings


def test_strict_field_validation_refuses() -> None:
    with pytest.raises(BadRequestError) as caught:
        apply_field_validation("Strict", ["spec.foo"], ["data.x"])
    assert str(caught.value) == 'strict decoding error: unknown field "spec.foo", duplicate field "data.x"'
    assert apply_field_validation("Strict", [], []) == []


def test_warnings_are_bounded() -> None:
    assert len(apply_field_validation("", [f"f{index}" for index in range(500)], [])) == 100


def test_stored_bytes_begin_with_what_readers_look_for() -> None:
    shuffled = {"text": "<b>&", "metadata": {"name": "a"}, "apiVersion": "v1", "kind": "Example"}
    assert encode_json(shuffled) == b'{"kind":"Example","apiVersion":"v1","metadata":{"name":"a"},"text":"<b>&"}'
    assert next(iter(shuffled)) == "text"


def test_objects_without_kind_are_written_as_they_are() -> None:
    assert encode_json({"b": 1, "a": 2}) == b'{"b":1,"a":2}'


def test_pretty_is_indented_and_ends_in_a_newline() -> None:
    assert pretty(b'{"a":[1]}') == b'{\n  "a": [\n    1\n  ]\n}\n'


@given(objects(EXAMPLE))
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_read_again(obj: Obj) -> None:
    whole = {"kind": "Example", "apiVersion": "v1", "metadata": {}} | obj
    assert _decode(encode_json(whole)) == Decoded(whole)


def _reference_duplicates(body: bytes) -> bool:
    found = []

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) != len(pairs))
        return dict(pairs)

    json.loads(body, strict=False, object_pairs_hook=hook)
    return any(found)


@given(st.binary(max_size=60) | st.text('{}[]:,"ab\\u019e.- \n\t\x01', max_size=60).map(str.encode))
@settings(deadline=None, max_examples=500)
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        value, duplicates = decode_json(body)
    except BadRequestError:
        return
    assert value == msgspec.json.decode(body)
    assert bool(duplicates) is _reference_duplicates(body)


def test_bodies_of_bounded_depth_are_read() -> None:
    body = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert decode_json(body)[0] == json.loads(body)
    many = b"[" + b"[]," * 200 + b"[]]"
    assert len(decode_json(many)[0]) == 201
