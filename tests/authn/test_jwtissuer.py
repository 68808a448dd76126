"""What is known of an issuer, and when it may be asked again.

Source: docs/protocol/openid-connect.md.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.authn.claims import Claim, Identification
from mooring.authn.oidc.authenticator import HOLD, KEEP, REFRESH_SECONDS, IssuerConfig, JwtIssuer, Published
from mooring.pki.jwt.keyset import parse_key_set
from tests.support.jwtsigner import key_for, key_set, public

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
CONFIG = IssuerConfig(
    url="https://i", audiences=("k",), identification=Identification(username=Claim("sub")), discovery_url="https://d"
)


def published(which: int = 0) -> Published:
    return Published(parse_key_set(key_set(public(key_for("ES256", which)))), "https://i/jwks", HOUR)


def test_whom_to_ask_is_what_the_configuration_says() -> None:
    issuer = JwtIssuer(CONFIG, "oidc/1")
    assert (issuer.provider.issuer, issuer.provider.target, issuer.provider.document_url) == (
        "https://i", "oidc/1", "https://d",
    )  # fmt: skip
    assert issuer.config.expected.audiences == ("k",)
    assert len(issuer.config.expected.algorithms) == 9


def test_nothing_is_known_until_it_is_learnt() -> None:
    issuer = JwtIssuer(CONFIG, "")
    assert issuer.known(NOW) is None
    assert issuer.problem
    issuer.fail("no answer")
    assert (issuer.known(NOW), issuer.problem) == (None, "no answer")
    issuer.learn(published(), NOW)
    assert issuer.known(NOW) == published()
    assert not issuer.problem


@pytest.mark.parametrize(
    ("later", "known"),
    [
        pytest.param(HOUR, True, id="at the end of their life"),
        pytest.param(HOUR + KEEP, True, id="a day later, with a provider that is down"),
        pytest.param(HOUR + KEEP + timedelta(seconds=1), False, id="later than that"),
    ],
)
def test_keys_are_kept_while_the_provider_is_down_but_not_for_ever(later: timedelta, known: bool) -> None:
    issuer = JwtIssuer(CONFIG, "")
    issuer.learn(published(), NOW)
    issuer.fail("down")
    assert (issuer.known(NOW + later) is not None) is known


def test_changes_are_counted_when_the_keys_are_others() -> None:
    issuer = JwtIssuer(CONFIG, "")
    counts = []
    for which in (0, 0, 1, 0):
        issuer.learn(published(which), NOW)
        counts.append(issuer.changes)
    assert counts == [1, 1, 2, 3]


def test_who_comes_while_it_is_asked_may_wait_for_the_answer() -> None:
    issuer = JwtIssuer(CONFIG, "")
    assert [issuer.may_fetch(NOW), issuer.may_fetch(NOW)] == [True, True]
    issuer.fetch_ended()
    assert not issuer.may_fetch(NOW)


def test_it_may_be_asked_because_of_a_token_once_in_a_while() -> None:
    issuer = JwtIssuer(CONFIG, "")
    allowed = []
    for now in (NOW, NOW, NOW + HOLD - timedelta(seconds=1), NOW + HOLD, NOW + HOLD, NOW):
        allowed.append(issuer.may_fetch(now))
        issuer.fetch_ended()
    assert allowed == [True, False, False, True, False, True], "a clock that went back asks"
    assert timedelta(seconds=REFRESH_SECONDS) < HOLD, "who waited must be told what was found, not to ask again"


def test_each_change_of_the_keys_is_reported_once() -> None:
    changes: list[str] = []
    issuer = JwtIssuer(CONFIG, "", lambda: changes.append("changed"))
    for which, reported in ((0, 1), (0, 1), (1, 2)):
        issuer.learn(published(which), NOW)
        assert len(changes) == reported
