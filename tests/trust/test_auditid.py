"""The end of an error message that names the command which explains a refusal."""

from __future__ import annotations

import pytest

from mooring.trust.answertext import explained_by, without_audit_id


@pytest.mark.parametrize("audit_id", ["", "abcdef.0123456789abcdef", "a b", "a" * 65, "é"])
def test_what_may_be_a_token_is_not_printed(audit_id: str) -> None:
    assert explained_by(audit_id) == ""


def test_refusals_for_one_reason_are_equal_without_their_ids() -> None:
    first, second = (
        f"the server answered 401{explained_by(audit_id)}; give a valid token" for audit_id in ("5e1f-1", "5e1f-2")
    )
    assert first != second
    assert without_audit_id(first) == without_audit_id(second) == "the server answered 401; give a valid token"
