"""Groups that open each level of the supervisor API."""

from __future__ import annotations

import pytest

from mooring.trust.k3s.identity import (
    AUTHENTICATOR,
    IMPERSONATES,
    NOT_AUTHENTICATED,
    WRONG_GROUP,
    Access,
    access_refusal,
)

X509 = "client-certificate"
OPEN = {
    Access.AGENT: {"k3s:agent", "k3s:server", "system:nodes", "system:bootstrappers"},
    Access.NODE: {"system:nodes"},
    Access.SERVER: {"k3s:server"},
}
GROUPS = ("k3s:agent", "k3s:server", "system:nodes", "system:bootstrappers", "system:masters", "system:authenticated")


@pytest.mark.parametrize("access", OPEN)
@pytest.mark.parametrize("group", GROUPS)
def test_a_level_is_open_to_its_groups_alone(access: Access, group: str) -> None:
    expected = "" if group in OPEN[access] else WRONG_GROUP
    assert access_refusal(access, AUTHENTICATOR, ("system:authenticated", group)) == expected


@pytest.mark.parametrize("access", OPEN)
@pytest.mark.parametrize("group", GROUPS)
def test_groups_of_k3s_count_from_a_token_only(access: Access, group: str) -> None:
    expected = "" if group in OPEN[access] and not group.startswith("k3s:") else WRONG_GROUP
    assert access_refusal(access, X509, (group,)) == expected


def test_public_routes_are_open_to_everyone() -> None:
    assert access_refusal(Access.PUBLIC, "", ()) == ""
    assert access_refusal(Access.PUBLIC, "", (), impersonates=True) == ""


@pytest.mark.parametrize("access", OPEN)
def test_without_a_credential_every_level_is_closed(access: Access) -> None:
    assert access_refusal(access, "", GROUPS) == NOT_AUTHENTICATED


def test_a_request_that_impersonates_is_refused() -> None:
    assert access_refusal(Access.NODE, X509, ("system:nodes",), impersonates=True) == IMPERSONATES


@pytest.mark.parametrize("access", [Access.AGENT, Access.NODE, Access.SERVER])
def test_an_identity_token_joins_in_kubeadms_way_only(access: Access) -> None:
    """In k3s's way its machine could set the first password of any free name."""
    assert access_refusal(access, "join-rule", ("system:bootstrappers",)) == WRONG_GROUP
