"""Base64 fields of JSON objects."""

from __future__ import annotations

import pytest

from mooring.apimachinery.codec.json import base64_field


@pytest.mark.parametrize(
    ("value", "data"), [("YWI=", b"ab"), ("", b""), ("*", b""), ("é", b""), (None, b""), (7, b"")], ids=ascii
)
def test_a_base64_field_that_is_absent_or_malformed_is_empty(value: object, data: bytes) -> None:
    assert base64_field(value) == data
