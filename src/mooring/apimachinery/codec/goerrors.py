"""Error messages of Go's decoders for JSON, base64 and times, word for word as clients of Kubernetes compare them.

Rules kept here:
* The functions are called only for input that was refused: they name the error and do not validate.
* The work is one pass of a C scanner or of a regular expression over the input.
* A message quotes at most one character of JSON, or a time that could not be parsed.

Source: encoding/json (scanner.go), encoding/base64 and time (format.go) of Go.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from mooring.errors import quoted

END_OF_INPUT = "unexpected end of JSON input"
_LITERALS = {"n": "null", "t": "true", "f": "false"}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(_INTEGER.pattern + r"(?:\.[0-9]+)?", re.ASCII)
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/\r\n]", re.ASCII)

BEYOND_FLOAT = 2**1024 - 2**970
"""Smallest integer that no float64 rounds to: Go refuses it where Python would raise OverflowError."""

TIME_LAYOUT = "2006-01-02T15:04:05Z07:00"
MICRO_TIME_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
_CHUNKS = (
    ("2006", r"[0-9]{4}", "", 0, 9999),
    ("-", "-", "", 0, 0),
    ("01", r"[0-9]{2}", "month", 1, 12),
    ("-", "-", "", 0, 0),
    ("02", r"[0-9]{2}", "day", 1, 31),
    ("T", "T", "", 0, 0),
    ("15", r"[0-9]{1,2}", "hour", 0, 23),
    (":", ":", "", 0, 0),
    ("04", r"[0-9]{2}", "minute", 0, 59),
    (":", ":", "", 0, 0),
    ("05", r"[0-9]{2}", "second", 0, 59),
)
_FRACTION = re.compile(r"[.,][0-9]+", re.ASCII)
_MICROSECONDS = re.compile(r"\.[0-9]{6}", re.ASCII)
_ZONE = re.compile(r"Z|[+-][0-9]{2}:[0-9]{2}", re.ASCII)


def _character(char: str) -> str:
    """Return one byte as Go's scanner quotes it."""
    if char == "'":
        return r"'\''"
    return "'\"'" if char == '"' else f"'{quoted(char)[1:-1]}'"


def _unexpected(text: str, place: int, where: str) -> str:
    return f"invalid character {_character(text[place])} {where}"


def _skip_number(text: str) -> int:
    return 0


def _refuse_constant(name: str) -> Any:
    raise _ConstantError(name)


class _ConstantError(ValueError):
    """NaN or Infinity, which Python's scanner accepts and JSON does not have."""


def json_syntax_error(body: bytes) -> str:
    """Return the error of encoding/json for a body that is not JSON, or "" for valid syntax."""
    # one character for each byte; Go treats the end of the input like a blank
    text = body.decode("latin-1") + " "
    try:
        # numbers are not made: Python refuses long ones, and needs more than linear time for them
        json.loads(text, parse_constant=_refuse_constant, parse_int=_skip_number, parse_float=_skip_number)
    except json.JSONDecodeError as error:
        return _message_at(text, error)
    except _ConstantError as error:
        name = str(error)
        place = _first_constant(text, name)
        where = "in numeric literal" if name[0] == "-" else "looking for beginning of value"
        return _unexpected(text, place + (name[0] == "-"), where)
    return ""


def _first_constant(text: str, name: str) -> int:
    """Return the position of a constant outside strings: the scanner reports its name only."""
    tokens = re.finditer(r'"(?:[^"\\]|\\.)*"|' + name, text, re.DOTALL)
    return next(token.start() for token in tokens if token[0] == name)


def _message_at(text: str, error: json.JSONDecodeError) -> str:
    place, problem = error.pos, error.msg
    if problem.startswith("Unterminated string") or place >= len(text) - 1:
        return END_OF_INPUT
    if problem.startswith("Invalid control character"):
        return _unexpected(text, place, "in string literal")
    if problem.startswith("Invalid \\uXXXX"):
        return _hexadecimal_error(text, place)
    if problem.startswith("Invalid \\escape"):
        return _unexpected(text, place + 1, "in string escape code")
    if problem.startswith("Illegal trailing comma"):  # Python 3.13 and later
        place = _after_blanks(text, place + 1)
        expected = "object key string" if "object" in problem else "value"
        return _unexpected(text, place, f"looking for beginning of {expected}")
    if problem.startswith("Expecting value"):
        return _value_error(text, place)
    number = _number_error(text, place)
    if number:
        return number
    if problem.startswith("Expecting property name"):
        return _unexpected(text, place, "looking for beginning of object key string")
    if problem.startswith("Expecting ':'"):
        return _unexpected(text, place, "after object key")
    if problem.startswith("Extra data"):
        return _unexpected(text, place, "after top-level value")
    where = "after array element" if _in_array(text[:place]) else "after object key:value pair"
    return _unexpected(text, place, where)


