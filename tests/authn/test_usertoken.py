"""Tokens that a login hands out: who they are, and every way of not being one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn import signedtokens
from mooring.authn.credentials import Credentials
from mooring.authn.login import CLAIM, ISSUER, UserTokenAuthenticator, claims_of
from mooring.authn.reasons import MALFORMED_CLAIMS
from mooring.authn.serviceaccount import ServiceAccountAuthenticator
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.errors import ConfigError
from mooring.identity import CREDENTIAL_ID, UserInfo
from mooring.pki.jwt.keyset import KeySet, key_set_of
from mooring.pki.jwt.serviceaccount import Bound, bound_claims
from mooring.pki.jwt.token import TokenSigner, verify_token
from mooring.pki.keys import generate_key
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SIGNER = TokenSigner(generate_key(), "https://mooring.example")
STRANGER = TokenSigner(generate_key(), "https://mooring.example")
KEYS = key_set_of([SIGNER.public_key])
JANE = UserInfo("jane", "42", ("dev", "ops"), {"scopes": ("a", "b")})


def claims(user: UserInfo = JANE, **changed: Any) -> dict[str, Any]:
    made = claims_of(user, audiences=("api", "vault"), now=NOW, lifetime=HOUR, token_id="id-1")
    return {key: value for key, value in {**made, **changed}.items() if value is not None}


def said(**changed: Any) -> dict[str, Any]:
    return {**claims()[CLAIM], **changed}


def judged(
    token: str | bytes | None,
    now: datetime = NOW,
    audiences: tuple[str, ...] = ("api",),
    by: UserTokenAuthenticator | None = None,
) -> Verdict:
    credentials = Credentials(bearer=None if token is None else Secret(token))
    return (by or UserTokenAuthenticator(KEYS)).authenticate(credentials, {}, now, audiences)


def reason(verdict: Verdict) -> str:
    return verdict.reason if isinstance(verdict, Rejected) else ""


def test_a_good_token_restores_who_logged_in() -> None:
    user = UserInfo("jane", "42", ("dev", "ops"), {"scopes": ("a", "b"), CREDENTIAL_ID: ("JTI=id-1",)})
    assert judged(SIGNER.sign(claims())) == Accepted(user, ("api",))


def test_a_server_that_asks_for_no_audience_gets_all_of_the_token() -> None:
    verdict = judged(SIGNER.sign(claims()), audiences=())
    assert isinstance(verdict, Accepted)
    assert verdict.audiences == ("api", "vault")


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(None, id="no bearer"),
        pytest.param("abcdef.0123456789abcdef", id="a bootstrap token"),
        pytest.param(b"\xff", id="bytes that are no text"),
        pytest.param(SIGNER.sign(claims(iss="https://mooring.example")), id="the issuer of ServiceAccount tokens"),
        pytest.param(SIGNER.sign(claims(iss=[ISSUER])), id="an issuer that is no text"),
        pytest.param(SIGNER.sign(claims(iss=None)), id="no issuer"),
    ],
)
def test_not_mine(token: str | bytes | None) -> None:
    assert judged(token) == NotMine()


WRONG: dict[str, dict[str, Any]] = {
    "no claim of ours": {CLAIM: None},
    "a claim of ours that is no object": {CLAIM: []},
    "no user": {"sub": None},
    "an empty user": {"sub": ""},
    "a user that is no text": {"sub": 1},
    "no id": {"jti": None},
    "one audience that is no list": {"aud": "api"},
    "an audience that is no text": {"aud": [1]},
    "a uid that is no text": {CLAIM: said(uid=1)},
    "groups that are no list": {CLAIM: said(groups="dev")},
    "a group that is no text": {CLAIM: said(groups=[1])},
    "extra that is no object": {CLAIM: said(extra=[])},
    "extra values that are no list": {CLAIM: said(extra={"k": "v"})},
    "a user of the system": {"sub": "system:admin"},
    "a group of the system": {CLAIM: said(groups=["dev", "system:masters"])},
}


@pytest.mark.parametrize(
    ("token", "now", "code"),
    [
        pytest.param(STRANGER.sign(claims()), NOW, "unknown-key", id="a key of somebody else"),
        pytest.param(SIGNER.sign(claims())[:-6] + "AAAAAA", NOW, "bad-signature", id="a changed signature"),
        pytest.param(
            SIGNER.sign(claims()), NOW + HOUR + timedelta(seconds=61), "expired", id="past its time and leeway"
        ),
        pytest.param(SIGNER.sign(claims()), NOW - timedelta(seconds=61), "not-yet-valid", id="before its time"),
        pytest.param(SIGNER.sign(claims(exp=None)), NOW, "missing-expiry", id="without an end"),
        pytest.param(SIGNER.sign(claims(aud=["vault"])), NOW, "wrong-audience", id="for somebody else"),
        *(
            pytest.param(SIGNER.sign(claims(**changed)), NOW, MALFORMED_CLAIMS, id=what)
            for what, changed in WRONG.items()
        ),
    ],
)
def test_mine_and_bad(token: str, now: datetime, code: str) -> None:
    assert reason(judged(token, now)) == code


def test_a_service_account_token_is_none_and_this_is_none_of_a_service_account() -> None:
    issuer = "https://mooring.example"
    bound = bound_claims(
        issuer=issuer,
        namespace="ns",
        service_account=Bound("sa", "u"),
        audiences=("api",),
        now=NOW,
        lifetime=HOUR,
        jti="1",
    )
    assert judged(SIGNER.sign(bound)) == NotMine()
    accounts = ServiceAccountAuthenticator((issuer,), KEYS)
    credentials = Credentials(bearer=Secret(SIGNER.sign(claims())))
    assert accounts.authenticate(credentials, {}, NOW, ("api",)) == NotMine()


def test_no_issuer_of_service_account_tokens_can_be_called_as_ours_is() -> None:
    with pytest.raises(ConfigError, match="cannot be an issuer"):
        ServiceAccountSettings.read({"service_account_issuer": (ISSUER,)})


def test_a_token_is_verified_once_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[datetime] = []

    def counted(text: str, keys: KeySet, now: datetime, **rest: Any) -> dict[str, Any]:
        verified.append(now)
        return verify_token(text, keys, now, **rest)

    monkeypatch.setattr(signedtokens, "verify_token", counted)
    by = UserTokenAuthenticator(KEYS)
    token = SIGNER.sign(claims())
    for now in (NOW, NOW + HOUR / 2, NOW + HOUR):
        assert isinstance(judged(token, now, by=by), Accepted)
    assert verified == [NOW]
    assert reason(judged(token, NOW + HOUR + timedelta(seconds=90), by=by)) == "expired"


def test_new_keys_are_in_force_for_tokens_that_were_seen_before() -> None:
    by = UserTokenAuthenticator(KEYS)
    token = SIGNER.sign(claims())
    assert isinstance(judged(token, by=by), Accepted)
    by.replace(key_set_of([STRANGER.public_key]))
    assert reason(judged(token, by=by)) == "unknown-key"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda text: not text.startswith("system:")
)


@given(
    user=st.builds(
        UserInfo,
        TEXT.filter(bool),
        TEXT,
        st.lists(TEXT, max_size=4).map(tuple),
        st.dictionaries(TEXT, st.lists(TEXT, max_size=3).map(tuple), max_size=3),
    )
)
def test_whoever_logged_in_is_who_comes_back(user: UserInfo) -> None:
    verdict = judged(SIGNER.sign(claims(user)))
    assert isinstance(verdict, Accepted)
    extra = {**user.extra, CREDENTIAL_ID: ("JTI=id-1",)}
    assert verdict.user == UserInfo(user.username, user.uid, user.groups, extra)


@given(st.binary(max_size=300))
def test_any_bytes_get_a_verdict(raw: bytes) -> None:
    assert not isinstance(judged(raw), Accepted)
