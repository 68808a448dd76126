"""Checks of verified client certificates: their table, and how long a result is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView, Views
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, Rejected, Verdict
from mooring.authn.x509 import (
    CHECKS,
    READ_PLURALS,
    CertificateCheck,
    ClientCertificateVerifier,
    rejection,
    revisions,
    stateless,
)
from mooring.identity import UserInfo
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.clientcertificate import ClientCertificate
from mooring.pki.x509.verify import ClientTrust, ReadChain, VerifiedPeer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA = self_signed_ca(generate_key(), "kubernetes", NOW, 1)
DER = CA.sign(profiles.client(generate_key().public_key(), NOW, "jane"), NOW, 3).der


class Recording:
    """Check that rejects while the view holds an object, and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, peer: ClientCertificate, views: Views, now: datetime) -> Rejected | None:
        self.runs += 1
        return Rejected("listed", peer.common_name) if views["lists"].get("jane") else None


def listed(revision: int) -> Views:
    return {"lists": FixedView([{"metadata": {"name": "jane"}}], revision)}


def unlisted(revision: int) -> Views:
    return {"lists": FixedView([], revision)}


def peers(recording: Recording) -> ClientCertificateVerifier:
    return ClientCertificateVerifier(
        ClientTrust([CA.certificate]),
        lambda peer: Accepted(UserInfo(peer.common_name)),
        checks=(CertificateCheck(("lists",), recording),),
    )


ACCEPTED: Verdict = Accepted(UserInfo("jane"))
REJECTED: Verdict = Rejected("listed", "jane")


@pytest.mark.parametrize(
    ("requests", "verdicts", "runs"),
    [
        pytest.param([unlisted(1)] * 5, [ACCEPTED] * 5, 1, id="runs once while no view changes"),
        pytest.param([unlisted(1), unlisted(2)], [ACCEPTED] * 2, 2, id="runs again after a change"),
        pytest.param([unlisted(1), listed(2)], [ACCEPTED, REJECTED], 2, id="rejects on an open connection"),
        pytest.param([listed(1), listed(1)], [REJECTED] * 2, 1, id="remembers a rejection, too"),
        pytest.param([listed(1), unlisted(2)], [REJECTED, ACCEPTED], 2, id="accepts once the entry is gone"),
    ],
)
def test_a_check(requests: Sequence[Views], verdicts: Sequence[Verdict], runs: int) -> None:
    recording = Recording()
    judge, connection = peers(recording), Credentials((DER,))
    assert [judge.judged(connection, views, NOW) for views in requests] == list(verdicts)
    assert recording.runs == runs


def test_connections_with_one_certificate_share_the_result() -> None:
    recording = Recording()
    judge = peers(recording)
    assert [judge.judged(Credentials((DER,)), unlisted(1), NOW) for _ in range(3)] == [ACCEPTED] * 3
    assert recording.runs == 1
    assert judge.judged(Credentials((DER,)), listed(2), NOW) == REJECTED


def test_a_certificate_that_does_not_verify_is_not_checked() -> None:
    recording = Recording()
    verdict = peers(recording).judged(Credentials((b"junk",)), {}, NOW)
    assert isinstance(verdict, Rejected)
    assert (verdict.reason, recording.runs) == ("malformed", 0)


@pytest.mark.parametrize("past", [True, False], ids=["expired", "not yet valid"])
def test_a_chain_that_is_refused_for_its_time_is_read_once_a_second(past: bool) -> None:
    """A long one takes milliseconds, and anyone may present one."""

    class Counting(ClientTrust):
        walks = 0

        def verify_read(self, chain: ReadChain, now: datetime | None) -> VerifiedPeer:
            self.walks += 1
            return super().verify_read(chain, now)

    trust, connection = Counting([CA.certificate]), Credentials((DER,))
    judge = ClientCertificateVerifier(trust, lambda peer: Accepted(UserInfo(peer.common_name)), checks=())
    outside = NOW + timedelta(days=4000) if past else NOW - timedelta(minutes=6)
    for milliseconds in (0, 1, 999):
        assert isinstance(judge.judged(connection, {}, outside + timedelta(milliseconds=milliseconds)), Rejected)
    assert trust.walks == 1
    judge.judged(connection, {}, outside + timedelta(seconds=1))
    assert trust.walks == 2
    assert judge.judged(connection, {}, NOW) == ACCEPTED, "the clock was set"


def test_the_first_rejection_counts() -> None:
    def rejecting(reason: str) -> CertificateCheck:
        return CertificateCheck((), lambda peer, views, now: Rejected(reason))

    peer = ClientTrust([CA.certificate]).verify((DER,), NOW)
    passing = CertificateCheck((), lambda peer, views, now: None)
    assert rejection(peer, {}, NOW, (passing, rejecting("first"), rejecting("second"))) == Rejected("first")
    assert rejection(peer, {}, NOW, (passing,)) is None


def test_every_check_names_stored_kinds() -> None:
    assert set(READ_PLURALS) == {plural for check in CHECKS for plural in check.reads}
    assert set(READ_PLURALS) <= set(BY_PLURAL)
    assert len(revisions({plural: FixedView() for plural in READ_PLURALS})) == len(READ_PLURALS)


def test_a_peer_names_its_key_its_issuer_and_when_it_was_issued() -> None:
    later = NOW + timedelta(days=1)
    key = generate_key()
    der = CA.sign(profiles.client(key.public_key(), later, "jane"), later, 77).der
    own = ClientTrust([CA.certificate], [CA.certificate]).verify((der,), later)
    foreign = ClientTrust([CA.certificate]).verify((der,), later)
    assert (own.serial_number, own.issued_at) == (77, later)
    assert foreign.issued_at == later - profiles.BACKDATE, "another signer may begin certificates at their issue"
    assert own.public_key == f"sha256:{public_key_fingerprint(key)}"
    assert own.issuer == f"sha256:{public_key_fingerprint(CA.certificate.public_key())}"  # type: ignore[arg-type]  # an ECDSA key


def test_a_certificate_of_the_bundle_is_its_own_issuer() -> None:
    root = CA.certificate.der
    peer = ClientTrust([CA.certificate]).verify((root,), NOW)
    assert peer.issuer == peer.public_key


def test_a_check_that_reads_views_alone_has_one_state_at_all_times() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert stateless(now) == stateless(now + timedelta(days=400))
