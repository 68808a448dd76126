"""Base64 fields of JSON objects."""

from __future__ import annotations

import pytest

from mooring.apimachinery.codec.json import base64_field, decode_json
from mooring.errors import BadRequestError


@pytest.mark.parametrize(
    ("value", "data"), [("YWI=", b"ab"), ("", b""), ("*", b""), ("é", b""), (None, b""), (7, b"")], ids=ascii
)
def test_a_base64_field_that_is_absent_or_malformed_is_empty(value: object, data: bytes) -> None:
    assert base64_field(value) == data


@pytest.mark.parametrize("broken", ["!", "", "1.", "NaN", '"\\ud800"', "1]x"])
@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_no_depth_at_which_a_document_breaks_leads_to_a_recursion_error(opening: str, broken: str) -> None:
    for depth in range(1, 1_200):  # Python's scanner and msgspec give up at depths that differ by a few levels
        with pytest.raises(BadRequestError):
            decode_json((opening * depth + broken).encode())


@pytest.mark.parametrize("number", ["1" * 4_301, "-" + "1" * 5_000, "1e400", "1" * 400 + ".5", "1" * 100_000 + "e-9"])
def test_numbers_that_no_json_decoder_of_go_reads_are_refused(number: str) -> None:
    for body in (number, f"[{number}]", f'{{"a":{number}}}'):
        with pytest.raises(BadRequestError, match="out of range"):
            decode_json(body.encode())
