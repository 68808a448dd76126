"""Canonical quantities. Expected texts are those of k8s.io/apimachinery pkg/api/resource."""

from __future__ import annotations

from decimal import Decimal

import pytest

from mooring.apimachinery.quantity import (
    BAD_FORMAT,
    BAD_NUMBER,
    BAD_SUFFIX,
    MAX_EXPONENT,
    MAX_QUANTITY,
    canonical,
    decimal_value,
)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param("0.5", "500m", id="no fractions"),
        pytest.param("1024Mi", "1Gi", id="the largest binary suffix"),
        pytest.param("1000", "1k", id="the largest decimal suffix"),
        pytest.param("1500m", "1500m", id="thousandths that are no whole number stay"),
        pytest.param("1000m", "1", id="thousandths that are one do not"),
        pytest.param("12000k", "12M", id="thousands of thousands"),
        pytest.param("0.5Gi", "512Mi", id="a binary fraction that is whole"),
        pytest.param("0.5Ki", "512", id="a binary amount below 1024 is decimal"),
        pytest.param("-0.5Ki", "-512", id="and so is a negative one"),
        pytest.param("0.3Ki", "307200m", id="a binary fraction that is not whole is decimal"),
        pytest.param("1.5e3", "1500", id="an exponent that is not needed"),
        pytest.param("15e5", "1500e3", id="exponents are multiples of three"),
        pytest.param("1e3", "1e3", id="an exponent stays one"),
        pytest.param("0.1n", "1n", id="nothing is below a billionth"),
        pytest.param("-0.1n", "-1n", id="nor above minus a billionth"),
        pytest.param("0.000", "0", id="zero"),
        pytest.param("-0Ki", "0", id="zero has no sign"),
        pytest.param("1.500", "1.500", id="taken for canonical by Go"),
        pytest.param("007", "007", id="leading zeros, taken for canonical by Go"),
        pytest.param("+5Ki", "+5Ki", id="a plus, taken for canonical by Go"),
        pytest.param("12345678901234567890", "12345678901234567890", id="more digits than an int64"),
        pytest.param("8Ei", "9223372036854775807", id="binary amounts end at 2^63 - 1"),
        pytest.param("1000E", "1000E", id="beyond the largest suffix"),
        pytest.param(0.25, "250m", id="a number"),
        pytest.param(1000, "1k", id="a whole number"),
        pytest.param(1e-05, "10u", id="a small number"),
        pytest.param(" 1 ", "1", id="blanks around it"),
    ],
)
def test_canonical_text(given: str | float, shown: str) -> None:
    assert canonical(given) == shown


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param("", BAD_FORMAT, id="nothing"),
        pytest.param("a lot", BAD_FORMAT, id="words"),
        pytest.param("1" * (MAX_QUANTITY + 1), BAD_FORMAT, id="too long"),
        pytest.param("Gi", BAD_NUMBER, id="no number"),
        pytest.param("1ki", BAD_SUFFIX, id="no such suffix"),
        pytest.param("1e", BAD_SUFFIX, id="an exponent without digits"),
        pytest.param(f"1e{MAX_EXPONENT + 1}", BAD_SUFFIX, id="an exponent that would cost memory"),
    ],
)
def test_no_quantity(given: str, why: str) -> None:
    with pytest.raises(ValueError, match="quantit") as caught:
        canonical(given)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (2, 2),
        ("500m", "0.5"),
        ("1Ki", 1024),
        ("1k", 1000),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E-3", "0.001"),
        ("-1", -1),
        ("+.5", "0.5"),
        ("1e999999999", 10**64),
        ("", 0),
        (".", 0),
        ("1i", 0),
        ("x", 0),
        ("1.2.3", 0),
        ("1K", 0),
    ],
)
def test_decimal_value(text: str | int, value: int | str) -> None:
    assert decimal_value(text) == Decimal(value)
