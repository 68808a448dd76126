"""UUIDs from given entropy (RFC 9562 5.4)."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.names import uuid4


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_is_what_the_standard_library_makes_of_the_same_entropy(raw: bytes) -> None:
    assert uuid4(lambda size: raw[:size]) == str(uuid.UUID(bytes=raw, version=4))
