"""What is wrong with an ID token before its signature is looked at.

Source: docs/protocol/openid-connect.md#verification.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.authn.claims import ClaimsRefusedError
from mooring.authn.oidc.authenticator import Expected, check
from mooring.pki.errors import TokenRefusedError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPECTED = Expected(("kubernetes", "other"), ("RS256", "ES256"))


def at(seconds: float) -> float:
    return (NOW + timedelta(seconds=seconds)).timestamp()


def checked(header: dict[str, Any] | None = None, **claims: Any) -> tuple[str, str]:
    """Code and detail of the refusal; empty when there is none."""
    whole = {"aud": "kubernetes", "exp": at(3600), **claims}
    try:
        check({"alg": "RS256", **(header or {})}, {k: v for k, v in whole.items() if v is not None}, EXPECTED, NOW)
    except (TokenRefusedError, ClaimsRefusedError) as error:
        return error.code, str(error)
    return "", ""


@pytest.mark.parametrize("alg", ["none", "None", "HS256", "HS512", "RS384", "EdDSA", "", None, ["RS256"], 5], ids=repr)
def test_algorithms_that_are_not_allowed_are_refused_before_a_key_is_looked_at(alg: Any) -> None:
    assert checked({"alg": alg}) == ("unsupported-algorithm", "wants one of RS256, ES256")


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        pytest.param({"kid": 5}, "the token's key id is not a text", id="a key id that is a number"),
        pytest.param({"crit": ["exp"]}, "the token's header demands an extension that is not supported", id="crit"),
        pytest.param({"b64": False}, "the token's header demands an extension that is not supported", id="b64"),
    ],
)
def test_headers_that_are_refused(header: dict[str, Any], detail: str) -> None:
    assert checked(header) == ("malformed", detail)


@pytest.mark.parametrize(
    ("audience", "named"),
    [
        pytest.param("kubernetes", "", id="a text"),
        pytest.param(["kubernetes"], "", id="a list"),
        pytest.param(["stranger", "other"], "", id="one of several"),
        pytest.param("stranger", '"stranger"', id="somebody else"),
        pytest.param(["kubernetes2"], '"kubernetes2"', id="nobody of ours"),
        pytest.param(list("abcd"), '"a", "b", "c"', id="many"),
        pytest.param("\x1b" + "x" * 99, rf'"\x1b{"x" * 63}"', id="a long one that colours a terminal"),
        pytest.param([], "no audience", id="nobody"),
        pytest.param(None, "no audience", id="not said"),
        pytest.param("", '""', id="an empty text"),
    ],
)
def test_the_token_must_be_for_one_of_the_audiences(audience: Any, named: str) -> None:
    wanted = ("wrong-audience", f"for {named}, wants audience kubernetes or other") if named else ("", "")
    assert checked(aud=audience) == wanted


def test_an_authorized_party_is_no_audience() -> None:
    """`azp` names the client that requested a token for another: the audiences decide."""
    assert checked(aud=["kubernetes", "app"], azp="app") == ("", "")
    assert checked(aud="app", azp="kubernetes") == ("wrong-audience", 'for "app", wants audience kubernetes or other')


@pytest.mark.parametrize("header", [{"kid": None}, {"kid": ""}, {"crit": None}, {"crit": []}, {"b64": None}], ids=str)
def test_a_member_of_the_header_that_is_null_or_empty_is_an_absent_one(header: dict[str, Any]) -> None:
    assert checked(header) == ("", "")


def test_an_audience_that_is_null_is_none_of_ours() -> None:
    """go-oidc reads it as the empty text, which is no client's id."""
    with pytest.raises(TokenRefusedError, match="the token's aud is neither"):
        check({"alg": "RS256"}, {"aud": None, "exp": at(60)}, EXPECTED, NOW)


@pytest.mark.parametrize("name", ["nbf", "sub", "nonce", "at_hash"])
def test_a_claim_that_is_null_is_an_absent_one(name: str) -> None:
    check({"alg": "RS256"}, {"aud": "kubernetes", "exp": at(60), name: None}, EXPECTED, NOW)


