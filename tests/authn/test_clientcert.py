"""Client certificates.

Source: docs/protocol/authentication.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from mooring.api.view import Views
from mooring.authn.anonymous import Anonymous
from mooring.authn.chain import authenticate
from mooring.authn.credentials import SECRET, Authenticator, Credentials, PeerMemo
from mooring.authn.revocations import NO_COMMON_NAME
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.authn.x509 import ClientCertificateAuthenticator
from mooring.identity import AUTHENTICATED, CREDENTIAL_ID, NODE_NAME, UserInfo
from mooring.pki.keys import generate_key
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.verify import ClientTrust, ReadChain, VerifiedPeer
from mooring.secret import Secret
from tests.support.emptyviews import EMPTY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
CA = self_signed_ca(generate_key(), "kubernetes", NOW, 1)
OTHER_CA = self_signed_ca(generate_key(), "elsewhere", NOW, 2)
KEY = generate_key()


def leaf(name: str = "jane", groups: tuple[str, ...] = ("dev", "ops"), authority: Authority = CA) -> bytes:
    template = profiles.client(KEY.public_key(), NOW, name, groups, DAY)
    return authority.sign(template, NOW, 3).der


class CountingTrust(ClientTrust):
    """Counts the walks of the chain."""

    walks = 0

    def verify_read(self, chain: ReadChain, now: datetime | None) -> VerifiedPeer:
        self.walks += 1
        return super().verify_read(chain, now)


def judged(authenticator: ClientCertificateAuthenticator, credentials: Credentials, now: datetime = NOW) -> Verdict:
    return authenticator.authenticate(credentials, EMPTY, now, ())


def trusting() -> tuple[CountingTrust, ClientCertificateAuthenticator]:
    trust = CountingTrust([CA.certificate])
    return trust, ClientCertificateAuthenticator(trust)


def test_the_common_name_is_the_user_and_the_organizations_are_the_groups() -> None:
    der = leaf()
    _, authenticator = trusting()
    extra = {CREDENTIAL_ID: (f"X509SHA256={hashlib.sha256(der).hexdigest()}",)}
    assert judged(authenticator, Credentials((der,))) == Accepted(UserInfo("jane", "", ("dev", "ops"), extra))


@pytest.mark.parametrize(
    ("name", "unit", "machine"),
    [
        pytest.param("system:k3s-controller", "system:node:n1", ("n1",), id="a user that all machines share"),
        pytest.param("system:node:n1", "", None, id="a node itself"),
        pytest.param("jane", "", None, id="a person"),
    ],
)
def test_a_certificate_that_is_bound_to_a_machine_names_it(
    name: str, unit: str, machine: tuple[str, ...] | None
) -> None:
    template = profiles.client(KEY.public_key(), NOW, name, (), DAY)
    subject = names.subject(name, unit=unit) if unit else template.subject
    der = CA.sign(replace(template, subject=subject), NOW, 3).der
    authenticator = ClientCertificateAuthenticator(ClientTrust([CA.certificate]), checks=())
    verdict = judged(authenticator, Credentials((der,)))
    assert isinstance(verdict, Accepted)
    assert verdict.user.extra.get(NODE_NAME) == machine


def test_no_certificate_is_not_mine() -> None:
    assert judged(trusting()[1], Credentials()) == NotMine()


def test_a_certificate_without_a_common_name_is_not_mine() -> None:
    assert judged(trusting()[1], Credentials((leaf(name=""),))) == NotMine(NO_COMMON_NAME)


@pytest.mark.parametrize(
    ("der", "now", "code"),
    [
        pytest.param(leaf(authority=OTHER_CA), NOW, "unknown-ca", id="of a CA nobody told us to believe"),
        pytest.param(b"junk", NOW, "malformed", id="that is none"),
        pytest.param(leaf(), NOW + DAY + DAY, "expired", id="that expired"),
        pytest.param(leaf(), NOW - DAY, "not-yet-valid", id="from the future"),
    ],
)
def test_a_certificate_is_refused(der: bytes, now: datetime, code: str) -> None:
    verdict = judged(trusting()[1], Credentials((der,)), now)
    assert isinstance(verdict, Rejected)
    assert verdict.reason == code
    assert verdict.detail


def test_the_chain_is_walked_once_per_connection_and_dates_are_checked_on_every_request() -> None:
    trust, authenticator = trusting()
    connection = Credentials((leaf(),), memo=PeerMemo())
    assert [type(judged(authenticator, connection, NOW + hour * DAY / 24)) for hour in range(20)] == [Accepted] * 20
    assert trust.walks == 1
    late = judged(authenticator, connection, NOW + 2 * DAY)
    assert isinstance(late, Rejected)
    assert late.reason == "expired"


def test_a_refusal_is_remembered_unless_it_was_about_time() -> None:
    trust, authenticator = trusting()
    foreign = Credentials((leaf(authority=OTHER_CA),))
    assert judged(authenticator, foreign) == judged(authenticator, foreign)
    assert trust.walks == 1
    early = Credentials((leaf(),))
    assert isinstance(judged(authenticator, early, NOW - DAY), Rejected)
    assert isinstance(judged(authenticator, early, NOW), Accepted)


def test_another_bundle_of_cas_asks_anew() -> None:
    connection = Credentials((leaf(),))
    assert isinstance(judged(trusting()[1], connection), Accepted)
    assert isinstance(judged(ClientCertificateAuthenticator(ClientTrust([OTHER_CA.certificate])), connection), Rejected)


def test_a_memo_never_lends_one_peer_the_identity_of_another() -> None:
    _, authenticator = trusting()
    memo = PeerMemo()
    names = []
    for name in ("jane", "joe"):
        verdict = judged(authenticator, Credentials((leaf(name),), memo=memo))
        assert isinstance(verdict, Accepted)
        names.append(verdict.user.username)
    assert names == ["jane", "joe"]


class GoodBearer:
    name = "good-bearer"
    judges = SECRET

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return NotMine() if credentials.bearer is None else Accepted(UserInfo("bearer"))


@pytest.mark.parametrize(
    ("credentials", "username"),
    [
        pytest.param(Credentials((leaf(authority=OTHER_CA),)), None, id="unverifiable alone is 401"),
        pytest.param(
            Credentials((leaf(authority=OTHER_CA),), Secret("t")),
            "bearer",
            id="unverifiable beside a good bearer passes",
        ),
        pytest.param(Credentials((leaf(),), Secret("t")), "jane", id="a good certificate is asked before the bearer"),
        pytest.param(Credentials((leaf(name=""),)), "system:anonymous", id="an empty common name is anonymous"),
    ],
)
def test_certificates_in_the_chain(credentials: Credentials, username: str | None) -> None:
    chain: tuple[Authenticator, ...] = (trusting()[1], GoodBearer(), Anonymous())
    outcome = authenticate(credentials, chain, EMPTY, NOW, ())
    assert (outcome.user.username if outcome.user else None) == username
    if username == "jane":
        assert outcome.user is not None
        assert outcome.user.groups == ("dev", "ops", AUTHENTICATED)


def test_an_accepted_chain_is_remembered_across_connections_until_a_date_passes() -> None:
    trust, authenticator = trusting()
    der = leaf()
    for _ in range(3):
        assert isinstance(judged(authenticator, Credentials((der,))), Accepted)
    assert trust.walks == 1
    assert judged(authenticator, Credentials((der,)), NOW + 2 * DAY) == Rejected("expired", ANY)
    assert trust.walks == 2


def test_the_oldest_chain_is_forgotten_when_too_many_are_remembered() -> None:
    trust = CountingTrust([CA.certificate])
    authenticator = ClientCertificateAuthenticator(trust, max_remembered=1)
    first, second = leaf("jane"), leaf("june")
    for der in (first, second, second, first):
        assert isinstance(judged(authenticator, Credentials((der,))), Accepted)
    assert trust.walks == 3
