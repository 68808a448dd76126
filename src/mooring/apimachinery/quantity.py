"""Quantities: amounts such as 500m or 2Gi, and their canonical text.

Rules kept here (k8s.io/apimachinery pkg/api/resource):
* A number with a decimal suffix (n, u, m, k, M, G, T, P, E), a binary one (Ki to Ei) or a decimal exponent (e3).
* The canonical text has no fraction and the largest suffix that keeps the number whole. The kind of suffix stays, except for binary
  amounts between -1024 and 1024 or with a fraction, which become decimal.
* A text that Go's fast path takes as canonical stays unchanged.
* Amounts are rounded away from zero to one billionth. Binary amounts end at 2^63 - 1.
"""

from __future__ import annotations

import re
from decimal import Decimal

MAX_QUANTITY = 128
"""Characters of a quantity; real ones have fewer than twenty."""
MAX_EXPONENT = 1000
"""Powers of ten of an exponent; larger ones would cost memory, and the largest suffix is 18."""
BAD_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
BAD_NUMBER = "unable to parse numeric part of quantity"
BAD_SUFFIX = "unable to parse quantity's suffix"

_MAX = 2**63 - 1
_NANO = -9
_PRECISE_DIGITS = 18
"""Digits of which every number fits an int64."""
_SHAPE = re.compile(r"([+-]?)(0*+)([0-9]*+)(?:\.([0-9]*+))?+([eEinumkKMGTP]*+[-+]?[0-9]*+)", re.ASCII)
"""Possessive: with plain repetitions, digits could be divided among three groups, in cubic time."""
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,4})", re.ASCII)
_NUMBER = re.compile(r"([+-]?(?:\d++\.?\d*+|\.\d++))([eE][+-]?\d++)?+([a-zA-Z]*+)", re.ASCII)
_MAX_VALUE_EXPONENT = 64
"""Largest exponent that `decimal_value` computes; larger ones count as this, so that no text makes a number of many digits."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {exponent: name for name, exponent in _DECIMAL.items()}
_BINARY_NAMES = {power // 10: name for name, power in _BINARY.items()} | {0: ""}


def canonical(value: str | float) -> str:
    """Return the canonical text of a quantity. Raises ValueError."""
    text = value.strip() if isinstance(value, str) else format(Decimal(str(value)), "f")
    found = _SHAPE.fullmatch(text) if len(text) <= MAX_QUANTITY else None
    if not text or found is None:
        raise ValueError(BAD_FORMAT)
    sign, zeros, whole, fraction, suffix = found[1], found[2], found[3], found[4] or "", found[5]
    if not (zeros or whole or fraction):
        raise ValueError(BAD_NUMBER)
    number = (whole or "0") + fraction
    binary = _BINARY.get(suffix, 0)
    exponent = 0 if binary else _exponent(suffix)
    if _is_unchanged(number, len(number) - len(fraction), binary, exponent - len(fraction)):
        return text
    unscaled, scale = _rounded(int(number) << binary, exponent - len(fraction))
    if binary:
        canonical_text = _binary(unscaled, scale)
        if canonical_text:
            return _signed(sign, canonical_text)
    canonical_text = _decimal(unscaled, scale, exponential=_EXPONENT.fullmatch(suffix) is not None)
    return _signed(sign, canonical_text) if canonical_text else text


def decimal_value(value: str | int) -> Decimal:
    """Return the value of a quantity, or 0 for an invalid text. Accepts quantities that are not canonical."""
    text = str(value)
    found = _NUMBER.fullmatch(text) if len(text) <= MAX_QUANTITY else None
    if found is None or not (found[3] in _DECIMAL or found[3] in _BINARY):
        return Decimal(0)
    exponent = max(-_MAX_VALUE_EXPONENT, min(int((found[2] or "e0")[1:]), _MAX_VALUE_EXPONENT))
    number = Decimal(found[1]).scaleb(exponent + _DECIMAL.get(found[3], 0))
    return number * (1 << _BINARY.get(found[3], 0))


def _exponent(suffix: str) -> int:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    found = _EXPONENT.fullmatch(suffix)
    if found is None or abs(int(found[1])) > MAX_EXPONENT:
        raise ValueError(BAD_SUFFIX)
    return int(found[1])


def _is_unchanged(number: str, whole: int, binary: int, scale: int) -> bool:
    """Return whether Go leaves the text unchanged."""
    if binary:
        precise = len(number) == whole and 14 - whole - binary * 3 // 10 >= 0
        return precise and bool(int(number) & 7)
    if len(number) > _PRECISE_DIGITS or scale < _NANO or scale % 3:
        return False
    return number[0] != "0" and not number.endswith("000")


def _rounded(unscaled: int, scale: int) -> tuple[int, int]:
    """Return the amount `unscaled` · 10^`scale`, rounded up to a billionth."""
    if scale >= _NANO:
        return unscaled, scale
    return -(-unscaled // 10 ** (_NANO - scale)), _NANO


def _binary(unscaled: int, scale: int) -> str:
    """Return the text with a binary suffix; empty for amounts that get a decimal suffix."""
    amount, rest = divmod(unscaled, 10**-scale)
    if amount > _MAX or (amount == _MAX and rest):
        amount, rest = _MAX, 0
    if rest or amount < 1024:
        return ""
    power = 0
    while amount % 1024 == 0:
        amount //= 1024
        power += 1
    return f"{amount}{_BINARY_NAMES[power]}"


def _decimal(unscaled: int, scale: int, *, exponential: bool) -> str:
    """Return the text with a decimal suffix or exponent; empty for amounts beyond the largest suffix."""
    if not unscaled:
        return "0"
    while unscaled % 10 == 0:
        unscaled //= 10
        scale += 1
    unscaled, scale = unscaled * 10 ** (scale % 3), scale - scale % 3
    if exponential:
        return f"{unscaled}e{scale}" if scale else str(unscaled)
    return f"{unscaled}{_DECIMAL_NAMES[scale]}" if scale in _DECIMAL_NAMES else ""


def _signed(sign: str, canonical_text: str) -> str:
    return canonical_text if canonical_text == "0" or sign != "-" else f"-{canonical_text}"
