"""From claims to a user.

Source: docs/protocol/openid-connect.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.cel import CLAIMS, TEXT, TEXTS, TRUTH, USER, Expression, compile_expression
from mooring.authn.claims import Claim, ClaimsRefusedError, Identification, Required, ValidationRule, identify
from mooring.authn.reasons import reasons
from mooring.identity import CREDENTIAL_ID, UserInfo

SUB = Claim("sub")


def cel(text: str, wanted: frozenset[str] = TEXT, variable: str = CLAIMS) -> Expression:
    return compile_expression(text, variable, wanted)


def by(**more: Any) -> Identification:
    return Identification(**{"username": SUB, **more})


def user(claims: dict[str, Any], **more: Any) -> UserInfo:
    return identify({"sub": "jane", **claims}, by(**more))


def refusal(claims: dict[str, Any], **more: Any) -> tuple[str, str]:
    with pytest.raises(ClaimsRefusedError) as refused:
        user(claims, **more)
    assert refused.value.code in reasons()
    return refused.value.code, str(refused.value)


@pytest.mark.parametrize(
    ("source", "claims", "name"),
    [
        pytest.param(Claim("sub"), {}, "jane", id="a claim"),
        pytest.param(Claim("sub", "https://i#"), {}, "https://i#jane", id="a claim behind a prefix"),
        pytest.param(Claim("sub", "p:"), {"sub": ""}, "p:", id="an empty claim behind a prefix"),
        pytest.param(Claim("email"), {"email": "j@x"}, "j@x", id="an address nothing is said of"),
        pytest.param(
            Claim("email"), {"email": "j@x", "email_verified": True}, "j@x", id="an address that was verified"
        ),
        pytest.param(Claim("sub"), {"email_verified": False}, "jane", id="an address nobody asks for"),
        pytest.param(cel("'x:' + claims.sub"), {}, "x:jane", id="an expression"),
    ],
)
def test_the_user_name(source: Claim | Expression, claims: dict[str, Any], name: str) -> None:
    assert user(claims, username=source).username == name


@pytest.mark.parametrize(
    ("source", "claims", "code", "detail"),
    [
        pytest.param(Claim("name"), {}, "missing-claim", "username: the claim name is not there", id="no such claim"),
        pytest.param(Claim("sub"), {"sub": 5}, "malformed-claim", "username: the claim sub is not a text", id="a number"),
        pytest.param(Claim("sub"), {"sub": None}, "malformed-claim", "username: the claim sub is not a text", id="null"),
        pytest.param(
            Claim("sub", "p:"), {"sub": None}, "malformed-claim", "username: the claim sub is not a text",
            id="null behind a prefix, which is the user p: in Kubernetes",
        ),
        pytest.param(Claim("sub"), {"sub": ""}, "mapping-failed", "username: it is empty", id="an empty claim"),
        pytest.param(cel("claims.sub"), {"sub": ""}, "mapping-failed", "username: it is empty", id="an empty expression"),
        pytest.param(
            cel("claims.sub"), {"sub": 5}, "mapping-failed",
            "username: claims.sub gave something that is not a text", id="an expression that is no text",
        ),
        pytest.param(
            cel("claims.x"), {}, "mapping-failed",
            'username: claims.x: Key not found in map : "x"', id="an expression that fails",
        ),
        *(
            pytest.param(
                Claim("email", "p:"), {"email": "j@x", "email_verified": said}, "email-not-verified",
                "the issuer does not say that the e-mail address was verified", id=f"email_verified is {said!r}",
            )
            for said in (False, None)
        ),
        *(
            pytest.param(
                Claim("email", "p:"), {"email": "j@x", "email_verified": said}, "email-not-verified",
                f"the claim email_verified is {kind}, and must be true or false: map the user name with an expression, "
                "or let the issuer send a boolean", id=f"email_verified is {said!r}",
            )
            for said, kind in (
                ("true", "a text"), ("false", "a text"), ("", "a text"), (1, "a number"), (0, "a number"), (1.0, "a number"),
                ([True], "a list or an object"), ({}, "a list or an object"),
            )
        ),
    ],
)  # fmt: skip
def test_who_has_no_name_is_refused(source: Claim | Expression, claims: dict[str, Any], code: str, detail: str) -> None:
    assert refusal(claims, username=source) == (code, detail)


@pytest.mark.parametrize(
    ("source", "claims", "groups"),
    [
        pytest.param(None, {"groups": ["a"]}, (), id="nobody asks for groups"),
        pytest.param(Claim("groups"), {}, (), id="no such claim"),
        pytest.param(Claim("groups"), {"groups": None}, (), id="null"),
        pytest.param(Claim("groups"), {"groups": "a"}, ("a",), id="a text"),
        pytest.param(Claim("groups"), {"groups": ["a", "b"]}, ("a", "b"), id="a list"),
        pytest.param(Claim("groups", "p:"), {"groups": ["a", "b"]}, ("p:a", "p:b"), id="a list behind a prefix"),
        pytest.param(Claim("groups", "p:"), {"groups": ["", "b"]}, ("p:b",), id="an empty text is no group"),
        pytest.param(Claim("groups", "p:"), {"groups": [None, "b"]}, ("p:b",), id="null in a list is no group"),
        pytest.param(Claim("groups", "p:"), {"groups": [None]}, (), id="a list of null"),
        pytest.param(Claim("groups", "p:"), {"groups": []}, (), id="an empty list"),
        pytest.param(Claim("groups", "p:"), {"groups": ""}, (), id="an empty text"),
        pytest.param(cel("claims.g", TEXTS), {"g": "a"}, ("a",), id="an expression's text"),
        pytest.param(cel("claims.g", TEXTS), {"g": ["a", "", "b"]}, ("a", "b"), id="an expression's list"),
        pytest.param(cel("claims.g", TEXTS), {"g": None}, (), id="an expression's null"),
        pytest.param(cel("claims.g", TEXTS), {"g": []}, (), id="an expression's empty list"),
        pytest.param(cel("claims.g", TEXTS), {"g": ""}, (), id="an expression's empty text"),
    ],
)
def test_the_groups(source: Claim | Expression | None, claims: dict[str, Any], groups: tuple[str, ...]) -> None:
    assert user(claims, groups=source).groups == groups


@pytest.mark.parametrize("given", [5, True, {"a": "b"}, ["a", 5], ["a", None, 5], [["a"]]], ids=repr)
def test_groups_that_are_none(given: Any) -> None:
    wanted = "is not a text or a list of texts"
    assert refusal({"g": given}, groups=Claim("g")) == ("malformed-claim", f"groups: the claim g {wanted}")
    said = "groups: claims.g gave something that is not a text or a list of texts"
    assert refusal({"g": given}, groups=cel("claims.g", TEXTS)) == ("mapping-failed", said)


@pytest.mark.parametrize(
    ("source", "uid"),
    [
        pytest.param(None, "", id="none"),
        pytest.param(Claim("oid"), "o-1", id="a claim"),
        pytest.param(cel("claims.oid + '!'"), "o-1!", id="an expression"),
    ],
)
def test_the_uid(source: Claim | Expression | None, uid: str) -> None:
    assert user({"oid": "o-1"}, uid=source).uid == uid


def test_null_in_the_list_of_an_expression_refuses() -> None:
    """Kubernetes, convertCELValueToStringList."""
    assert refusal({"g": ["a", None]}, groups=cel("claims.g", TEXTS))[0] == "mapping-failed"


@pytest.mark.parametrize("given", ["", None], ids=repr)
def test_a_uid_may_be_null_or_empty(given: str | None) -> None:
    """Kubernetes decodes the claim into a Go string."""
    assert user({"oid": given}, uid=Claim("oid")).uid == ""


def test_a_uid_that_is_asked_for_must_be_there() -> None:
    assert refusal({}, uid=Claim("oid")) == ("missing-claim", "uid: the claim oid is not there")
    assert refusal({"oid": 5}, uid=Claim("oid"))[0] == "malformed-claim"


def test_extra_values_are_texts_and_empty_ones_are_left_out() -> None:
    claims = {"team": "a", "roles": ["x", "", "y"], "none": [], "nil": None, "empty": "", "jti": "id-1"}
    extra = tuple((f"example.com/{name}", cel(f"claims.{name}", TEXTS)) for name in claims if name != "jti")
    assert user(claims, extra=extra).extra == {
        CREDENTIAL_ID: ("JTI=id-1",),
        "example.com/team": ("a",),
        "example.com/roles": ("x", "y"),
    }


def test_an_extra_value_that_is_no_text_refuses() -> None:
    extra = (("example.com/n", cel("claims.n", TEXTS)),)
    assert refusal({"n": 5}, extra=extra) == (
        "mapping-failed", "extra example.com/n: claims.n gave something that is not a text or a list of texts",
    )  # fmt: skip


@pytest.mark.parametrize("jti", [None, "", 5, ["a"]], ids=repr)
def test_an_id_of_the_token_that_is_none_is_left_out(jti: Any) -> None:
    assert user({"jti": jti}).extra == {}


HD = Required("hd", "example.com")
SHORT = ValidationRule(cel("claims.exp - claims.iat <= 3600", TRUTH), "tokens of an hour at most")


@pytest.mark.parametrize(
    ("claims", "rules", "refused"),
    [
        pytest.param({"hd": "example.com"}, (HD,), None, id="the required value"),
        pytest.param({}, (HD,), ("missing-claim", "the required claim hd is not there"), id="not there"),
        pytest.param({"hd": "x"}, (HD,), ("wrong-claim", "the claim hd has not the required value"), id="another"),
        pytest.param({"hd": ["example.com"]}, (HD,), ("wrong-claim", "the claim hd has not the required value"), id="list"),
        pytest.param({"hd": ""}, (Required("hd", ""),), None, id="an empty value can be required"),
        pytest.param({"hd": None}, (Required("hd", ""),), None, id="null is the empty value"),
        pytest.param(
            {"hd": None}, (HD,), ("wrong-claim", "the claim hd has not the required value"), id="null is no other value"
        ),
        pytest.param({"exp": 4000, "iat": 1000}, (SHORT,), None, id="a true rule"),
        pytest.param({"exp": 9000, "iat": 1000}, (SHORT,), ("claim-rule", "tokens of an hour at most"), id="a false rule"),
        pytest.param(
            {}, (ValidationRule(cel("claims.sub == 'x'", TRUTH)),), ("claim-rule", "claims.sub == 'x' is false"), id="no message"
        ),
        pytest.param(
            {"iat": 1000}, (SHORT,),
            ("claim-rule", 'claims.exp - claims.iat <= 3600: Key not found in map : "exp"'), id="a rule that fails",
        ),
        pytest.param(
            {"hd": "x"}, (SHORT, HD), ("claim-rule", 'claims.exp - claims.iat <= 3600: Key not found in map : "exp"'),
            id="the first that fails refuses",
        ),
    ],
)  # fmt: skip
def test_rules_about_claims(claims: dict[str, Any], rules: Any, refused: tuple[str, str] | None) -> None:
    if refused is None:
        assert user(claims, claim_rules=rules).username == "jane"
    else:
        assert refusal(claims, claim_rules=rules) == refused


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("user.username == 'p:jane'", "", id="the name with its prefix"),
        pytest.param("user.uid == 'o-1' && user.groups == ['a']", "", id="uid and groups"),
        pytest.param("user.extra['authentication.kubernetes.io/credential-id'] == ['JTI=id-1']", "", id="extra"),
        pytest.param("!user.username.startsWith('p:')", "user-rule", id="a false rule"),
        pytest.param("user.extra['x'] == ['y']", "user-rule", id="a rule that fails"),
    ],
)
def test_rules_about_users_see_what_came_of_the_claims(text: str, code: str) -> None:
    claims = {"oid": "o-1", "g": "a", "jti": "id-1"}
    more: dict[str, Any] = {
        "username": Claim("sub", "p:"),
        "groups": Claim("g"),
        "uid": Claim("oid"),
        "user_rules": (ValidationRule(cel(text, TRUTH, USER), "no"),),
    }
    if code:
        assert refusal(claims, **more)[0] == code
    else:
        assert user(claims, **more).username == "p:jane"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["sub", "email", "email_verified", "groups", "oid", "jti", "team"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_claims_name_a_user_or_are_refused(claims: dict[str, Any]) -> None:
    whole = Identification(
        username=Claim("email", "p:"),
        groups=Claim("groups"),
        uid=cel("claims.oid"),
        extra=(("example.com/team", cel("claims.team", TEXTS)),),
        claim_rules=(ValidationRule(cel("has(claims.sub)", TRUTH)),),
        user_rules=(ValidationRule(cel("user.username != ''", TRUTH, USER)),),
    )
    try:
        found = identify(claims, whole)
    except ClaimsRefusedError as error:
        found, code = None, error.code
    else:
        code = ""
    assert code in reasons() if found is None else found.username.startswith("p:") and all(found.groups)
