"""Issuers of join rules that do not give their keys, as the server reports them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mooring.api.mooring.joinrule import PLURAL
from mooring.api.view import FixedView, Views
from mooring.authn.credentials import Credentials
from mooring.authn.joinrule import JoinRuleAuthenticator
from mooring.authn.oidc.authenticator import KEEP, Published
from mooring.authn.verdict import Deferred
from mooring.pki.jwt.keyset import parse_key_set
from mooring.secret import Secret
from tests.support.jwtsigner import key_for, key_set, public, signed

NOW = datetime(2026, 11, 30, tzinfo=UTC)
URL = "https://ci.example"
RULE = {
    "metadata": {"name": "ci"},
    "spec": {"issuer": {"url": URL}, "audiences": ["here"], "claims": [{"claim": "sub", "value": "x"}]},
}


def judged(authenticator: JoinRuleAuthenticator, views: Views) -> object:
    claims = {"iss": URL, "aud": "here", "sub": "x", "exp": int(NOW.timestamp()) + 60}
    bearer = Secret(signed(claims, key_for("ES256"), "ES256"))
    return authenticator.authenticate(Credentials(bearer=bearer), views, NOW, ())


def test_an_issuer_without_keys_is_reported_until_it_gives_them_or_its_rule_ends() -> None:
    authenticator = JoinRuleAuthenticator(lambda url, ca: "target")
    assert authenticator.unready() == []
    assert isinstance(judged(authenticator, {PLURAL: FixedView([RULE])}), Deferred)
    (issuer,) = authenticator.issuers
    issuer.fail("it answers 503")
    assert authenticator.unready() == [{"issuer": URL, "problem": "it answers 503", "keysKnownUntil": ""}]
    keys = parse_key_set(key_set(public(key_for("ES256"))))
    issuer.learn(Published(keys, "", timedelta(hours=1)), NOW)
    assert authenticator.unready() == []
    issuer.fail("it answers 503")
    (found,) = authenticator.unready()
    assert found["keysKnownUntil"] == "2026-12-01T01:00:00Z"
    assert NOW + timedelta(hours=1) + KEEP == issuer.known_until
    judged(authenticator, {PLURAL: FixedView([], revision=2)})
    assert authenticator.unready() == []
