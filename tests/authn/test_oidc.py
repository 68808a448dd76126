"""ID tokens judged.

Source: docs/protocol/authentication.md, docs/protocol/openid-connect.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.chain import Found, Outcome, judge
from mooring.authn.claims import Claim, Identification, Required
from mooring.authn.credentials import Credentials
from mooring.authn.oidc.authenticator import (
    DISTRIBUTED_TTL,
    HOLD,
    KEEP,
    IssuerConfig,
    JwtIssuer,
    OidcAuthenticator,
    Published,
)
from mooring.authn.verdict import Accepted, Deferred, NotMine, Rejected
from mooring.identity import UserInfo
from mooring.pki.jwt.keyset import KeySet, parse_key_set
from mooring.secret import Secret
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpResponse
from tests.support.jwtsigner import key_for, key_set, public, signed, signed_with_secret, unsigned
from tests.support.urlresponder import UrlResponder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
ISSUER = "https://id.example"
JWKS = f"{ISSUER}/jwks"
ENDPOINT = "https://groups.example/"
KEY, NEW_KEY, STRANGER = (key_for("RS256", which) for which in range(3))
JANE = UserInfo("p:jane", groups=("p:dev",))


def config(url: str = ISSUER, **changed: Any) -> IssuerConfig:
    identification = Identification(username=Claim("sub", "p:"), groups=Claim("groups", "p:"), **changed)
    return IssuerConfig(url=url, audiences=("kubernetes",), identification=identification, algorithms=("RS256",))


def published(*keys: Any) -> Published:
    return Published(parse_key_set(key_set(*(keys or (public(KEY),)))), JWKS, HOUR)


class Room:
    """An authenticator with one issuer whose keys are known, and the world it may ask."""

    def __init__(self, pages: Mapping[str, bytes | HttpResponse | HttpFailure] | None = None, **changed: Any) -> None:
        self.world = UrlResponder({JWKS: key_set(public(KEY)), **(pages or {})})
        self.issuer = JwtIssuer(config(**changed), "oidc/1")
        self.issuer.learn(published(), NOW)
        self.authenticator = OidcAuthenticator(max_remembered=8)
        self.authenticator.replace([self.issuer])

    def first(self, token: str | bytes | None, now: datetime = NOW) -> Any:
        """What is said at once."""
        credentials = Credentials(bearer=None if token is None else Secret(token))
        return self.authenticator.authenticate(credentials, {}, now, ("api",))

    def outcome(self, token: str, now: datetime = NOW) -> Outcome:
        """What the whole chain says, with everything found out."""
        chain = judge(Credentials(bearer=Secret(token)), [self.authenticator], {}, now, ("api",))
        try:
            pending = next(chain)
            while True:
                later = pending.deferred
                assert later.exchange is not None
                verdict = self.world.run(later.exchange(now))
                if later.on_verdict is not None and verdict is not None:
                    later.on_verdict(verdict, now)
                pending = chain.send(Found(verdict, now))
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome

    def refusal(self, token: str, now: datetime = NOW) -> tuple[str, str]:
        outcome = self.outcome(token, now)
        assert outcome.user is None
        return outcome.refusals[0].reason, outcome.refusals[0].detail

    def user(self, token: str, now: datetime = NOW) -> str:
        user = self.outcome(token, now).user
        return "" if user is None else user.username


def claims(**changed: Any) -> dict[str, Any]:
    whole = {
        "iss": ISSUER, "aud": "kubernetes", "exp": (NOW + HOUR).timestamp(), "sub": "jane", "groups": ["dev"], **changed,
    }  # fmt: skip
    return {name: value for name, value in whole.items() if value is not None}


def token(**changed: Any) -> str:
    return signed(claims(**changed), KEY)


def test_a_good_token_is_its_user_and_names_no_audience_that_this_server_would_know() -> None:
    room = Room()
    assert room.first(token()) == Accepted(JANE)
    assert room.first(token()) == Accepted(JANE), "and when it is remembered"


@pytest.mark.parametrize(
    "offered",
    [
        pytest.param(None, id="no bearer"),
        pytest.param("abcdef.0123456789abcdef", id="a bootstrap token"),
        pytest.param(b"\xff\xfe", id="bytes that are no text"),
        pytest.param("a.b.c", id="three segments of nothing"),
        pytest.param(token(iss="https://other.example"), id="another issuer"),
        pytest.param(token(iss=f"{ISSUER}/"), id="an issuer with a slash more"),
        pytest.param(token(iss=None), id="no issuer"),
        pytest.param(token(iss=[ISSUER]), id="an issuer that is a list"),
    ],
)
def test_not_mine(offered: str | bytes | None) -> None:
    assert Room().first(offered) == NotMine()


@pytest.mark.parametrize(
    ("offered", "code"),
    [
        pytest.param(token(x="x" * 32_768), "too-large", id="too long"),
        pytest.param(token().rpartition(".")[0], "malformed", id="the signature and its dot cut off"),
        pytest.param(token().rpartition(".")[0] + ".", "malformed", id="the signature cut off"),
        pytest.param(token() + ".x", "malformed", id="four segments"),
        pytest.param("junk!" + token()[token().index(".") :], "malformed", id="an unreadable header"),
    ],
)
def test_a_malformed_token_of_a_configured_issuer_is_mine_and_bad(offered: str, code: str) -> None:
    verdict = Room().first(offered)
    assert isinstance(verdict, Rejected)
    assert (verdict.reason, verdict.form_only) == (code, False)


def test_without_issuers_nothing_is_mine() -> None:
    assert OidcAuthenticator().authenticate(Credentials(bearer=Secret(token())), {}, NOW, ()) == NotMine()


@pytest.mark.parametrize(
    ("offered", "code", "detail"),
    [
        pytest.param(unsigned(claims()), "unsupported-algorithm", "wants one of RS256", id="alg none"),
        pytest.param(
            signed_with_secret(claims(), KEY.as_pem(private=False)),
            "unsupported-algorithm", "wants one of RS256", id="HS256 with the public key",
        ),
        pytest.param(
            signed(claims(), KEY, "PS256"), "unsupported-algorithm", "wants one of RS256", id="an algorithm not allowed",
        ),
        pytest.param(token(aud="dashboard"), "wrong-audience", 'for "dashboard", wants audience kubernetes', id="for another"),
        pytest.param(token(exp=NOW.timestamp() - 60), "expired", "expired 1m0s ago", id="too old"),
        pytest.param(token(exp=None), "missing-expiry", "the token has no expiry", id="without an end"),
        pytest.param(token(sub=None), "missing-claim", "username: the claim sub is not there", id="without a name"),
        pytest.param(
            token(groups=5), "malformed-claim",
            "groups: the claim groups is not a text or a list of texts", id="groups that are none",
        ),
        pytest.param(
            token(groups=None, _claim_names={"groups": "s"}, _claim_sources={"s": {"endpoint": "http://x/"}}),
            "distributed-claim", "the source of the claim groups has no https URL as endpoint", id="groups in the clear",
        ),
    ],
)  # fmt: skip
def test_tokens_of_the_issuer_that_are_refused_at_once(offered: str, code: str, detail: str) -> None:
    assert Room().first(offered) == Rejected(code, f"issuer {ISSUER}: {detail}")


def test_required_claims_are_required() -> None:
    room = Room(claim_rules=(Required("hd", "example.com"),))
    assert room.refusal(token())[0] == "missing-claim"
    assert room.user(token(hd="example.com")) == "p:jane"


def test_before_the_provider_gave_its_keys_its_tokens_are_refused() -> None:
    room = Room()
    fresh = JwtIssuer(config(), "oidc/1")
    room.authenticator.replace([fresh])
    not_yet = Rejected("provider-not-ready", f"issuer {ISSUER}: its keys have not been fetched yet")
    assert room.first(token()) == not_yet
    fresh.fail("the discovery document: no answer within 5 s")
    assert room.first(token()).detail == f"issuer {ISSUER}: the discovery document: no answer within 5 s"
    fresh.learn(published(), NOW)
    assert room.first(token()) == Accepted(JANE)


def test_keys_that_are_too_old_are_not_believed_and_neither_is_what_they_verified() -> None:
    room = Room()
    long = token(exp=(NOW + 3 * KEEP).timestamp())
    assert room.user(long) == "p:jane"
    later = NOW + HOUR + KEEP + SECOND
    room.world.pages[JWKS] = HttpFailure(UNREACHABLE, "down")
    assert room.refusal(long, later) == ("keys-not-fetched", f"issuer {ISSUER}: the key set: down")
    assert room.refusal(long, later) == (
        "unknown-key", f"issuer {ISSUER}: what it published last is too old to be believed",
    )  # fmt: skip
    room.world.pages[JWKS] = key_set(public(KEY))
    assert room.user(long, later + HOLD) == "p:jane", "they are asked for as soon as somebody comes"


ROTATED = {JWKS: key_set(public(NEW_KEY, "new"))}


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"kid": "new"}, id="a key id that is not known"),
        pytest.param({"kid": None}, id="no key id, and no key that fits"),
        pytest.param({"kid": "k"}, id="a known key id with another key"),
    ],
)
def test_a_rotated_key_is_found_by_asking_the_provider_once(header: dict[str, Any]) -> None:
    room = Room({JWKS: key_set(public(NEW_KEY, header["kid"]))})
    later = room.first(signed(claims(), NEW_KEY, **header))
    assert isinstance(later, Deferred)
    assert later.key == ISSUER.encode(), "all who wait for this issuer wait together"
    room = Room({JWKS: key_set(public(NEW_KEY, header["kid"]))})
    assert room.user(signed(claims(), NEW_KEY, **header)) == "p:jane"
    assert room.world.urls == [JWKS]
    assert room.user(signed(claims(), NEW_KEY, **header)) == "p:jane"
    assert room.world.urls == [JWKS]


def test_who_comes_while_the_provider_is_asked_waits_for_the_same_answer() -> None:
    room = Room(ROTATED)
    tokens = [signed(claims(jti=str(number)), NEW_KEY, kid="new") for number in range(3)]
    first, *others = (room.first(offered) for offered in tokens)
    assert {later.key for later in others} == {first.key}
    assert room.world.run(first.exchange(NOW)) is None, "all who wait are to be judged again"
    assert all(isinstance(room.first(offered), Accepted) for offered in tokens)


def test_an_asking_that_was_broken_off_is_over() -> None:
    room = Room(ROTATED)
    later = room.first(signed(claims(), NEW_KEY, kid="new"))
    talk = later.exchange(NOW)
    next(talk)
    talk.close()
    assert room.first(signed(claims(), NEW_KEY, kid="new")).reason == "unknown-key"


def test_random_key_ids_make_the_provider_asked_once_in_a_while() -> None:
    room = Room()
    for number in range(100):
        refused = room.refusal(signed(claims(), STRANGER, kid=f"random-{number}"))
        assert refused == (
            "unknown-key", f"issuer {ISSUER}: the token names a key that is not known here",
        )  # fmt: skip
    assert room.world.urls == [JWKS]
    assert room.refusal(signed(claims(), STRANGER, kid="random"), NOW + HOLD)[0] == "unknown-key"
    assert room.world.urls == [JWKS, JWKS]
    assert room.user(token()) == "p:jane", "and who has a good token never notices"


def test_what_is_found_out_about_a_token_of_an_issuer_is_the_issuers_affair() -> None:
    room = Room(ROTATED)
    rotated = room.first(signed(claims(), NEW_KEY, kid="new"))
    assert (type(rotated), rotated.recognised) == (Deferred, True), (
        "so a forged one is never shown to whoever is asked outside"
    )


def test_a_forged_signature_is_refused() -> None:
    room = Room()
    assert room.refusal(signed(claims(), STRANGER)) == (
        "bad-signature", f"issuer {ISSUER}: no key of the issuer verifies the token's signature",
    )  # fmt: skip


def test_a_provider_that_does_not_answer_leaves_what_is_known_in_force() -> None:
    room = Room({JWKS: HttpFailure(UNREACHABLE, "no answer within 5 s")})
    assert room.refusal(signed(claims(), STRANGER, kid="new")) == (
        "keys-not-fetched", f"issuer {ISSUER}: the key set: no answer within 5 s",
    )  # fmt: skip
    assert room.user(token()) == "p:jane"
    assert room.issuer.problem == "the key set: no answer within 5 s"


def test_a_withdrawn_key_ends_what_it_verified() -> None:
    room = Room()
    assert room.user(token()) == "p:jane"
    room.issuer.learn(published(public(NEW_KEY, "new")), NOW)
    room.world.pages.update(ROTATED)
    assert room.refusal(token())[0] == "unknown-key"


def count_verifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    real = KeySet.verify

    def verify(self: KeySet, text: str, header: Mapping[str, Any]) -> None:
        seen.append(text)
        real(self, text, header)

    monkeypatch.setattr(KeySet, "verify", verify)
    return seen


def test_a_signature_is_verified_once_until_the_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_verifications(monkeypatch)
    room = Room()
    for now in (NOW, NOW + SECOND, NOW + HOUR):
        assert room.user(token(), now) == "p:jane"
    assert len(seen) == 1
    assert room.refusal(token(), NOW + HOUR + SECOND)[0] == "expired"


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(
            lambda room: room.issuer.learn(published(public(KEY), public(NEW_KEY, "n")), NOW), id="other keys"
        ),
        pytest.param(lambda room: room.authenticator.replace([room.issuer]), id="another configuration"),
        pytest.param(lambda room: [room.user(token(jti=str(n))) for n in range(8)], id="eight other tokens"),
    ],
)
def test_what_was_verified_is_forgotten(happens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    assert room.user(token()) == "p:jane"
    happens(room)
    seen = count_verifications(monkeypatch)
    assert room.user(token()) == "p:jane"
    assert len(seen) == 1


def test_a_clock_that_went_back_verifies_again(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    assert room.user(token(), NOW + SECOND) == "p:jane"
    seen = count_verifications(monkeypatch)
    assert room.user(token(), NOW) == "p:jane"
    assert len(seen) == 1


def test_the_same_keys_published_again_forget_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    assert room.user(token()) == "p:jane"
    room.issuer.learn(published(), NOW)
    seen = count_verifications(monkeypatch)
    assert room.user(token()) == "p:jane"
    assert seen == []


def test_each_token_goes_to_its_issuer() -> None:
    room = Room()
    other = JwtIssuer(config("https://other.example"), "oidc/2")
    other.learn(published(public(STRANGER)), NOW)
    room.authenticator.replace([room.issuer, other])
    assert room.authenticator.issuers == (room.issuer, other)
    assert room.user(token()) == "p:jane"
    assert room.user(signed(claims(iss="https://other.example"), STRANGER)) == "p:jane"
    room.world.pages[JWKS] = key_set(public(STRANGER))
    assert room.refusal(signed(claims(iss="https://other.example"), KEY))[0] == "bad-signature"


@pytest.mark.parametrize("iss", ["https://accounts.google.com", "accounts.google.com"])
def test_an_issuer_that_does_not_write_its_name_in_full(iss: str) -> None:
    room = Room()
    google = JwtIssuer(config("https://accounts.google.com"), "oidc/2")
    google.learn(published(), NOW)
    room.authenticator.replace([google])
    assert room.user(token(iss=iss)) == "p:jane"
    assert room.authenticator.issuers == (google,)


ELSEWHERE = {"groups": None, "_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"endpoint": ENDPOINT}}}


def groups_of_jane(*groups: str) -> bytes:
    return token(sub=None, groups=list(groups)).encode()


def test_groups_that_are_elsewhere_are_fetched() -> None:
    room = Room({ENDPOINT: groups_of_jane("far", "away")})
    outcome = room.outcome(token(**ELSEWHERE))
    assert outcome.user is not None
    assert outcome.user.groups == ("p:far", "p:away", "system:authenticated")


def test_a_rotated_key_and_groups_that_are_elsewhere_are_both_found_out() -> None:
    far = signed(claims(sub=None, groups=["far"]), NEW_KEY, kid="new").encode()
    room = Room({**ROTATED, ENDPOINT: far})
    outcome = room.outcome(signed(claims(**ELSEWHERE), NEW_KEY, kid="new"))
    assert outcome.user is not None
    assert outcome.user.groups[0] == "p:far"
    assert room.world.urls == [JWKS, ENDPOINT]


def test_groups_that_are_elsewhere_are_believed_for_a_moment() -> None:
    room = Room({ENDPOINT: groups_of_jane("far")})
    for now in (NOW, NOW + DISTRIBUTED_TTL, NOW + DISTRIBUTED_TTL + SECOND):
        room.user(token(**ELSEWHERE), now)
    assert room.world.urls == [ENDPOINT, ENDPOINT]


def test_groups_that_are_elsewhere_are_not_believed_longer_than_the_token() -> None:
    room = Room({ENDPOINT: groups_of_jane("far")})
    short = token(**ELSEWHERE, exp=NOW.timestamp() + 1)
    assert room.user(short) == "p:jane"
    assert room.refusal(short, NOW + 2 * SECOND)[0] == "expired"


def test_groups_that_cannot_be_fetched_refuse() -> None:
    room = Room()
    assert room.refusal(token(**ELSEWHERE)) == (
        "distributed-claim", f"issuer {ISSUER}: the claim groups: its source: the provider answers 404",
    )  # fmt: skip
    room.world.pages[ENDPOINT] = groups_of_jane("far")
    assert room.user(token(**ELSEWHERE)) == "p:jane", "a failure is not remembered"


def test_who_waits_for_the_same_groups_waits_together() -> None:
    room = Room()
    one, same = (room.first(token(**ELSEWHERE)).key for _ in range(2))
    other = room.first(token(**ELSEWHERE, jti="other")).key
    assert one == same != other


def test_an_unverified_token_makes_nobody_ask_a_source() -> None:
    room = Room({ENDPOINT: groups_of_jane("far")})
    room.refusal(signed(claims(**ELSEWHERE), STRANGER))
    assert ENDPOINT not in room.world.urls


def test_what_was_found_for_an_issuer_that_is_gone_is_not_remembered() -> None:
    room = Room({ENDPOINT: groups_of_jane("far")})
    later = room.first(token(**ELSEWHERE))
    verdict = room.world.run(later.exchange(NOW))
    room.authenticator.replace([])
    later.on_verdict(verdict, NOW)
    assert room.first(token(**ELSEWHERE)) == NotMine()
    room.authenticator.replace([room.issuer])
    assert isinstance(room.first(token(**ELSEWHERE)), Deferred)


def test_reasons_never_hold_the_token_or_a_value_of_it() -> None:
    room = Room()
    for offered in (token(sub=["topsecret"]), signed(claims(sub="topsecret"), STRANGER)):
        code, detail = room.refusal(offered)
        assert "topsecret" not in f"{code}{detail}"
        assert offered.split(".")[2] not in detail


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "exp", "nbf", "sub", "groups", "jti"]), st.none() | st.text() | st.integers()
    )
)
def test_any_claims_give_a_verdict(changed: dict[str, Any]) -> None:
    assert isinstance(ROOM.first(token(**changed)), Accepted | NotMine | Rejected | Deferred)


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_any_segments_give_a_verdict(header: bytes, payload: bytes, signature: bytes) -> None:
    text = b".".join((header, payload, signature))
    assert isinstance(ROOM.first(text), Accepted | NotMine | Rejected | Deferred)


ROOM = Room()


def test_an_acceptance_stands_on_the_keys_and_the_configuration() -> None:
    room = Room()
    accepted = room.first(token())
    assert room.first(token()).basis == accepted.basis != b""
    room.issuer.learn(published(public(NEW_KEY)), NOW)
    unknown = room.first(token())
    assert isinstance(unknown, Deferred)
    assert unknown.basis != accepted.basis
    room.issuer.learn(published(), NOW)
    room.authenticator.replace([room.issuer])
    assert room.first(token()).basis != accepted.basis
