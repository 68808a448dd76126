"""Hash of a CA bundle: of files and chains, what a check accepts, and which CAs it lets the caller trust."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.pki.keys import generate_key
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.trust.k3s.cahash import CaHashError, accepted_hashes, ca_hash, check_ca_hash
from tests.support.slowkeys import rsa_key
from tests.support.testca import Pair, ThrowawayCA

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CA_BIT = (x509.BasicConstraints(True, None), True)
ROOT = ThrowawayCA("root", now=NOW)
OTHER = ThrowawayCA("other", now=NOW)
"""CA of another cluster, or of an attacker."""


def below(issuer: Pair, name: str, not_before: datetime | None = None, not_after: datetime | None = None) -> Pair:
    """Issue the certificate of a CA that names the key of its issuer and its own key, as k3s's do."""
    key = generate_key()
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        CA_BIT,
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), False),
    ]
    return ROOT.custom(name, key=key, issuer=issuer, extensions=extensions, not_before=not_before, not_after=not_after)


ROOT_PAIR = Pair(ROOT.certificate, ROOT.key)
MIDDLE = below(ROOT_PAIR, "middle")
LOW = below(MIDDLE, "low")
ENDED = below(ROOT_PAIR, "ended", NOW - timedelta(days=9), NOW - timedelta(days=8))
SERVERS_ONLY = ROOT.custom(
    "for servers", extensions=[CA_BIT, (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)]
)
CLIENTS_ONLY = ROOT.custom(
    "for clients", extensions=[CA_BIT, (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)]
)
WEAK = ROOT.custom("weak", key=rsa_key(1024), extensions=[CA_BIT])


def bundle(*pairs: Pair | ThrowawayCA) -> bytes:
    return b"".join(one.certificate_pem for one in pairs)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


ROOT_DIGEST = sha256(ROOT_PAIR.der)

CHAINS = {
    "an intermediate and its root": (MIDDLE, ROOT),
    "two intermediates and the root": (LOW, MIDDLE, ROOT),
    "the intermediates in another order": (LOW, ROOT, MIDDLE),
    "another root beside": (LOW, OTHER, MIDDLE, ROOT),
    "a renewed intermediate": (below(ROOT_PAIR, "middle"), ROOT),
    "a root twice": (ROOT, ROOT),
    "a CA for servers": (SERVERS_ONLY, ROOT),
}
"""Bundles whose hash is that of the root's DER."""
BROKEN = {
    "a renewed root and the one before": (
        ROOT.custom("root", key=ROOT.key, issuer=ROOT_PAIR, extensions=[CA_BIT]),
        ROOT,
    ),
    "two roots": (ROOT, OTHER),
    "an intermediate without its root": (LOW, MIDDLE),
    "an intermediate under another root": (MIDDLE, OTHER),
    "the root first": (ROOT, MIDDLE),
    "an expired intermediate": (ENDED, ROOT),
    "a CA for clients": (CLIENTS_ONLY, ROOT),
    "a weak key": (WEAK, ROOT),
}
"""Bundles whose first certificate does not lead to a root: their hash is that of the bytes."""


ROOT_KEY = (x509.SubjectKeyIdentifier.from_public_key(ROOT.key.public_key()), False)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ROOT.certificate_pem, id="as it is written"),
        pytest.param(ROOT.certificate_pem + b"\n", id="a line more"),
        pytest.param(b"# the cluster\n" + ROOT.certificate_pem, id="a comment"),
        pytest.param(ROOT.certificate_pem.replace(b"\n", b"\r\n"), id="other line ends"),
        pytest.param(MIDDLE.certificate_pem, id="an intermediate"),
    ],
)
def test_a_lone_certificate_is_hashed_as_the_bytes_of_its_file(text: bytes) -> None:
    assert ca_hash(text) == ca_hash(text, NOW) == sha256(text)
    digest = sha256(certificates(text)[0].der)
    written = sha256(certificates_pem(certificates(text)))
    assert accepted_hashes(text) == tuple(dict.fromkeys((sha256(text), digest, written)))
    for wanted in (sha256(text), written, digest):
        assert check_ca_hash(text, wanted) == certificates_pem(certificates(text))


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_hashed_as_the_der_of_its_root(chain: tuple[Pair | ThrowawayCA, ...]) -> None:
    text = bundle(*chain)
    assert ca_hash(text) == ca_hash(text, NOW) == ROOT_DIGEST
    assert accepted_hashes(text)[:3] == (ROOT_DIGEST, sha256(text), sha256(ROOT.certificate_pem))
    assert check_ca_hash(text, sha256(text)) == text


@pytest.mark.parametrize("chain", BROKEN.values(), ids=BROKEN)
def test_a_chain_that_does_not_verify_is_hashed_as_bytes(chain: tuple[Pair | ThrowawayCA, ...]) -> None:
    text = bundle(*chain)
    assert ca_hash(text, NOW) == sha256(text)
    assert accepted_hashes(text, NOW)[0] == sha256(text)
    assert check_ca_hash(text, sha256(text), NOW) == text


