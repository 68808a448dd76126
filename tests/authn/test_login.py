"""Who may trade a credential for one of the cluster, and what of their name goes with it (docs/adr/0020)."""

from __future__ import annotations

import pytest

from mooring.authn import login
from mooring.authn.table import NAMES
from mooring.identity import CREDENTIAL_ID, UserInfo

JANE = UserInfo("jane", "42", ("dev", "system:authenticated"), {"scopes": ("a",), CREDENTIAL_ID: ("JTI=1",)})


def code(refusal: login.LoginRefusal | None) -> str:
    return refusal.code if refusal else ""


@pytest.mark.parametrize(
    ("user", "authenticator", "impersonating", "expected"),
    [
        *(
            pytest.param(JANE, name, False, "", id=f"a user whom {name} accepted may")
            for name in ("token-file", "oidc", "webhook", "password-file", "keystone", "ldap")
        ),
        *(
            pytest.param(JANE, name, False, login.RENEWED, id=f"what {name} accepted is the cluster's own already")
            for name in sorted(login.ISSUED_BY_A_CLUSTER)
        ),
        pytest.param(JANE, "oidc", True, login.IMPERSONATED, id="nobody logs in as somebody else"),
        pytest.param(
            UserInfo("system:kube-proxy"), "oidc", False, login.SYSTEM_NAME, id="a name of the system is for components"
        ),
        pytest.param(
            UserInfo("jane", groups=("dev", "system:masters")),
            "oidc",
            False,
            login.SYSTEM_NAME,
            id="a certificate in system:masters could not be taken back",
        ),
        pytest.param(
            UserInfo("jane", groups=("system:unauthenticated",)),
            "own",
            False,
            login.SYSTEM_NAME,
            id="nor any other group",
        ),
        pytest.param(UserInfo("System:x"), "oidc", False, "", id="names are told apart by case, as RBAC does"),
        pytest.param(UserInfo("jane", groups=("my:system:x",)), "oidc", False, "", id="only the beginning counts"),
    ],
)
def test_who_may_log_in(user: UserInfo, authenticator: str, impersonating: bool, expected: str) -> None:
    for allowed in (False, True):
        refusal = login.refusal(user, authenticator, impersonating=impersonating, proxied_allowed=allowed)
        assert code(refusal) == expected


def test_whom_a_proxy_names_logs_in_only_where_that_is_allowed() -> None:
    refused = login.refusal(JANE, login.REQUEST_HEADER, impersonating=False, proxied_allowed=False)
    assert code(refused) == login.PROXIED
    assert login.refusal(JANE, login.REQUEST_HEADER, impersonating=False, proxied_allowed=True) is None
    assert login.REQUEST_HEADER in NAMES


def test_the_authenticators_of_credentials_that_a_cluster_gives_out_are_named_as_the_table_names_them() -> None:
    assert NAMES >= login.ISSUED_BY_A_CLUSTER


def test_what_is_traded_is_the_user_without_what_the_chain_adds() -> None:
    assert login.traded(JANE) == UserInfo("jane", "42", ("dev",), {"scopes": ("a",)})


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        pytest.param(login.traded(JANE), "", id="a name, groups and a uid fit"),
        pytest.param(UserInfo("Jané Müller, Zürich", groups=("on call",)), "", id="any script, and spaces"),
        pytest.param(UserInfo(""), login.UNFIT, id="no name"),
        pytest.param(UserInfo("jane", groups=("dev", "")), login.UNFIT, id="an empty group would vanish"),
        pytest.param(UserInfo("jane\nroot"), login.UNFIT, id="a line break in the name"),
        pytest.param(UserInfo("jane", groups=("a\0b",)), login.UNFIT, id="a NUL in a group"),
        pytest.param(UserInfo("jane", uid="\x1b[31m"), login.UNFIT, id="an escape in the uid"),
        pytest.param(UserInfo("jane\ud800"), login.UNFIT, id="half a character"),
        pytest.param(
            UserInfo("jane", groups=("g" * (login.MAX_NAMES - 4),)), "", id="as many bytes of names as are allowed"
        ),
        pytest.param(UserInfo("jane", groups=("g" * (login.MAX_NAMES - 3),)), login.UNFIT, id="a byte more"),
        pytest.param(
            UserInfo("jané", groups=("g" * (login.MAX_NAMES - 4),)), login.UNFIT, id="bytes are not characters"
        ),
    ],
)
def test_what_a_certificate_can_say(user: UserInfo, expected: str) -> None:
    assert code(login.certificate_refusal(user)) == expected


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        pytest.param(UserInfo("jane\nroot", groups=("",)), "", id="a token says what a certificate does not"),
        pytest.param(UserInfo("jane\ud800"), login.UNFIT, id="half a character in the name"),
        pytest.param(UserInfo("jane", extra={"k": ("\udfff",)}), login.UNFIT, id="half a character in extra"),
    ],
)
def test_what_a_token_can_say(user: UserInfo, expected: str) -> None:
    assert code(login.token_refusal(user)) == expected
