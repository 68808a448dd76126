"""Field paths: spelling, length, and that only reported values cost one."""

from __future__ import annotations

import pytest

from mooring.apimachinery.codec.json import MAX_PATH, MAX_REPORTED, MAX_VALUES, FieldPath, count_values, path_text
from mooring.apimachinery.codec.requestbody import decode_body
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.negotiation import JSON, YAML
from mooring.apimachinery.schema import Obj
from mooring.errors import RequestEntityTooLargeError
from tests.support.shapes import EXAMPLE
from tests.support.work import Word, peak, work

LONG = "k" * 200_000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(None, "", id="the body"),
        pytest.param((None, "spec"), "spec", id="a member"),
        pytest.param(((((None, "spec"), "containers"), 3), "name"), "spec.containers[3].name", id="an item"),
        pytest.param(((None, 0), 1), "[0][1]", id="lists in lists"),
        pytest.param(((None, "data"), LONG), ("data." + LONG)[:MAX_PATH] + "...", id="a long key is cut"),
        pytest.param((((None, LONG), LONG), "x"), LONG[:MAX_PATH] + "...", id="and so are two"),
    ],
)
def test_spelling(path: FieldPath, text: str) -> None:
    assert path_text(path) == text


REPEATED = ",".join(f'"a{index}":1,"a{index}":2' for index in range(1000))
NESTED = "1," + ",".join('{"a":1,"a":2}' for _ in range(1000))


@pytest.mark.parametrize(
    ("body", "media", "attribute"),
    [
        pytest.param(f'{{"anything":{{"{LONG}":{{{REPEATED}}}}}}}', JSON, "duplicates", id="duplicates of JSON"),
        pytest.param(f'{{"anything":{{"{LONG}":[{NESTED}]}}}}', JSON, "duplicates", id="duplicates in items"),
        pytest.param(
            '{"named":{"' + LONG + '":{' + ",".join(f'"u{i}":1' for i in range(1000)) + "}}}",
            JSON,
            "unknown",
            id="unknown fields",
        ),
        pytest.param(
            "anything:\n  ? " + LONG + "\n  : {" + ",".join("a: 1" for _ in range(1000)) + "}",
            YAML,
            "duplicates",
            id="duplicates of YAML",
        ),
    ],
)
def test_few_short_paths_are_reported(body: str, media: str, attribute: str) -> None:
    found: list[tuple[str, ...]] = []

    def decode() -> None:
        decoded = decode_body(body.encode(), media, EXAMPLE, kind="Example", api_version="v1")
        found.append(getattr(decoded, attribute))

    memory = peak(decode)
    (paths,) = found
    assert 1 <= len(paths) <= MAX_REPORTED
    assert max(map(len, paths)) <= MAX_PATH + len('duplicate field "..."')
    assert memory < 20 * len(body)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"extra": {Word("k"): ["v"] * 100}}, id="a list below a key"),
        pytest.param({"named": {Word("k"): {"id": "i", "size": 1}}}, id="a message below a key"),
    ],
)
def test_a_value_that_fits_costs_no_path(value: Obj, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> str:
        raise AssertionError("a key was copied")

    for method in ("__format__", "__add__", "__radd__"):
        monkeypatch.setattr(Word, method, refuse)
    assert unmarshal(value, EXAMPLE) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param(b'{"a":[1,2],"b":{}}', 5, id="commas and brackets"),
        pytest.param(b'{"a":"' + b"," * 50 + b'"}', 1, id="not those of text"),
        pytest.param(b'{"a":"' + b'\\",{[' * 50 + b'"}', 1, id="nor after an escaped quote"),
        pytest.param(b'{"a":"' + b"\\\\" * 50 + b'","b":[' + b"{}," * 20 + b"0]}", 43, id="but after a backslash"),
    ],
)
def test_values_are_counted(text: bytes, count: int) -> None:
    assert count_values(text, 4) == count


def test_counting_stops_where_there_are_too_many_texts() -> None:
    assert count_values(b'"",' * 100, 4) > 4


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"a":[' + b"{}," * MAX_VALUES + b"0]}", id="objects"),
        pytest.param(b'{"a":[' + b"[]," * MAX_VALUES + b"0]}", id="lists"),
        pytest.param(b'{"a":[' + b'"",' * MAX_VALUES + b"0]}", id="texts"),
        pytest.param(b"[" * 3_000_000, id="nesting"),
    ],
)
def test_too_many_values_are_refused_before_anything_is_built(body: bytes) -> None:
    def decode() -> None:
        with pytest.raises(RequestEntityTooLargeError, match="more than 100000 values"):
            decode_body(body, JSON, EXAMPLE, kind="Example", api_version="v1")

    decode()
    assert work(decode) < 1000


def test_text_full_of_commas_is_one_value() -> None:
    body = b'{"kind":"Example","apiVersion":"v1","text":"' + b"a,b\\n" * 500_000 + b'"}'
    assert len(decode_body(body, JSON, EXAMPLE, kind="Example", api_version="v1").obj["text"]) == 2_000_000
