"""Impersonation headers (reference/kubernetes.md 5.13)."""

from __future__ import annotations

import pytest

from mooring.authn.impersonation import MAX_PARTS, Grant, read_impersonation
from mooring.errors import BadRequestError
from mooring.identity import AUTHENTICATED, UNAUTHENTICATED, UserInfo

AUTHN = "authentication.k8s.io"


def test_no_header_impersonates_nobody() -> None:
    assert read_impersonation({"accept": ["*/*"]}) is None


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"impersonate-group": ["g"]}, id="a group alone"),
        pytest.param({"impersonate-uid": ["u"]}, id="a uid alone"),
        pytest.param({"impersonate-extra-k": ["v"]}, id="an extra alone"),
        pytest.param({"impersonate-user": [""], "impersonate-group": ["g"]}, id="an empty user"),
        pytest.param({"impersonate-user": [], "impersonate-group": ["g"]}, id="a user header without a value"),
        pytest.param({"impersonate-user": ["a"], "impersonate-group": ["g"] * (MAX_PARTS + 1)}, id="too many groups"),
    ],
)
def test_bad_requests(headers: dict[str, list[str]]) -> None:
    with pytest.raises(BadRequestError, match="impersonation"):
        read_impersonation(headers)


def test_every_part_wants_its_grant() -> None:
    found = read_impersonation(
        {
            "impersonate-user": ["jane"],
            "impersonate-group": ["dev", "ops"],
            "impersonate-uid": ["42"],
            "impersonate-extra-acme.com%2Fscope": ["a", "b"],
        }
    )
    assert found is not None
    assert found.grants == (
        Grant("", "v1", "users", "jane"),
        Grant("", "v1", "groups", "dev"),
        Grant("", "v1", "groups", "ops"),
        Grant(AUTHN, "v1", "userextras", "a", subresource="acme.com/scope"),
        Grant(AUTHN, "v1", "userextras", "b", subresource="acme.com/scope"),
        Grant(AUTHN, "v1", "uids", "42"),
    )
    assert found.user == UserInfo("jane", "42", ("dev", "ops", AUTHENTICATED), {"acme.com/scope": ("a", "b")})


@pytest.mark.parametrize(
    ("headers", "groups", "grant"),
    [
        pytest.param(
            {"impersonate-user": ["system:serviceaccount:ns:sa"]},
            ("system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED),
            Grant("", "v1", "serviceaccounts", "sa", namespace="ns"),
            id="a service account gets its groups",
        ),
        pytest.param(
            {"impersonate-user": ["system:serviceaccount:ns:sa"], "impersonate-group": ["g"]},
            ("g", AUTHENTICATED),
            Grant("", "v1", "serviceaccounts", "sa", namespace="ns"),
            id="unless groups are given",
        ),
        pytest.param(
            {"impersonate-user": ["system:anonymous"]},
            (UNAUTHENTICATED,),
            Grant("", "v1", "users", "system:anonymous"),
            id="anonymous stays unauthenticated",
        ),
        pytest.param(
            {"impersonate-user": ["x"], "impersonate-group": [UNAUTHENTICATED]},
            (UNAUTHENTICATED,),
            Grant("", "v1", "users", "x"),
            id="the unauthenticated group is not contradicted",
        ),
    ],
)
def test_groups_of_the_target(headers: dict[str, list[str]], groups: tuple[str, ...], grant: Grant) -> None:
    found = read_impersonation(headers)
    assert found is not None
    assert (found.user.groups, found.grants[0]) == (groups, grant)


def test_a_malformed_escape_in_an_extra_key_is_left_raw() -> None:
    found = read_impersonation({"impersonate-user": ["x"], "impersonate-extra-a%ff": ["1"]})
    assert found is not None
    assert dict(found.user.extra) == {"a%ff": ("1",)}
