"""Groups that a token says where to get (OpenID Connect Core 1.0 section 5.6.2).

Source: docs/protocol/openid-connect.md#verification.
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.claims import Claim, ClaimsRefusedError, Identification
from mooring.authn.oidc.authenticator import ClaimSource, IssuerConfig, JwtIssuer, Published, fetch, source_of
from mooring.pki.jwt.keyset import parse_key_set
from mooring.secret import Secret
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpResponse
from tests.support.jwtsigner import key_for, key_set, public, signed, unsigned
from tests.support.urlresponder import UrlResponder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ISSUER = "https://id.example"
OTHER = "https://groups.example"
ENDPOINT = "https://groups.example/of/jane?all=1"
KEY, OTHERS_KEY = key_for("ES256"), key_for("ES256", 1)
SOURCE = ClaimSource("groups", ENDPOINT)


def pointing(endpoint: Any = ENDPOINT, **more: Any) -> dict[str, Any]:
    return {"_claim_names": {"groups": "src"}, "_claim_sources": {"src": {"endpoint": endpoint, **more}}}


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        pytest.param(pointing(), ClaimSource("groups", ENDPOINT), id="an endpoint"),
        pytest.param(
            pointing(access_token="t"), ClaimSource("groups", ENDPOINT, Secret("t")), id="and an access token"
        ),
        pytest.param(pointing(access_token=""), ClaimSource("groups", ENDPOINT), id="and an empty one"),
        pytest.param(pointing(access_token=None), ClaimSource("groups", ENDPOINT), id="and one that is null"),
        pytest.param({**pointing(), "groups": ["a"]}, None, id="the claim itself is there"),
        pytest.param({**pointing(), "groups": None}, None, id="the claim itself is null"),
        pytest.param({}, None, id="nothing"),
        pytest.param({**pointing(), "_claim_names": None}, None, id="names that are null"),
        pytest.param({**pointing(), "_claim_names": {}}, None, id="no names"),
        pytest.param({**pointing(), "_claim_names": {"roles": "src"}}, None, id="another claim"),
        pytest.param({"_claim_names": {"roles": "src"}}, None, id="another claim, without sources"),
        pytest.param({**pointing(), "_claim_sources": {"src": {"JWT": "x"}}}, None, id="an aggregated claim"),
        pytest.param({**pointing(), "_claim_sources": {"src": None}}, None, id="a source that is null"),
        pytest.param(pointing(""), None, id="an empty endpoint"),
        pytest.param(pointing(None), None, id="an endpoint that is null"),
    ],
)
def test_where_the_claim_is(claims: dict[str, Any], found: ClaimSource | None) -> None:
    assert source_of("groups", claims) == found


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        pytest.param(pointing("http://groups.example/"), "has no https URL as endpoint", id="in the clear"),
        pytest.param(pointing("file:///etc/passwd"), "has no https URL as endpoint", id="a file"),
        pytest.param(pointing(5), "has no https URL as endpoint", id="a number"),
        pytest.param(pointing(False), "has no https URL as endpoint", id="false"),
        pytest.param({**pointing(), "_claim_names": ["groups"]}, "does not name the source", id="names in a list"),
        pytest.param({**pointing(), "_claim_names": ""}, "does not name the source", id="names that are a text"),
        *(
            pytest.param(
                {**pointing(), "_claim_names": {"groups": one}}, "does not name the source", id=f"named {one!r}"
            )
            for one in (None, "", ["src"])
        ),
        *(
            pytest.param({**pointing(), "_claim_sources": one}, "not among _claim_sources", id=f"sources {one!r}")
            for one in (None, {}, "src", {"other": {"endpoint": ENDPOINT}})
        ),
        pytest.param({**pointing(), "_claim_sources": {"src": "x"}}, "is not an object", id="a source that is a text"),
        pytest.param(pointing(access_token=5), "has an access token that is none", id="a token that is a number"),
        pytest.param(pointing(access_token="a\r\nX: y"), "an access token that is none", id="a token with a line end"),
        pytest.param(pointing(access_token="é"), "has an access token that is none", id="a token no header can carry"),
    ],
)
def test_sources_that_are_refused(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(ClaimsRefusedError, match=why) as refused:
        source_of("groups", claims)
    assert refused.value.code == "distributed-claim"


def issuer() -> JwtIssuer:
    config = IssuerConfig(url=ISSUER, audiences=("kubernetes",), identification=Identification(username=Claim("sub")))
    made = JwtIssuer(config, "oidc/1")
    made.learn(Published(parse_key_set(key_set(public(KEY))), f"{ISSUER}/jwks", timedelta(hours=1)), NOW)
    return made


def told(**changed: Any) -> dict[str, Any]:
    exp = (NOW + timedelta(minutes=1)).timestamp()
    whole = {"iss": ISSUER, "aud": "kubernetes", "exp": exp, "groups": ["a"], **changed}
    return {name: value for name, value in whole.items() if value is not None}


def world(answer: Any) -> UrlResponder:
    document = json.dumps({"issuer": OTHER, "jwks_uri": f"{OTHER}/jwks"}).encode()
    return UrlResponder(
        {
            ENDPOINT: answer.encode() if isinstance(answer, str) else answer,
            f"{OTHER}/.well-known/openid-configuration": document,
            f"{OTHER}/jwks": key_set(public(OTHERS_KEY)),
        }
    )


def test_what_the_same_issuer_signed_is_verified_with_the_keys_at_hand() -> None:
    asked = world(signed(told(), KEY, "ES256") + "\n")
    assert asked.run(fetch(SOURCE, issuer(), NOW)) == ["a"]
    assert asked.urls == [ENDPOINT]
    assert asked.calls[0].target == "oidc/1"
    assert asked.calls[0].headers == (("accept", "application/json, */*"),)


def test_what_another_issuer_signed_is_verified_with_its_keys() -> None:
    asked = world(signed(told(iss=OTHER), OTHERS_KEY, "ES256"))
    assert asked.run(fetch(SOURCE, issuer(), NOW)) == ["a"]
    assert asked.urls == [ENDPOINT, f"{OTHER}/.well-known/openid-configuration", f"{OTHER}/jwks"]


def test_the_access_token_goes_to_the_source_and_to_nobody_else() -> None:
    asked = world(signed(told(iss=OTHER), OTHERS_KEY, "ES256"))
    asked.run(fetch(ClaimSource("groups", ENDPOINT, Secret("opaque")), issuer(), NOW))
    sent = [bool(call.authorization and call.authorization.reveal() == b"Bearer opaque") for call in asked.calls]
    assert sent == [True, False, False]
    assert "opaque" not in repr(asked.calls)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(
            HttpFailure(UNREACHABLE, "no answer within 5 s"), "its source: no answer within 5 s", id="nobody answers"
        ),
        pytest.param(HttpResponse(401, b""), "its source: the provider answers 401", id="not allowed"),
        pytest.param(b"x" * 40_000, "longer than 32768 bytes", id="too much"),
        pytest.param(b'{"groups": ["admins"]}', "not a token of three", id="JSON that nobody signed"),
        pytest.param(b"\xff\xfe", "not a token of three", id="no text"),
        pytest.param(unsigned(told()), "wants one of RS256", id="alg none"),
        pytest.param(
            signed(told(aud="other"), KEY, "ES256"), 'for "other", wants audience kubernetes', id="for somebody else"
        ),
        pytest.param(signed(told(exp=NOW.timestamp() - 60), KEY, "ES256"), "expired 1m0s ago", id="too old"),
        pytest.param(signed(told(), OTHERS_KEY, "ES256"), "verifies the token's signature", id="another's key"),
        pytest.param(signed(told(iss=None), KEY, "ES256"), "no issuer that is an https URL", id="nobody's"),
        pytest.param(signed(told(iss="http://x"), KEY, "ES256"), "no issuer that is an https URL", id="in the clear"),
        pytest.param(
            signed(told(iss="https://x"), KEY, "ES256"), "provider answers 404", id="an issuer that is not there"
        ),
        pytest.param(signed(told(groups=None), KEY, "ES256"), "its source does not give it", id="without the claim"),
    ],
)
def test_answers_that_are_refused(answer: Any, why: str) -> None:
    with pytest.raises(ClaimsRefusedError, match="the claim groups: ") as refused:
        world(answer).run(fetch(SOURCE, issuer(), NOW))
    assert refused.value.code == "distributed-claim"
    assert why in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["groups", "src", "endpoint", "access_token"]), JSON), JSON)
def test_any_claims_have_a_source_or_none_or_are_refused(inner: dict[str, Any], anything: Any) -> None:
    shapes: list[dict[str, Any]] = [
        {"_claim_names": inner, "_claim_sources": {"src": inner}},
        {"_claim_names": {"groups": "src"}, "_claim_sources": {"src": anything}},
        {"_claim_names": {"groups": "src"}, "_claim_sources": {"src": inner}},
        {"_claim_names": anything, "_claim_sources": anything},
    ]
    for claims in shapes:
        with contextlib.suppress(ClaimsRefusedError):
            source_of("groups", claims)
