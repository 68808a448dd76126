"""Identities: values and names.

Source: docs/protocol/bootstrap-tokens.md#authentication, docs/protocol/authentication.md.
"""

from __future__ import annotations

from mooring.identity import ANONYMOUS_USER, UserInfo, service_account_groups, service_account_username


def test_groups_are_added_once_and_in_order() -> None:
    user = UserInfo("ann", "1", ("a",), {"k": ("v",)})
    assert user.with_groups("b", "a", "b", "c") == UserInfo("ann", "1", ("a", "b", "c"), {"k": ("v",)})
    assert user.with_groups("a") is user
    assert user.with_groups() is user


def test_identities_are_values() -> None:
    assert UserInfo("ann") == UserInfo("ann")
    assert UserInfo("ann") != UserInfo("ann", groups=("a",))
    assert UserInfo("system:anonymous", groups=("system:unauthenticated",)) == ANONYMOUS_USER


def test_service_accounts_have_names_and_groups() -> None:
    assert service_account_username("ns", "robot") == "system:serviceaccount:ns:robot"
    assert service_account_groups("ns") == ("system:serviceaccounts", "system:serviceaccounts:ns")
