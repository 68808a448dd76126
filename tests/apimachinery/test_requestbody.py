"""Bodies: decoding by Content-Type, wrong spelling, canonical encoding.

Source: docs/protocol/negotiation.md, docs/protocol/requests.md.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.json import (
    MAX_BODY,
    MAX_DEPTH,
    MAX_VALUES,
    decode_json,
    duplicate_keys,
    encode_json,
    indent_json,
)
from mooring.apimachinery.codec.protobuf import encode_envelope, encode_object
from mooring.apimachinery.codec.requestbody import (
    DecodedBody,
    body_media,
    decode_body,
    decode_options,
    duplicate_fields,
    unknown_fields,
    warn_or_refuse,
)
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.metav1 import DELETE_OPTIONS
from mooring.apimachinery.negotiation import JSON, PROTOBUF, YAML
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, RequestEntityTooLargeError, UnsupportedMediaTypeError
from tests.support.shapes import EXAMPLE, objects

OBJECT: Obj = {"kind": "Example", "apiVersion": "v1", "metadata": {"name": "a"}, "text": "b", "data": {"k": "YQ=="}}


def _decode(body: bytes, content_type: str = JSON) -> DecodedBody:
    return decode_body(body, content_type, EXAMPLE, kind="Example", api_version="v1")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(encode_json(OBJECT), JSON, id="JSON"),
        pytest.param(encode_json(OBJECT), "", id="no Content-Type means JSON"),
        pytest.param(
            encode_json(OBJECT), "Application/JSON; charset=utf-8", id="parameters and letter case do not matter"
        ),
        pytest.param(indent_json(encode_json(OBJECT)), JSON, id="indented JSON"),
        pytest.param(encode_yaml(OBJECT), YAML, id="YAML"),
        pytest.param(encode_object(OBJECT, EXAMPLE), PROTOBUF, id="protobuf"),
    ],
)
def test_every_representation_gives_the_same_object(body: bytes, content_type: str) -> None:
    decoded = _decode(body, content_type)
    assert decoded == DecodedBody(OBJECT)
    assert list(decoded.obj)[:3] == ["kind", "apiVersion", "metadata"]


@pytest.mark.parametrize(
    ("kind", "api_version", "given"),
    [
        ("Event", "v1", "events.k8s.io/v1"),
        ("Event", "events.k8s.io/v1", "v1"),
        ("HorizontalPodAutoscaler", "autoscaling/v2", "autoscaling/v1"),
    ],
)
def test_a_kind_in_another_version_than_the_path(kind: str, api_version: str, given: str) -> None:
    body = json.dumps({"kind": kind, "apiVersion": given}).encode()
    with pytest.raises(BadRequestError) as caught:
        decode_body(body, JSON, EXAMPLE, kind=kind, api_version=api_version)
    assert str(caught.value) == (
        f"the API version in the data ({given}) does not match the expected API version ({api_version})"
    )


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
def test_absent_kind_and_version_are_filled_in(content_type: str) -> None:
    decoded = _decode(b'{"text": "b", "kind": null}', content_type)
    assert decoded.obj == {"kind": "Example", "apiVersion": "v1", "metadata": {}, "text": "b"}


@pytest.mark.parametrize("api_version", ["v1", "meta.k8s.io/v1", "certificates.k8s.io/v1", "nosuch/v7", ""])
def test_options_of_a_delete_come_in_any_version(api_version: str) -> None:
    body = json.dumps({"kind": "DeleteOptions", "apiVersion": api_version, "gracePeriodSeconds": 0}).encode()
    assert decode_options(body, "", DELETE_OPTIONS)["gracePeriodSeconds"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            b" ",
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
            id="nothing",
        ),
        pytest.param(
            b'{"kind":"ConfigMap"}',
            'no kind "ConfigMap" is registered for version "meta.k8s.io/v1" in scheme '
            '"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27"',
            id="another kind",
        ),
        pytest.param(
            b'{"Kind":"ConfigMap","apiversion":"v1","kind":null,"metadata":{"Name":"x"}}',
            'no kind "ConfigMap" is registered for version "v1" in scheme '
            '"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27"',
            id="another kind in other letter case",
        ),
        pytest.param(
            b'{"kind":"Status","apiVersion":"v1"}',
            "converting (v1.Status) to (v1.DeleteOptions): unknown conversion",
            id="a kind without version",
        ),
        pytest.param(
            b'{"gracePeriodSeconds":1.5}',
            "json: cannot unmarshal number 1.5 into Go struct field DeleteOptions.gracePeriodSeconds of type int64",
            id="a wrong type",
        ),
    ],
)
def test_bad_options_of_a_delete_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_options(body, JSON, DELETE_OPTIONS)
    assert str(caught.value) == message


_UNRECOGNIZED = "the object provided is unrecognized (must be of type Example): "
_NO_KIND = _UNRECOGNIZED + "couldn't get version/kind; json parse error: "
_UNHANDLED = 'Example in version "v1" cannot be handled as a Example: '
_TYPE_META = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        pytest.param(b"", JSON, _NO_KIND + "unexpected end of JSON input (<empty>)", id="nothing"),
        pytest.param(b"{", JSON, _NO_KIND + "unexpected end of JSON input ({)", id="half a body"),
        pytest.param(b"{} x", JSON, _NO_KIND + "invalid character 'x' after top-level value ({} x)", id="a tail"),
        pytest.param(
            b'{"text":"' + b"a" * 40,
            JSON,
            _NO_KIND + 'unexpected end of JSON input ({"text":"aaaaaaaaaaaaaaaaaaaaa ...)',
            id="the beginning of a long body",
        ),
        pytest.param(
            b"[]",
            JSON,
            f"{_NO_KIND}json: cannot unmarshal array into Go value of type {_TYPE_META} (5b5d)",
            id="a list, whose bytes are shown as numbers",
        ),
        pytest.param(
            b'{"text":"\xff"}',
            JSON,
            _NO_KIND + 'invalid UTF-8 in string literal ({"text":"\ufffd"})',
            id="invalid UTF-8",
        ),
        pytest.param(
            b"text: \xff", YAML, _UNRECOGNIZED + "yaml: invalid UTF-8 (746578743a20ff)", id="invalid UTF-8 in YAML"
        ),
        pytest.param(
            b"a: [",
            YAML,
            _UNRECOGNIZED + "yaml: line 1: did not find expected node content (613a205b)",
            id="bad YAML",
        ),
        pytest.param(
            b"- a",
            YAML,
            f"{_NO_KIND}json: cannot unmarshal array into Go value of type {_TYPE_META} (2d2061)",
            id="a YAML list",
        ),
        pytest.param(
            b"[" * 101 + b"]" * 101,
            JSON,
            f"{_NO_KIND}exceeded max depth of 100 ({'5b' * 30} ...)",
            id="deep nesting",
        ),
        pytest.param(
            b"[" * MAX_VALUES,
            JSON,
            f"{_NO_KIND}exceeded max depth of 100 ({'5b' * 30} ...)",
            id="very deep nesting",
        ),
        pytest.param(
            b'{"kind":5}',
            JSON,
            _NO_KIND + 'json: cannot unmarshal number into Go struct field .kind of type string ({"kind":5})',
            id="kind a number",
        ),
        pytest.param(
            b'{"apiVersion":[1]}',
            JSON,
            _NO_KIND
            + 'json: cannot unmarshal array into Go struct field .apiVersion of type string ({"apiVersion":[1]})',
            id="apiVersion a list",
        ),
        pytest.param(
            b'{"apiVersion":"a/b/c"}',
            JSON,
            _UNRECOGNIZED + 'unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c"})',
            id="apiVersion of three parts",
        ),
        pytest.param(
            b'{"text":5}',
            JSON,
            _UNHANDLED + "json: cannot unmarshal number into Go struct field Example.text of type string",
            id="wrong type",
        ),
        pytest.param(
            b'{"text":1e999}', JSON, _NO_KIND + 'number out of range ({"text":1e999})', id="a number beyond range"
        ),
        pytest.param(
            b'{"kind":"Other"}',
            JSON,
            'Other in version "v1" cannot be handled as a Example: no kind "Other" is registered for version "v1" '
            'in scheme "pkg/api/legacyscheme/scheme.go:30"',
            id="another kind",
        ),
        pytest.param(
            b'{"apiVersion":"v2"}',
            JSON,
            'Example in version "v2" cannot be handled as a Example: no kind "Example" is registered for version "v2" '
            'in scheme "pkg/api/legacyscheme/scheme.go:30"',
            id="another version",
        ),
        pytest.param(
            b"\x0a\x00",
            PROTOBUF,
            _UNRECOGNIZED
            + "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (0a00)",
            id="protobuf without its prefix",
        ),
        pytest.param(
            encode_envelope("v1", "Example", b"\x12\x05a"),
            PROTOBUF,
            _UNHANDLED + "protobuf: Example: unexpected EOF",
            id="truncated protobuf",
        ),
    ],
)
def test_bad_bodies_are_refused_with_the_reason(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        _decode(body, content_type)
    assert str(caught.value) == message


@pytest.mark.parametrize("body", [b"null", b"{}"])
def test_null_is_an_object_without_anything(body: bytes) -> None:
    assert _decode(body).obj == {"kind": "Example", "apiVersion": "v1", "metadata": {}}


@pytest.mark.parametrize("kind", ["Secret", "TokenReview"])
def test_bodies_that_may_begin_with_a_secret_are_not_quoted(kind: str) -> None:
    with pytest.raises(BadRequestError, match=r"unexpected end of JSON input \(not shown\)$"):
        decode_body(b'{"data":"hunter2', "", EXAMPLE, kind=kind, api_version="v1")


def test_secrets_in_a_bad_body_are_not_quoted() -> None:
    for body in (
        b'{"data":{"k":"hunter2!"}}',
        b'{"data":"hunter2"}',
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
        pytest.param(b'{"foo":1,"foo":2}', ("foo",), (), id="an unknown field twice is told once"),
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
    assert (decoded.unknown, decoded.duplicates) == (unknown, tuple(duplicate_fields(duplicates)))


def test_the_last_of_duplicates_counts() -> None:
    assert _decode(b'{"text":"a","text":"b"}').obj["text"] == "b"
    assert _decode(b"text: a\ntext: b", YAML) == DecodedBody(
        {"kind": "Example", "apiVersion": "v1", "metadata": {}, "text": "b"},
        (),
        ('line 2: key "text" already set in map',),
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
    assert (
        list(warn_or_refuse(policy, [*unknown_fields(["spec.foo"]), *duplicate_fields(["data.x"])], BadRequestError))
        == warnings
    )


def test_strict_field_validation_refuses() -> None:
    with pytest.raises(BadRequestError) as caught:
        warn_or_refuse("Strict", [*unknown_fields(["spec.foo"]), *duplicate_fields(["data.x"])], BadRequestError)
    assert str(caught.value) == 'unknown field "spec.foo", duplicate field "data.x"'
    assert warn_or_refuse("Strict", [], BadRequestError) == []


def test_warnings_are_bounded() -> None:
    assert len(warn_or_refuse("", [str(index) for index in range(500)], BadRequestError)) == 100


def test_stored_bytes_begin_with_what_readers_look_for() -> None:
    shuffled = {"text": "<b>&", "metadata": {"name": "a"}, "apiVersion": "v1", "kind": "Example"}
    assert encode_json(shuffled) == b'{"kind":"Example","apiVersion":"v1","metadata":{"name":"a"},"text":"<b>&"}'
    assert next(iter(shuffled)) == "text"


def test_objects_without_kind_are_written_as_they_are() -> None:
    assert encode_json({"b": 1, "a": 2}) == b'{"b":1,"a":2}'


def test_pretty_is_indented_and_ends_in_a_newline() -> None:
    assert indent_json(b'{"a":[1]}') == b'{\n  "a": [\n    1\n  ]\n}\n'


@given(objects(EXAMPLE))
def test_what_is_written_is_read_again(obj: Obj) -> None:
    whole = {"kind": "Example", "apiVersion": "v1", "metadata": {}} | obj
    assert _decode(encode_json(whole)) == DecodedBody(whole)


def _reference_duplicates(body: bytes) -> bool:
    found = []

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) != len(pairs))
        return dict(pairs)

    json.loads(body, strict=False, object_pairs_hook=hook)
    return any(found)


@given(st.binary(max_size=60) | st.text('{}[]:,"ab\\u019e.- \n\t\x01', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        value, duplicates = decode_json(body), duplicate_keys(body)
    except BadRequestError:
        return
    assert value == msgspec.json.decode(body)
    assert bool(duplicates) is _reference_duplicates(body)


def test_bodies_of_bounded_depth_are_read() -> None:
    body = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert decode_json(body) == json.loads(body)
    many = b"[" + b"[]," * 200 + b"[]]"
    assert len(decode_json(many)) == 201
