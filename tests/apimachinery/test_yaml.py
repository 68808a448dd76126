"""YAML as another spelling of JSON (sigs.k8s.io/yaml), safe on any input."""

from __future__ import annotations

import codecs
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec import yaml as yamltext
from mooring.apimachinery.codec.json import MAX_VALUES
from mooring.apimachinery.codec.yaml import MAX_TAG_DIRECTIVES, YamlError, decode_yaml, encode_yaml, read_yaml
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError
from tests.support.shapes import EXAMPLE, objects


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("a: text", {"a": "text"}, id="plain text"),
        pytest.param("a: 'true'\nb: \"5\"", {"a": "true", "b": "5"}, id="quoted is text"),
        pytest.param("a: true\nb: no\nc: On", {"a": True, "b": False, "c": True}, id="booleans of YAML 1.1"),
        pytest.param("a: y\nb: N", {"a": True, "b": False}, id="y and n are booleans, as in sigs.k8s.io/yaml"),
        pytest.param("a:\nb: ~\nc: null", {"a": None, "b": None, "c": None}, id="nulls"),
        pytest.param("a: 5\nb: -7\nc: +1\nd: 0", {"a": 5, "b": -7, "c": 1, "d": 0}, id="integers"),
        pytest.param("a: 0644\nb: 0o17\nc: 0x1F", {"a": 420, "b": 15, "c": 31}, id="octal and hexadecimal"),
        pytest.param("a: 1.5\nb: 1e3\nc: .5", {"a": 1.5, "b": 1000.0, "c": 0.5}, id="fractions"),
        pytest.param("a: 1e999", {"a": "1e999"}, id="a number beyond range stays text"),
        pytest.param(f"a: {'1' * 41}", {"a": "1" * 41}, id="so does a long one"),
        pytest.param("a: .inf\nb: .nan", {"a": ".inf", "b": ".nan"}, id="what JSON has no number for stays text"),
        pytest.param("a: 12:30:45", {"a": "12:30:45"}, id="no numbers to base 60"),
        pytest.param("a: 2026-01-02T03:04:05Z", {"a": "2026-01-02T03:04:05Z"}, id="a timestamp stays text"),
        pytest.param("a: !!timestamp 2026-01-02", {"a": "2026-01-02"}, id="even with its tag"),
        pytest.param("a: !!str 5\nb: !!int '5'\nc: ! 5", {"a": "5", "b": 5, "c": "5"}, id="tags of YAML's core"),
        pytest.param(
            "1: a\ntrue: b\nnull: c\n1.5: d", {"1": "a", "true": "b", "null": "c", "1.5": "d"}, id="keys are text"
        ),
        pytest.param("false: a", {"false": "a"}, id="a false key too"),
        pytest.param("- a\n- - b\n  - c: 1", ["a", ["b", {"c": 1}]], id="lists"),
        pytest.param('{"a": ["b"]}', {"a": ["b"]}, id="JSON is YAML"),
        pytest.param("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}, id="block text"),
        pytest.param("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}, id="aliases are copies"),
        pytest.param("a: &x word\nb: *x", {"a": "word", "b": "word"}, id="of text too"),
        pytest.param("a: !!map {}\nb: !!seq []", {"a": {}, "b": []}, id="tagged collections"),
        pytest.param("", None, id="nothing"),
        pytest.param("---\na: 1\n...\n", {"a": 1}, id="document marks"),
    ],
)
def test_reading(text: str, wanted: Any) -> None:
    value, duplicates = decode_yaml(text)
    assert value == wanted
    assert type(value) is type(wanted)
    assert duplicates == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("a: ä\n---\n", id="a separator at the end"),
        pytest.param("a: ä\n---\n---\n# nothing\n", id="several"),
        pytest.param("a: ä".encode(), id="UTF-8"),
        pytest.param(codecs.BOM_UTF8 + "a: ä".encode(), id="UTF-8 with a byte order mark"),
        pytest.param(codecs.BOM_UTF16_LE + "a: ä".encode("utf-16-le"), id="UTF-16"),
        pytest.param(codecs.BOM_UTF16_BE + "a: ä".encode("utf-16-be"), id="UTF-16, the other way round"),
    ],
)
def test_one_document_in_forms_that_go_reads(data: str | bytes) -> None:
    assert read_yaml(data).value == decode_yaml(data)[0] == {"a": "ä"}


