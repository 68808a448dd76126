"""The cluster's CA as it is now: the CA that issues, the CAs that are trusted, and the certificates that lead between them."""

from __future__ import annotations

import secrets
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.pki.errors import IssueError
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import MAX_CROSS_SIGNED, CaState, ClusterCa, cross_sign
from tests.support.testca import ThrowawayCA

CAS = [ThrowawayCA(f"ca-{number}") for number in range(6)]
A, B, C = CAS[:3]
NOW = A.now


def cross_signed(subject: ThrowawayCA, issuer: ThrowawayCA, **changed: timedelta) -> Certificate:
    """The key of `subject` certified by `issuer`."""
    name = f"ca-{CAS.index(subject)}"
    template = profiles.certificate_authority(subject.key.public_key(), NOW, name, **changed)
    return issuer.authority.sign(template, NOW, x509.random_serial_number())


B_BY_A, A_BY_B, C_BY_B = cross_signed(B, A), cross_signed(A, B), cross_signed(C, B)


def test_the_ca_of_the_key_issues_and_the_whole_bundle_is_trusted_in_its_order() -> None:
    bundle = (A.certificate, B.certificate, A.certificate)
    for issuing in (A, B):
        state = CaState.of_files(bundle, issuing.key, (B_BY_A,), (A.certificate, C.certificate))
        assert state.authority.certificate == issuing.certificate
        assert state.trusted == (A.certificate, B.certificate)
        assert state.cross_signed == (B_BY_A,)
        assert state.retired == (C.certificate,), "a trusted CA is not retired"


def test_a_certificate_that_makes_a_former_key_a_ca_for_clients_is_dropped_and_its_key_counts_as_given_up() -> None:
    state = CaState.of_files((B.certificate,), B.key, (A_BY_B, B_BY_A))
    assert (state.cross_signed, state.compromised, state.distrusted) == ((B_BY_A,), (A_BY_B,), (A_BY_B,))
    retired = CaState.of_files((B.certificate,), B.key, (A_BY_B, B_BY_A), (A.certificate,))
    assert (retired.cross_signed, retired.compromised, retired.retired) == ((B_BY_A,), (), (A.certificate,))


def test_a_signature_is_what_an_earlier_version_kept_of_a_compromised_ca() -> None:
    state = CaState.of_files((B.certificate,), B.key, (B_BY_A,))
    assert (state.cross_signed, state.distrusted, state.forgotten) == ((B_BY_A,), (), (B_BY_A,))
    assert ClusterCa(state).forgotten == (B_BY_A,)
    for listed in ({"retired": (A.certificate,)}, {"distrusted": (A.certificate,)}, {"cross_signed": (A_BY_B, B_BY_A)}):
        assert CaState.of_files((B.certificate,), B.key, **{"cross_signed": (B_BY_A,), **listed}).forgotten == ()
    both = CaState.of_files((B.certificate, A.certificate), B.key, (B_BY_A,))
    assert both.forgotten == (), "a rollover is under way"
    servers = cross_sign(B.certificate, A.authority, NOW, secrets.token_bytes)
    assert CaState.of_files((B.certificate,), B.key, (servers,)).forgotten == ()


def test_a_certificate_for_servers_or_by_a_ca_that_is_not_trusted_is_kept() -> None:
    servers = cross_sign(A.certificate, B.authority, NOW, secrets.token_bytes)
    kept = (servers, C_BY_B, B_BY_A)
    assert CaState.of_files((B.certificate, C.certificate), B.key, kept).cross_signed == kept
    stranger = ThrowawayCA("ca-1", NOW)
    assert CaState.of_files((stranger.certificate,), stranger.key, (A_BY_B,)).cross_signed == (A_BY_B,), "another key"


@pytest.mark.parametrize(
    ("bundle", "message"),
    [
        pytest.param((), "the bundle of CAs is empty", id="no certificate"),
        pytest.param((A.certificate, B.certificate), "does not belong to its certificate", id="of other keys"),
    ],
)
def test_a_bundle_without_the_certificate_of_the_key_is_refused(bundle: tuple[Certificate, ...], message: str) -> None:
    with pytest.raises(IssueError, match=message):
        CaState.of_files(bundle, generate_key())


def test_a_certificate_of_the_key_that_is_no_ca_is_refused() -> None:
    key = generate_key()
    leaf = A.authority.sign(profiles.client(key.public_key(), NOW, "jane"), NOW, 7)
    with pytest.raises(IssueError, match="is not a CA"):
        CaState.of_files((leaf, B.certificate), key)


@pytest.mark.parametrize(
    ("issuing", "kept", "chain"),
    [
        pytest.param(A, (), (), id="one CA"),
        pytest.param(B, (B_BY_A, A_BY_B), (B_BY_A,), id="the new CA issues"),
        pytest.param(A, (B_BY_A, A_BY_B), (A_BY_B,), id="the old CA issues"),
        pytest.param(C, (B_BY_A, C_BY_B), (C_BY_B, B_BY_A), id="over two rollovers"),
        pytest.param(
            B, (cross_signed(B, A, lifetime=timedelta(minutes=1)),), (), id="a certificate that expired in the meantime"
        ),
    ],
)
def test_the_chain_above_an_issuer_leads_to_the_other_cas(
    issuing: ThrowawayCA, kept: tuple[Certificate, ...], chain: tuple[Certificate, ...]
) -> None:
    state = CaState(issuing.authority, (issuing.certificate,), kept)
    assert state.chain_above(issuing.certificate, NOW + timedelta(hours=1)) == chain


def test_the_chain_above_an_issuer_is_bounded() -> None:
    kept = tuple(cross_signed(CAS[number + 1], CAS[number]) for number in range(5))
    assert len(CaState.of(CAS[5].authority).chain_above(CAS[5].certificate, NOW)) == 0
    assert CaState(CAS[5].authority, (), kept).chain_above(CAS[5].certificate, NOW) == kept[::-1][:MAX_CROSS_SIGNED]


def test_holders_see_a_change_at_their_next_use_and_subscribers_at_once() -> None:
    ca, seen = ClusterCa(CaState.of(A.authority)), list[str]()
    ca.subscribe(lambda: seen.append("first"))
    ca.subscribe(lambda: seen.append("second"))
    ca.replace(CaState.of(A.authority))
    assert seen == [], "an equal state changes nothing"
    state = CaState(B.authority, (A.certificate, B.certificate), (B_BY_A,), (C.certificate,))
    ca.replace(state)
    assert seen == ["first", "second"]
    assert ca.state is state
    assert ca.authority is ca.for_signer("kubernetes.io/kube-apiserver-client") is B.authority
    assert ca.trusted == state.trusted
    assert ca.trusted_pem == A.certificate_pem + B.certificate_pem
    assert not ca.superseded, "the CA that issues is not the first"
    ca.replace(CaState(A.authority, (A.certificate, B.certificate), (B_BY_A,), (C.certificate,)))
    assert ca.superseded == (B.certificate,)
    assert ca.retired == (C.certificate,)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_certificate_whose_public_key_cannot_be_read_is_refused(is_first: bool) -> None:
    der = A.certificate.der
    key = A.certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    garbled = Certificate(der.replace(key, key[:-20] + bytes(20)))
    bundle = (garbled, B.certificate) if is_first else (B.certificate, garbled)
    with pytest.raises(IssueError, match="public key"):
        CaState.of_files(bundle, B.key)