def _after_blanks(text: str, place: int) -> int:
    return place + len(text[place:]) - len(text[place:].lstrip(" \t\r\n"))


def _hexadecimal_error(text: str, place: int) -> str:
    place = text.index("u", place) + 1
    while text[place] in "0123456789abcdefABCDEF":
        place += 1
    return _unexpected(text, place, "in \\u hexadecimal character escape")


def _value_error(text: str, place: int) -> str:
    literal = _LITERALS.get(text[place], "")
    for offset, wanted in enumerate(literal):
        if text[place + offset] != wanted:
            where = f"in literal {literal} (expecting {_character(wanted)})"
            return _unexpected(text, place + offset, where)
    if text[place] == "-":
        return _unexpected(text, place + 1, "in numeric literal")
    return _unexpected(text, place, "looking for beginning of value")


def _number_error(text: str, place: int) -> str:
    """Return the error of the number that ends before `place`, or "" without a number or for a complete one."""
    start = place
    while start and text[start - 1] in "0123456789.+-eE":
        start -= 1
    if text[place] == "." and _INTEGER.fullmatch(text, start, place):
        return _unexpected(text, place + 1, "after decimal point in numeric literal")
    if text[place] in "eE" and _DECIMAL.fullmatch(text, start, place):
        place += 1 + (text[place + 1] in "+-")
        return _unexpected(text, place, "in exponent of numeric literal")
    return ""


def _in_array(prefix: str) -> bool:
    """Return whether the innermost container that `prefix` leaves open is an array."""
    try:
        json.loads(prefix + "]", strict=False)
    except json.JSONDecodeError as error:
        return error.pos != len(prefix)
    return True


JSON_TYPES = {str: "string", bool: "bool", dict: "object", list: "array"}


def unmarshal_error(value: Any, wanted: str) -> str:
    """Return the error of encoding/json for a value that is not of the Go type `wanted`."""
    return f"json: cannot unmarshal {JSON_TYPES.get(type(value), 'number')} into Go value of type {wanted}"


def go_value(value: Any) -> str:
    """Return a JSON value as Go's `%v` prints it."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_value(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_value, value))}]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and not -(2**63) <= value < 2**63 and abs(value) < BEYOND_FLOAT:
        value = float(value)
    return _go_float(value) if isinstance(value, float) else str(value)


def _go_float(value: float) -> str:
    """Return a float64 as Go's `%v` prints it: with an exponent from 10^6 on and below 10^-4."""
    number = Decimal(repr(value)).normalize()
    if -4 <= number.adjusted() < 6:
        return f"{number:f}"
    mantissa, _, exponent = f"{number:e}".partition("e")
    return f"{mantissa}e{int(exponent):+03d}"


def base64_error(text: str) -> str:
    """Return the error of encoding/base64 for a text that it cannot decode."""
    return f"illegal base64 data at input byte {_corrupt_position(text)}"


def _corrupt_position(text: str) -> int:
    found = _NOT_BASE64.search(text)
    whole = text if found is None else text[: found.start()]
    filled = (len(whole) - whole.count("\n") - whole.count("\r")) % 4
    if found is None:
        return len(text) - filled
    place = found.start()
    if found[0] != "=" or filled < 2:
        return place
    rest = place + 1
    if filled == 2:
        while text[rest : rest + 1] in ("\n", "\r"):
            rest += 1
        if rest == len(text):
            return rest
        if text[rest] != "=":
            return rest - 1
        rest += 1
    while text[rest : rest + 1] in ("\n", "\r"):
        rest += 1
    return rest


def time_error(text: str, layout: str) -> str:
    """Return the error of time.Parse for a text that is not a time of `layout`."""
    head = f"parsing time {quoted(text)}"
    rest = text

    def mismatch(chunk: str) -> str:
        return f"{head} as {quoted(layout)}: cannot parse {quoted(rest)} as {quoted(chunk)}"

    for chunk, pattern, name, lowest, highest in _CHUNKS:
        found = re.match(pattern, rest, re.ASCII)
        if found is None:
            return mismatch(chunk)
        if name and name != "day" and not lowest <= int(found[0]) <= highest:
            return f"{head}: {name} out of range"
        rest = rest[found.end() :]
    if layout == MICRO_TIME_LAYOUT:
        fraction = _MICROSECONDS.match(rest)
        if fraction is None:
            return mismatch(".000000")
        rest = rest[fraction.end() :]
    else:
        fraction = _FRACTION.match(rest)
        rest = rest[fraction.end() :] if fraction else rest
    zone = _ZONE.match(rest)
    if zone is None:
        return mismatch("Z07:00")
    rest = rest[zone.end() :]
    if rest:
        return f"{head}: extra text: {quoted(rest)}"
    return f"{head}: day out of range"
