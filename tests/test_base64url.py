"""base64url without padding against the vectors of RFC 4648 section 10, in the alphabet of section 5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring import base64url


@pytest.mark.parametrize(
    ("data", "text"), [(b"", ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xfb\xff", "-_8")], ids=repr
)
def test_vectors(data: bytes, text: str) -> None:
    assert base64url.encode(data) == text
    assert base64url.decode(text) == data


@pytest.mark.parametrize("text", ["Z", "Zm 9", "Zm9v\n", "Zg.8", "é"], ids=repr)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        base64url.decode(text)


@given(st.binary())
def test_decoding_inverts_encoding(data: bytes) -> None:
    assert base64url.decode(base64url.encode(data)) == data
