"""Error texts of Go's decoders, compared with responses of kube-apiserver 1.36."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.goerrors import (
    MICRO_TIME_LAYOUT,
    TIME_LAYOUT,
    base64_error,
    go_value,
    json_syntax_error,
    time_error,
    unmarshal_error,
)
from mooring.apimachinery.codec.json import decode_json
from mooring.errors import BadRequestError


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ('{"a"', "unexpected end of JSON input"),
        ('{"a":', "unexpected end of JSON input"),
        ('"a', "unexpected end of JSON input"),
        ("[1", "unexpected end of JSON input"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("[}", "invalid character '}' looking for beginning of value"),
        ('{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        ("[{]", "invalid character ']' looking for beginning of object key string"),
        ("{'a': 1}", r"invalid character '\'' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":[1 2]}', "invalid character '2' after array element"),
        ('{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        ('{"a":01}', "invalid character '1' after object key:value pair"),
        ("{} x", "invalid character 'x' after top-level value"),
        ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ('{"a":-}', "invalid character '}' in numeric literal"),
        ('{"a":1e}', "invalid character '}' in exponent of numeric literal"),
        ("1e+", "invalid character ' ' in exponent of numeric literal"),
        ('{"a":NaN}', "invalid character 'N' looking for beginning of value"),
        ('["NaN",-Infinity]', "invalid character 'I' in numeric literal"),
        ('{"a":nul', "invalid character ' ' in literal null (expecting 'l')"),
        ('{"a":tru}', "invalid character '}' in literal true (expecting 'e')"),
        ('{"a":fx}', "invalid character 'x' in literal false (expecting 'a')"),
        ('"\\x"', "invalid character 'x' in string escape code"),
        ('"\\u12x"', r"invalid character 'x' in \u hexadecimal character escape"),
        ('"\n"', r"invalid character '\n' in string literal"),
        ("\x00", r"invalid character '\x00' looking for beginning of value"),
        ("\x7f", r"invalid character '\x7f' looking for beginning of value"),
        ("1e999", ""),
        ("[1.5 2]", "invalid character '2' after array element"),
        ("[1.2.3]", "invalid character '.' after array element"),
        ("[5.5e5.]", "invalid character '.' after array element"),
        ("1 .", "invalid character '.' after top-level value"),
        ("true.", "invalid character '.' after top-level value"),
        ("1.e5", "invalid character 'e' after decimal point in numeric literal"),
        ("[-0.5E-x]", "invalid character 'x' in exponent of numeric literal"),
        ("1.", "invalid character ' ' after decimal point in numeric literal"),
        ("-", "invalid character ' ' in numeric literal"),
        ('{"a" ', "unexpected end of JSON input"),
        ("[1, ", "unexpected end of JSON input"),
    ],
)
def test_json(body: str, text: str) -> None:
    assert json_syntax_error(body.encode()) == text


@pytest.mark.parametrize(
    ("body", "message", "text"),
    [
        (
            "[1 , ]",
            "Illegal trailing comma before end of array",
            "invalid character ']' looking for beginning of value",
        ),
        (
            '{"a":1,}',
            "Illegal trailing comma before end of object",
            "invalid character '}' looking for beginning of object key string",
        ),
    ],
)
def test_json_with_the_scanner_of_python_3_13(
    body: str, message: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(document: str, **options: object) -> None:
        raise json.JSONDecodeError(message, document, document.index(","))

    assert json_syntax_error(body.encode()) == text
    monkeypatch.setattr(json, "loads", refuse)
    assert json_syntax_error(body.encode()) == text


def test_bytes_beyond_ascii_are_shown_one_by_one() -> None:
    assert json_syntax_error("ä".encode()) == "invalid character 'Ã' looking for beginning of value"


@given(st.text('{}[]:,"ab\\\\/ue019.-+tNI \n\x01', max_size=40))
def test_every_broken_body_has_a_text(body: str) -> None:
    try:
        decode_json(body.encode())
    except BadRequestError as error:
        told = error.message
    else:
        told = "read"
    assert told


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("not base64", 3),
        ("a=b=", 1),
        ("abc", 0),
        ("abcdab", 4),
        ("ab\ncda", 5),
        ("ab=", 3),
        ("ab=\n", 4),
        ("ab=c", 2),
        ("ab=\n=\nx", 6),
        ("abc=x", 4),
        ("=", 0),
    ],
)
def test_base64(text: str, place: int) -> None:
    assert base64_error(text) == f"illegal base64 data at input byte {place}"


@pytest.mark.parametrize(
    ("text", "layout", "wrong"),
    [
        ("x", TIME_LAYOUT, f'"x" as "{TIME_LAYOUT}": cannot parse "x" as "2006"'),
        ("2020-13-01T00:00:00Z", TIME_LAYOUT, '"2020-13-01T00:00:00Z": month out of range'),
        ("2020-12-41T00:00:00Z", TIME_LAYOUT, '"2020-12-41T00:00:00Z": day out of range'),
        ("2020-12-01T25:00:00Z", TIME_LAYOUT, '"2020-12-01T25:00:00Z": hour out of range'),
        (
            "2020-12-01 00:00:00Z",
            TIME_LAYOUT,
            f'"2020-12-01 00:00:00Z" as "{TIME_LAYOUT}": cannot parse " 00:00:00Z" as "T"',
        ),
        (
            "2020-02-03T00:00:00.5",
            TIME_LAYOUT,
            f'"2020-02-03T00:00:00.5" as "{TIME_LAYOUT}": cannot parse "" as "Z07:00"',
        ),
        ("2020-02-03T00:00:00Zz", TIME_LAYOUT, '"2020-02-03T00:00:00Zz": extra text: "z"'),
        (
            "2020-02-03T00:00:00Z",
            MICRO_TIME_LAYOUT,
            f'"2020-02-03T00:00:00Z" as "{MICRO_TIME_LAYOUT}": cannot parse "Z" as ".000000"',
        ),
        (
            "2020-02-03T00:00:00.1234567Z",
            MICRO_TIME_LAYOUT,
            f'"2020-02-03T00:00:00.1234567Z" as "{MICRO_TIME_LAYOUT}": cannot parse "7Z" as "Z07:00"',
        ),
    ],
)
def test_times(text: str, layout: str, wrong: str) -> None:
    assert time_error(text, layout) == f"parsing time {wrong}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [1, "x", None], "a": {"c": True, "d": False}}, "map[a:map[c:true d:false] b:[1 x <nil>]]"),
        (9223372036854775808, "9.223372036854776e+18"),
        (9223372036854775807, "9223372036854775807"),
        (1.5, "1.5"),
        ([], "[]"),
        (2.0, "2"),
        (1e300, "1e+300"),
        (123456.0, "123456"),
        (123456789.0, "1.23456789e+08"),
        (1e6, "1e+06"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-1.5e-7, "-1.5e-07"),
        (0.0, "0"),
        (-(10**308), "-1e+308"),
        (10**309, "1" + "0" * 309),
    ],
)
def test_values(value: object, text: str) -> None:
    assert go_value(value) == text


def test_types() -> None:
    assert unmarshal_error(1.5, "T") == "json: cannot unmarshal number into Go value of type T"