def test_an_alias_shares_nothing() -> None:
    value, _ = decode_yaml("a: &x {b: 1}\nc: *x")
    value["a"]["b"] = 2
    assert value["c"] == {"b": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "line 1: did not find expected node content", id="unfinished"),
        pytest.param("{a]", "did not find expected ',' or '}'", id="the wrong bracket in the first line"),
        pytest.param("a: 1\n{b]", "line 3: could not find expected ':'", id="the end where a colon is due"),
        pytest.param("a: b: c", "mapping values are not allowed in this context", id="two values in the first line"),
        pytest.param(
            "a: 1\nb: c: d",
            "line 2: mapping values are not allowed in this context",
            id="two values in the second line",
        ),
        pytest.param("a:\n  - b\n c: d", "line 2: did not find expected key", id="a key between two indentations"),
        pytest.param("a: \x07", "control characters are not allowed", id="control character"),
        pytest.param("a: *x", "unknown anchor 'x' referenced", id="alias of nothing"),
        pytest.param("&x [*x]", "unknown anchor 'x' referenced", id="alias of itself"),
        pytest.param("---\na\n---\nb", "one document is expected, and another begins in line 4", id="two documents"),
        pytest.param("a\n---\n[]", "one document is expected, and another begins in line 3", id="a second, of a list"),
        pytest.param(
            "a\n---\n''", "one document is expected, and another begins in line 3", id="a second, of an empty text"
        ),
        pytest.param(
            "a\n---\n&x\n", "one document is expected, and another begins in line 3", id="a second, of an anchor"
        ),
        pytest.param("a: !!python/object/apply:os.system [ls]", "tags are not supported", id="an object to construct"),
        pytest.param("a: !secret x", "tags are not supported", id="a tag of one's own"),
        pytest.param("a: !!int word", "a value is not of the type of its tag (int)", id="a tag that does not fit"),
        pytest.param("? [a]\n: b", "a key must be a scalar", id="a list as key"),
        pytest.param("a: &x {b: 1}\nc:\n  <<: *x", "line 3: merge keys are not supported", id="merge key"),
        pytest.param("[" * 101, "nested deeper than 100 levels", id="deep nesting"),
        pytest.param("[" * 1_000_000, "nested deeper than 100 levels", id="very deep nesting"),
        pytest.param(f"[{'1,' * (MAX_VALUES + 1)}]", "more than 100000 values, aliases expanded", id="many values"),
        pytest.param(
            f"a: &x {'t' * 100_000}\nb: [{'*x,' * 40}]",
            "more than 3145728 characters, aliases expanded",
            id="aliases of a long text",
        ),
        pytest.param(
            f"a: &x [{'t' * 100_000}]\nb: [{'*x,' * 40}]",
            "more than 3145728 characters, aliases expanded",
            id="aliases of a list with a long text",
        ),
    ],
)
def test_refusedrequests(text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_yaml(text)
    assert str(caught.value) == "yaml: " + message


def test_a_billion_laughs_is_refused() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    with pytest.raises(BadRequestError, match="aliases expanded"):
        decode_yaml("\n".join(lines))


def test_duplicate_keys_keep_the_last_value_and_are_named() -> None:
    value, duplicates = decode_yaml("a: 1\na: 2\nb:\n- c: 1\n  c: 3\n  d: {e: 1, e: 2}")
    assert value == {"a": 2, "b": [{"c": 3, "d": {"e": 2}}]}
    assert duplicates == [
        f'line {line}: key "{key}" already set in map' for line, key in ((2, "a"), (5, "c"), (6, "e"))
    ]


@pytest.mark.parametrize(
    "text", ["y", "N", "1e5", "0E0", "5", "0x1f", "0o17", "1_000", "12:30", ".5", "1e999", "true", "null", "~", ""]
)
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    assert encode_yaml({"a": text}) == f"a: '{text}'\n".encode()


def test_writing_sorts_keys_and_repeats_rather_than_aliases() -> None:
    part = {"x": "1"}
    assert encode_yaml({"b": part, "a": [part]}) == b"a:\n- x: '1'\nb:\n  x: '1'\n"


@given(objects(EXAMPLE))
def test_what_is_written_is_read_again(obj: Obj) -> None:
    for name in ("ratio", "ratios"):  # YAML writers and readers disagree about 1e+16; Kubernetes has no such fields
        obj.pop(name, None)
    assert decode_yaml(encode_yaml(obj).decode()) == (obj, [])


@given(st.text(max_size=80) | st.text("[]{}:,-&*!|>'\"? \nab1", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadRequestError):
        decode_yaml(text)


def test_a_large_object_is_written_in_pieces_between_which_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Counted(yamltext._Pieces):
        def write(self, piece: bytes) -> None:
            sizes.append(len(piece))
            super().write(piece)

    monkeypatch.setattr(yamltext, "_Pieces", Counted)
    obj = {f"key{number}": "value" for number in range(20_000)}
    assert decode_yaml(encode_yaml(obj).decode())[0] == obj
    assert len(sizes) > 10
    assert max(sizes) <= 64 << 10


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: &x 1", id="an anchor"),
        pytest.param("a: *x", id="an alias"),
        pytest.param("a: !!str 1", id="a tag of a scalar"),
        pytest.param("!!map {}", id="a tag of an object"),
    ],
)
def test_a_file_may_be_read_without_anchors_and_tags(text: str) -> None:
    assert read_yaml("a: [1]", anchors_and_tags=False).value == {"a": [1]}
    with pytest.raises(YamlError, match="anchors, aliases and tags are not supported"):
        read_yaml(text, anchors_and_tags=False)