def test_a_pinned_root_vouches_for_the_path_to_it_alone() -> None:
    """Whoever answers in the server's place adds a CA of his own to the public bundle, and k3s trusts a server of that CA."""
    text = bundle(LOW, OTHER, MIDDLE, ROOT)
    assert check_ca_hash(text, ROOT_DIGEST) == bundle(LOW, MIDDLE, ROOT)
    assert check_ca_hash(text, sha256(ROOT.certificate_pem)) == bundle(LOW, MIDDLE, ROOT)
    assert check_ca_hash(text, sha256(MIDDLE.certificate_pem)) == bundle(MIDDLE)
    assert check_ca_hash(bundle(ROOT, ROOT, OTHER), ROOT_DIGEST) == bundle(ROOT)


def test_a_token_of_the_ca_before_a_rollover_vouches_for_that_ca_alone() -> None:
    new = ThrowawayCA("root", now=NOW)
    for digest in (sha256(ROOT.certificate_pem), ROOT_DIGEST):
        assert check_ca_hash(bundle(new, ROOT, OTHER), digest) == bundle(ROOT)
        assert digest in accepted_hashes(bundle(new, ROOT))


def test_the_first_root_of_the_file_that_verifies_counts() -> None:
    renewed = ROOT.custom(
        "root", key=ROOT.key, issuer=ROOT_PAIR, extensions=[CA_BIT, ROOT_KEY], not_after=NOW + timedelta(days=9)
    )
    assert ca_hash(bundle(MIDDLE, renewed, ROOT), NOW) == sha256(renewed.der)
    assert ca_hash(bundle(MIDDLE, ROOT, renewed), NOW) == ROOT_DIGEST


def test_a_root_whose_key_is_named_counts_before_one_without_an_identifier() -> None:
    """As in Go's `findPotentialParents`."""
    renewed = ROOT.custom("root", key=ROOT.key, issuer=ROOT_PAIR, extensions=[CA_BIT])
    assert ca_hash(bundle(MIDDLE, renewed, ROOT), NOW) == ROOT_DIGEST


def test_the_time_decides_between_roots() -> None:
    ended = ROOT.custom("root", key=ROOT.key, issuer=ROOT_PAIR, extensions=[CA_BIT, ROOT_KEY], not_after=NOW)
    text = bundle(MIDDLE, ended, ROOT)
    assert ca_hash(text, NOW) == sha256(ended.der)
    assert ca_hash(text, NOW + timedelta(seconds=1)) == ROOT_DIGEST


def test_without_a_time_the_periods_need_only_overlap() -> None:
    early = ThrowawayCA("early", now=NOW - timedelta(days=900))
    issuer = Pair(early.certificate, early.key)
    ended = below(issuer, "ended", NOW - timedelta(days=9), NOW - timedelta(days=8))
    assert ca_hash(bundle(ended, early), NOW) == sha256(bundle(ended, early))
    assert ca_hash(bundle(ended, early)) == sha256(issuer.der)
    assert ca_hash(bundle(ENDED, ROOT)) == sha256(bundle(ENDED, ROOT)), "the root began after its end"


def test_other_blocks_are_skipped() -> None:
    text = ROOT.certificate_pem + MIDDLE.key_pem
    assert ca_hash(text) == sha256(text)
    assert check_ca_hash(text, sha256(text)) == ROOT.certificate_pem


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(MIDDLE.key_pem, id="no certificate"),
        pytest.param(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", id="no DER"),
    ],
)
def test_what_is_no_bundle_is_refused(text: bytes) -> None:
    for attempt in (ca_hash, accepted_hashes, lambda data: check_ca_hash(data, ROOT_DIGEST)):
        with pytest.raises(CaHashError, match="the CA bundle of the cluster cannot be read: "):
            attempt(text)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        pytest.param(sha256(b""), sha256(b""), id="of no bytes"),
        pytest.param(sha256(OTHER.certificate_pem), sha256(OTHER.certificate_pem), id="of another CA"),
        pytest.param(ROOT_DIGEST.upper(), "no SHA-256 in lower-case hexadecimal digits", id="in upper case"),
        pytest.param("", "no SHA-256 in lower-case hexadecimal digits", id="empty"),
        pytest.param("hunter2" * 9 + "x", "no SHA-256 in lower-case hexadecimal digits", id="a password"),
    ],
)
def test_another_hash_is_refused_by_an_error_with_both(wanted: str, named: str) -> None:
    with pytest.raises(CaHashError) as raised:
        check_ca_hash(ROOT.certificate_pem, wanted)
    expected = (
        f"token CA hash does not match the Cluster CA certificate hash: {named} != {sha256(ROOT.certificate_pem)}; "
    )
    assert str(raised.value).startswith(expected)
    assert "hunter2" not in str(raised.value)