AUD = "the token's aud is neither a text nor a list of texts"


@pytest.mark.parametrize(
    ("claims", "detail"),
    [
        pytest.param({"aud": {"kubernetes": True}}, AUD, id="an audience that is an object"),
        pytest.param({"aud": ["kubernetes", 5]}, AUD, id="a list of audiences with a number beside ours"),
        pytest.param({"aud": 5}, AUD, id="an audience that is a number"),
        pytest.param({"sub": 5}, "the token's sub is not a text", id="a subject that is a number"),
        pytest.param({"nonce": ["x"]}, "the token's nonce is not a text", id="a nonce that is a list"),
    ],
)
def test_claims_of_wrong_types_are_refused(claims: dict[str, Any], detail: str) -> None:
    assert checked(**claims) == ("malformed", detail)


def test_a_time_of_issue_that_is_null_is_refused() -> None:
    claims = {"aud": "kubernetes", "exp": at(60), "iat": None}
    with pytest.raises(TokenRefusedError, match="the token's iat is not a number of seconds"):
        check({"alg": "RS256"}, claims, EXPECTED, NOW)


@pytest.mark.parametrize(
    ("claims", "code", "detail"),
    [
        pytest.param({"exp": None}, "missing-expiry", "the token has no expiry", id="no end"),
        pytest.param({"exp": at(0)}, "", "", id="at its very end"),
        pytest.param({"exp": at(-0.5)}, "expired", "expired 1s ago", id="half a second past it: no leeway"),
        pytest.param({"exp": at(-3 * 3600)}, "expired", "expired 3h0m0s ago", id="three hours past it"),
        pytest.param({"exp": "soon"}, "malformed", "the token's exp is not a number of seconds", id="an end in words"),
        pytest.param({"exp": 10**400}, "malformed", "the token's exp is not a time", id="an end that no float holds"),
        pytest.param(
            {"nbf": -(10**400)}, "malformed", "the token's nbf is not a time", id="a begin that no float holds"
        ),
        pytest.param({"exp": 1e30}, "malformed", "the token's exp is not a time", id="an end beyond all time"),
        pytest.param({"nbf": at(60)}, "", "", id="a minute early"),
        pytest.param(
            {"nbf": at(61)}, "not-yet-valid", "not valid for another 1m1s: compare the clocks", id="earlier than that"
        ),
        pytest.param({"exp": 0}, "expired", "expired 490896h0m0s ago", id="an end of 0 is a time"),
        pytest.param({"exp": ""}, "malformed", "the token's exp is not a number of seconds", id="an empty end"),
        pytest.param({"nbf": 0}, "", "", id="a begin of 0"),
        pytest.param({"nbf": ""}, "malformed", "the token's nbf is not a number of seconds", id="an empty begin"),
        pytest.param({"iat": at(9999)}, "", "", id="issued in the future"),
        pytest.param({"exp": str(int(at(60)))}, "", "", id="an end in quotes"),
        pytest.param({"iat": "1e3"}, "", "", id="a time of issue in quotes"),
        pytest.param({"iat": "now"}, "malformed", "the token's iat is not a number of seconds", id="issued in words"),
        pytest.param({"iat": True}, "malformed", "the token's iat is not a number of seconds", id="issued truly"),
        pytest.param({"iat": {}}, "malformed", "the token's iat is not a number of seconds", id="issued in an object"),
        pytest.param({"iat": ""}, "malformed", "the token's iat is not a number of seconds", id="issued in no word"),
        pytest.param({"iat": "1" * 33}, "malformed", "the token's iat is not a number of seconds", id="a long number"),
    ],
)
def test_times(claims: dict[str, Any], code: str, detail: str) -> None:
    assert checked(**claims) == (code, detail)


def test_what_is_right_is_told_its_end() -> None:
    assert check({"alg": "ES256", "kid": "k"}, {"aud": "other", "exp": at(60)}, EXPECTED, NOW) == NOW + timedelta(
        minutes=1
    )