def test_depth_and_number_of_values_may_be_limited() -> None:
    assert read_yaml("[[1]]", max_depth=2, max_values=3).value == [[1]]
    with pytest.raises(YamlError, match="nested deeper than 1 levels"):
        read_yaml("[[1]]", max_depth=1)
    with pytest.raises(YamlError, match="more than 2 values"):
        read_yaml("[[1]]", max_values=2)


def test_top_level_keys_have_their_lines() -> None:
    document = read_yaml("a: {b: 1}\nc: 2\na: 3\n")
    assert document.top_level_keys == (("a", 1), ("c", 2), ("a", 3))
    assert document.duplicates == ('line 3: key "a" already set in map',)


@pytest.mark.parametrize(
    ("text", "line", "column"), [("a: b: c", 1, 5), ("{a: 1\n", 2, 1), ("\x00", 0, 0), ("\ud800", 0, 0)], ids=ascii
)
def test_a_syntax_error_has_its_place(text: str, line: int, column: int) -> None:
    with pytest.raises(YamlError) as error:
        read_yaml(text)
    assert (error.value.syntax, error.value.line, error.value.column) == (True, line, column)


def test_few_tag_directives_are_read() -> None:
    """libyaml compares each with all before it."""
    directives = "".join(f"%TAG !a{number}! x\n" for number in range(MAX_TAG_DIRECTIVES + 1))
    with pytest.raises(YamlError, match=f"more than {MAX_TAG_DIRECTIVES} tag directives"):
        read_yaml(directives + "--- a\n")
    assert read_yaml(directives.partition("\n")[2] + "--- a\n").value == "a"
