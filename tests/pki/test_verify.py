"""Verification of client certificate chains: accepted and refused ones.

Source: docs/protocol/authentication.md#client-certificates.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import x25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki import keys, pem
from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509 import bundles, names, verify
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.profiles import client
from mooring.pki.x509.verify import ClientTrust, valid_at
from tests.support.slowkeys import rsa_key
from tests.support.testca import Pair, ThrowawayCA, with_broken_key

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CA = ThrowawayCA(now=NOW)
TRUST = ClientTrust([CA.certificate])
JANE = CA.client("jane", "devs", "ops")

CLIENT = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
SERVER = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
CA_BIT = (x509.BasicConstraints(True, None), True)
UID = names.UID_ATTRIBUTE


def refused(chain: Sequence[bytes], now: datetime = NOW, trust: ClientTrust = TRUST) -> PeerCertificateError:
    with pytest.raises(PeerCertificateError) as raised:
        trust.verify(chain, now)
    assert raised.value.code in PeerCertificateError.CODES
    return raised.value


@pytest.mark.parametrize("algorithm", ["ECDSA-P256", "ECDSA-P384", "RSA-2048", "Ed25519"])
def test_every_allowed_kind_of_key(algorithm: str) -> None:
    authority = self_signed_ca(keys.generate_key(algorithm), "ca", NOW, 1)
    leaf = authority.sign(client(keys.generate_key(algorithm).public_key(), NOW, "jane"), NOW, 2)
    assert ClientTrust([authority.certificate]).verify([leaf.der], NOW).common_name == "jane"


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(CA.custom("jane"), id="no key usage, no identifiers"),
        pytest.param(CA.custom("jane", extensions=[]), id="no extension at all"),
        pytest.param(
            CA.custom("jane", extensions=[(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), True)]),
            id="any purpose",
        ),
        pytest.param(
            CA.custom("jane", extensions=[CLIENT, (x509.SubjectAlternativeName([x509.DNSName("a")]), False)]),
            id="a DNS name beside",
        ),
        pytest.param(CA.custom("jane", extensions=[CLIENT, CA_BIT]), id="a CA as a client, as Go accepts"),
        pytest.param(
            CA.custom("jane", extensions=[CLIENT, (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3"), b""), False)]),
            id="an unknown extension",
        ),
    ],
)
def test_clients_that_are_accepted(pair: Pair) -> None:
    assert TRUST.verify([pair.der], NOW).common_name == "jane"


def test_a_node_with_a_name_of_253_characters() -> None:
    node = "n" * 253
    assert TRUST.verify([CA.node(node).der], NOW).common_name == f"system:node:{node}"


def test_a_version_1_root_of_the_bundle_is_a_ca(tmp_path: Path) -> None:
    key = keys.generate_key()
    (tmp_path / "key").write_bytes(keys.private_key_pem(key))
    subprocess.run(
        ["openssl", "req", "-new", "-key", "key", "-subj", "/CN=old", "-out", "csr"], cwd=tmp_path, check=True
    )
    subprocess.run(
        ["openssl", "x509", "-req", "-in", "csr", "-signkey", "key", "-out", "crt"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    root = bundles.certificates((tmp_path / "crt").read_bytes())[0]
    now = datetime.now(UTC)
    leaf = CA.custom("jane", issuer=Pair(root, key), not_before=now, not_after=now + timedelta(hours=1))
    assert ClientTrust([root]).verify([leaf.der], now).common_name == "jane"
    middle = CA.custom(root.subject, key=key, extensions=[], not_before=now, not_after=now + timedelta(hours=1))
    assert refused([leaf.der, middle.der], now).code == "not-a-ca", "version 3 without constraints is not a CA"
    assert refused([leaf.der, root.der], now).code == "not-a-ca", "nor is version 1 that is only presented"


def test_a_certificate_of_the_bundle_is_trusted_itself() -> None:
    own = CA.custom("robot", issuer=Pair(CA.custom("robot", key=JANE.key).certificate, JANE.key), key=JANE.key)
    trust = ClientTrust([CA.certificate, own.certificate])
    assert trust.verify([own.der], NOW).common_name == "robot"
    assert refused([own.der]).code == "unknown-ca"


# Chains

MIDDLE = CA.intermediate("middle")
LOWER = CA.custom("lower", issuer=MIDDLE, extensions=[CA_BIT, CLIENT])
DEEP = CA.custom("deep", issuer=LOWER)


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param([DEEP, LOWER, MIDDLE], id="in order"),
        pytest.param([DEEP, MIDDLE, LOWER], id="in disorder"),
        pytest.param([DEEP, JANE, CA, LOWER, MIDDLE], id="with certificates that do not belong and the root itself"),
    ],
)
def test_intermediates_are_taken_from_what_was_presented(chain: list[Pair | ThrowawayCA]) -> None:
    ders = [item.certificate.der for item in chain]
    assert TRUST.verify(ders, NOW).common_name == "deep"


def test_the_window_of_the_chain_is_the_narrowest() -> None:
    short = CA.custom(
        "short", extensions=[CA_BIT], not_before=NOW - timedelta(minutes=1), not_after=NOW + timedelta(minutes=2)
    )
    leaf = CA.custom("jane", issuer=short)
    peer = TRUST.verify([leaf.der, short.der], NOW)
    assert (peer.valid_from, peer.valid_until) == (NOW - timedelta(minutes=1), NOW + timedelta(minutes=2))
    assert peer.not_after == NOW + timedelta(hours=1)
    assert valid_at(peer, NOW + timedelta(minutes=2))
    assert not valid_at(peer, NOW + timedelta(minutes=2, seconds=1))
    assert valid_at(peer, NOW - timedelta(minutes=1))
    assert not valid_at(peer, NOW - timedelta(minutes=1, seconds=1))


def test_the_right_one_of_two_authorities_of_one_name_is_found() -> None:
    twin = ThrowawayCA(now=NOW)
    trust = ClientTrust([twin.certificate, CA.certificate, CA.certificate])
    assert trust.verify([JANE.der], NOW).common_name == "jane"
    assert trust.verify([twin.client("john").der], NOW).common_name == "john"


def test_the_search_tries_another_path_after_a_dead_end() -> None:
    # The same key certified twice: once under a root nobody trusts, once under ours.
    stranger = ThrowawayCA("stranger", now=NOW)
    key = keys.generate_key()
    under_stranger = stranger.custom("middle", key=key, extensions=[CA_BIT])
    under_ours = CA.custom("middle", key=key, extensions=[CA_BIT])
    leaf = CA.custom("jane", issuer=under_ours)
    assert TRUST.verify([leaf.der, under_stranger.der, under_ours.der], NOW).common_name == "jane"


def constrained(limits: x509.NameConstraints, *, critical: bool = True) -> Pair:
    return CA.custom("limited", extensions=[CA_BIT, (limits, critical)])


DNS_ONLY = constrained(x509.NameConstraints([x509.DNSName("example.org")], None))
NO_NETWORK = constrained(x509.NameConstraints(None, [x509.IPAddress(ip_network("10.0.0.0/8"))]))
OTHER_TYPES: Mapping[str, x509.GeneralName] = {
    "subjects": x509.DirectoryName(names.subject("jane").for_builder()),
    "registered identifiers": x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
    "other names": x509.OtherName(x509.ObjectIdentifier("1.2.3"), b"\5\0"),
}
SUBJECTS = constrained(x509.NameConstraints([OTHER_TYPES["subjects"]], None), critical=False)
NAMED_BELOW = CA.custom(
    "named", issuer=DNS_ONLY, extensions=[CA_BIT, (x509.SubjectAlternativeName([x509.DNSName("b.example.org")]), False)]
)
WITH_NAME = [CLIENT, (x509.SubjectAlternativeName([x509.DNSName("a.example.org")]), False)]


@pytest.mark.parametrize("issuer", [pytest.param(DNS_ONLY, id="DNS"), pytest.param(NO_NETWORK, id="addresses")])
def test_a_leaf_without_alternative_names_cannot_break_constraints_on_them(issuer: Pair) -> None:
    assert TRUST.verify([CA.custom("jane", issuer=issuer).der, issuer.der], NOW).common_name == "jane"


MUST_STAPLE = (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
SHORT_RSA = CA.custom("jane", key=rsa_key(1024))
NO_CA = CA.custom("no ca", extensions=[(x509.BasicConstraints(False, None), True)])
NO_CONSTRAINTS = CA.custom("no constraints", extensions=[])
NO_SIGNING = CA.custom(
    "no signing",
    extensions=[CA_BIT, (x509.KeyUsage(True, False, False, False, False, False, True, False, False), True)],
)
SIGNING = CA.custom(
    "signing", extensions=[CA_BIT, (x509.KeyUsage(False, False, False, False, False, True, False, False, False), True)]
)
SERVERS_ONLY = CA.custom("servers only", extensions=[CA_BIT, SERVER])
OLD_MIDDLE = CA.custom("old", extensions=[CA_BIT], not_after=NOW - timedelta(seconds=1))
STRANGE_MIDDLE = CA.custom("strange", extensions=[CA_BIT, MUST_STAPLE])
WEAK_MIDDLE = CA.custom("weak", extensions=[CA_BIT], key=rsa_key(1024))
NO_DEPTH = CA.intermediate("no depth", path_length=0)
BELOW_NO_DEPTH = CA.custom("below", issuer=NO_DEPTH, extensions=[CA_BIT])
IMPOSTOR = ThrowawayCA(now=NOW).client("jane")
UNKNOWN = "the certificate was signed by an unknown authority: issuer CN="
NOT_SIGNED = "the certificate names a known authority but was not signed with its key"
NO_CLIENT = "the certificate's extended key usage does not include client authentication"
NO_CLIENT_BELOW = "a CA of the chain's extended key usage does not include client authentication"
NOT_UNDERSTOOD = "the certificate has a critical extension that is not understood: 1.2.3.4"
SHORT_KEY = "an RSA key of 1024 bits is not accepted: use 2048 to 8192 bits"
BY_NO_CA = "the certificate was issued by a certificate that is not a CA"
BY_NO_SIGNER = "the certificate was issued by a CA that may not sign certificates"
TOO_DEEP = "there are more intermediates than a CA of the chain allows"
CONSTRAINED = "a CA of the chain constrains names, and the certificate may violate it"
OLD = "a CA of the chain expired 1s ago, at 2026-01-02T03:04:04Z"


def below(issuer: Pair, *extensions: tuple[x509.ExtensionType, bool]) -> list[Pair]:
    return [CA.custom("jane", issuer=issuer, extensions=extensions or [CLIENT]), issuer]


def test_a_ca_with_the_usage_cert_sign_may_sign() -> None:
    assert TRUST.verify([pair.der for pair in below(SIGNING)], NOW).common_name == "jane"
    assert TRUST.verify([pair.der for pair in below(NO_DEPTH)], NOW).common_name == "jane"


@pytest.mark.parametrize(
    ("chain", "code", "message"),
    [
        pytest.param([ThrowawayCA("x", now=NOW).client("jane")], "unknown-ca", f"{UNKNOWN}x", id="another authority"),
        pytest.param([DEEP, MIDDLE], "unknown-ca", f"{UNKNOWN}lower", id="an intermediate is missing"),
        pytest.param([IMPOSTOR], "bad-signature", NOT_SIGNED, id="an authority of the same name"),
        pytest.param([CA.custom("jane", extensions=[SERVER])], "wrong-usage", NO_CLIENT, id="a server's certificate"),
        pytest.param([CA.server("localhost")], "wrong-usage", NO_CLIENT, id="the API server's own certificate"),
        pytest.param(
            [CA.custom("jane", extensions=[CLIENT, MUST_STAPLE])],
            "unknown-critical-extension",
            NOT_UNDERSTOOD,
            id="a critical extension",
        ),
        pytest.param([SHORT_RSA], "weak-key", SHORT_KEY, id="a short RSA key"),
        pytest.param(below(NO_CA), "not-a-ca", BY_NO_CA, id="issued by a leaf"),
        pytest.param(below(JANE), "not-a-ca", BY_NO_CA, id="issued by a client with a good certificate"),
        pytest.param(below(NO_CONSTRAINTS), "not-a-ca", BY_NO_CA, id="issued by one without constraints"),
        pytest.param(below(NO_SIGNING), "not-a-ca", BY_NO_SIGNER, id="issued by a CRL signer"),
        pytest.param(below(SERVERS_ONLY), "wrong-usage", NO_CLIENT_BELOW, id="issued by a CA for servers only"),
        pytest.param(
            below(STRANGE_MIDDLE),
            "unknown-critical-extension",
            NOT_UNDERSTOOD,
            id="issued by a CA with a strange extension",
        ),
        pytest.param(below(WEAK_MIDDLE), "weak-key", SHORT_KEY, id="issued by a CA with a weak key"),
        pytest.param(below(OLD_MIDDLE), "expired", OLD, id="issued by a CA that expired"),
        pytest.param(
            [CA.custom("jane", issuer=BELOW_NO_DEPTH), BELOW_NO_DEPTH, NO_DEPTH],
            "path-too-long",
            TOO_DEEP,
            id="too many intermediates",
        ),
        pytest.param(below(DNS_ONLY, *WITH_NAME), "constrained-names", CONSTRAINED, id="a name under name constraints"),
        pytest.param(below(SUBJECTS), "constrained-names", CONSTRAINED, id="constraints on subjects"),
        pytest.param(
            [CA.custom("jane", issuer=NAMED_BELOW), NAMED_BELOW, DNS_ONLY],
            "constrained-names",
            CONSTRAINED,
            id="a CA with a name under name constraints",
        ),
    ],
)
def test_chains_that_are_refused(chain: list[Pair], code: str, message: str) -> None:
    refusal = refused([pair.der for pair in chain])
    assert (refusal.code, str(refusal)) == (code, message)


@pytest.mark.parametrize(
    ("now", "code", "seconds", "message"),
    [
        pytest.param(
            NOW - timedelta(minutes=6),
            "not-yet-valid",
            60,
            "the certificate is not valid for another 60s, until 2026-01-02T02:59:05Z: compare the clocks",
            id="a minute early",
        ),
        pytest.param(
            NOW - timedelta(minutes=5, microseconds=1),
            "not-yet-valid",
            1,
            "the certificate is not valid for another 1s, until 2026-01-02T02:59:05Z: compare the clocks",
            id="a microsecond early is told as a second",
        ),
        pytest.param(
            NOW + timedelta(days=365, seconds=2),
            "expired",
            2,
            "the certificate expired 2s ago, at 2027-01-02T03:04:05Z",
            id="two seconds late",
        ),
    ],
)
def test_a_refusal_by_time_has_the_seconds(now: datetime, code: str, seconds: int, message: str) -> None:
    refusal = refused([JANE.der], now)
    assert (refusal.code, refusal.seconds, str(refusal)) == (code, seconds, message)


@pytest.mark.parametrize(
    "moment", [JANE.certificate.not_valid_before_utc, JANE.certificate.not_valid_after_utc], ids=["first", "last"]
)
def test_the_first_and_the_last_second_are_valid(moment: datetime) -> None:
    assert valid_at(TRUST.verify([JANE.der], moment), moment)


def test_an_empty_bundle_verifies_no_certificate() -> None:
    assert refused([JANE.der], trust=ClientTrust([])).code == "unknown-ca"


def test_a_signature_over_sha1_is_refused(tmp_path: Path) -> None:
    ca = ThrowawayCA()
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    (tmp_path / "ca.key").write_bytes(keys.private_key_pem(ca.key))
    for command in (
        "req -new -newkey rsa:2048 -nodes -keyout jane.key -out jane.csr -subj /CN=jane",
        "x509 -req -sha1 -in jane.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out jane.crt",
    ):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, capture_output=True, check=True)
    leaf = next(pem.blocks((tmp_path / "jane.crt").read_bytes())).der
    refusal = refused([leaf], datetime.now(UTC), ClientTrust([ca.certificate]))
    assert (refusal.code, str(refusal)) == (
        "weak-signature",
        "the certificate is not signed over SHA-256, SHA-384 or SHA-512",
    )


X25519_KEY = x25519.X25519PrivateKey.generate()


def test_a_key_that_cannot_sign_is_refused() -> None:
    builder = (
        x509.CertificateBuilder(
            CA.certificate.subject.for_builder(), names.subject("jane").for_builder(), X25519_KEY.public_key(), 1
        )
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(hours=1))
    )
    assert refused([builder.sign(CA.key, hashes.SHA256()).public_bytes(Encoding.DER)]).code == "weak-key"


ECDSA_SHA256 = bytes.fromhex("2a8648ce3d040302")


@pytest.mark.parametrize(
    ("chain", "code"),
    [
        pytest.param([], "malformed", id="nothing"),
        pytest.param([b"junk"], "malformed", id="junk"),
        pytest.param([JANE.der, b"junk"], "malformed", id="junk after a good leaf"),
        pytest.param([JANE.der[:-1]], "malformed", id="cut off"),
        pytest.param([with_broken_key(JANE.certificate)], "malformed", id="a key that is no point of its curve"),
        pytest.param(
            [JANE.der.replace(ECDSA_SHA256, ECDSA_SHA256[:-1] + b"\x7f")],
            "weak-signature",
            id="an unknown signature algorithm",
        ),
        pytest.param([JANE.der] * 11, "too-large", id="too many"),
        pytest.param([bytes(64 * 1024 + 1)], "too-large", id="too large"),
        pytest.param([JANE.der, bytes(17_000), bytes(17_000)], "too-large", id="too large above the leaf"),
    ],
)
def test_chains_that_are_no_chains(chain: list[bytes], code: str) -> None:
    assert refused(chain).code == code


@contextlib.contextmanager
def counted_signature_checks() -> Iterator[list[str]]:
    """Collect the library's checks of a certificate's signature until the block ends."""
    checks: list[str] = []

    def observe(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ == "verify":
            checks.append(argument.__name__)

    sys.setprofile(observe)
    try:
        yield checks
    finally:
        sys.setprofile(None)


def test_the_search_ends_after_a_fixed_number_of_checks() -> None:
    # Nine CAs of one name and key, each "issued" by any other: without a budget 9! paths would be tried.
    key = keys.generate_key()
    maze = [
        CA.custom(
            "maze",
            key=key,
            issuer=Pair(CA.custom("maze", key=key).certificate, key),
            extensions=[CA_BIT, (x509.SubjectAlternativeName([x509.DNSName(f"{number}.test")]), False)],
        )
        for number in range(9)
    ]
    leaf = CA.custom("jane", issuer=maze[0])
    with counted_signature_checks() as checks:
        assert refused([leaf.der, *(pair.der for pair in maze)]).code == "unknown-ca"
    assert len(checks) == verify.MAX_SIGNATURE_CHECKS


def test_a_renewed_ca_does_not_vouch_for_itself() -> None:
    renewed = CA.custom("kubernetes", key=CA.key, extensions=[CA_BIT, CLIENT])
    assert refused([renewed.der]).code == "unknown-ca"
    named = (x509.SubjectAlternativeName([x509.DNSName("a.test")]), False)
    other = CA.custom("kubernetes", key=CA.key, extensions=[CA_BIT, CLIENT, named])
    assert TRUST.verify([other.der], NOW).common_name == "kubernetes", "another name makes it another certificate"


def test_a_weak_or_huge_key_of_an_intermediate_is_refused_before_it_is_used() -> None:
    # Anybody may present a CA with a 16384-bit key; one verification with it takes as long as a hundred of ours.
    with counted_signature_checks() as checks:
        assert refused([pair.der for pair in below(WEAK_MIDDLE)]).code == "weak-key"
    assert checks == []


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_junk_never_crashes(chain: list[bytes]) -> None:
    assert refused(chain).code == "malformed"
    assert refused([JANE.der, *chain, b""]).code == "malformed"


@given(st.integers(0, len(JANE.der) - 1), st.integers(1, 255))
def test_no_byte_of_a_certificate_can_be_changed(place: int, change: int) -> None:
    der = bytearray(JANE.der)
    der[place] ^= change
    signature_start = len(JANE.der) - len(JANE.certificate.signature)
    if place == signature_start - 1 and change.bit_length() <= 3:
        return  # unused bits of the BIT STRING: where they are 0, the decoded signature is the same
    refused([bytes(der)])
    with contextlib.suppress(PeerCertificateError):  # a changed intermediate may be parsed and not needed
        TRUST.verify([JANE.der, bytes(der)], NOW)


def test_the_path_from_a_ca_to_its_root() -> None:
    root = Pair(CA.certificate, CA.key)
    middle = CA.custom("middle", extensions=[CA_BIT, SERVER])
    low = CA.custom("low", issuer=middle, extensions=[CA_BIT])
    certificates = [pair.certificate for pair in (low, middle, root)]
    assert verify.path_to_root(certificates[:2], [root.certificate], NOW) == tuple(certificates)
    assert verify.path_to_root([root.certificate], [root.certificate], NOW) == (root.certificate,)
    with pytest.raises(PeerCertificateError) as raised:
        verify.path_to_root(certificates[:1], [root.certificate], NOW)
    assert raised.value.code == "unknown-ca"


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("named", "identified"),
    [
        pytest.param(b"", b"x", id="the certificate names none"),
        pytest.param(b"x", b"y", id="the certificate names another"),
    ],
)
def test_of_two_roots_of_one_name_and_key_that_of_go_is_found(order: int, named: bytes, identified: bytes) -> None:
    """The hash of the CA in a token of k3s is that of this root."""
    identifier = x509.AuthorityKeyIdentifier(named, None, None)
    low = CA.custom("low", extensions=[CA_BIT, *([(identifier, False)] if named else [])]).certificate
    other, found = (
        CA.custom(CA.certificate.subject, key=CA.key, extensions=[CA_BIT, *more]).certificate
        for more in ([(x509.SubjectKeyIdentifier(identified), False)], [])
    )
    assert verify.path_to_root([low], [other, found][::order], NOW) == (low, found)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        pytest.param({"extensions": [CA_BIT, CLIENT]}, "wrong-usage", id="for clients only"),
        pytest.param({"extensions": [CA_BIT], "not_after": NOW - timedelta(minutes=1)}, "expired", id="expired"),
    ],
)
def test_a_ca_without_a_path_to_its_root(limits: dict[str, Any], code: str) -> None:
    with pytest.raises(PeerCertificateError) as raised:
        verify.path_to_root([CA.custom("middle", **limits).certificate], [CA.certificate], NOW)
    assert raised.value.code == code
    assert "server authentication" in str(raised.value) or code == "expired"


def cross(subject: ThrowawayCA, issuer: ThrowawayCA) -> Pair:
    """Return one CA, certified by another as a full CA, as earlier versions did."""
    certified = issuer.custom(subject.certificate.subject, key=subject.key, extensions=[CA_BIT])
    return Pair(certified.certificate, subject.key)


RETIRED = ThrowawayCA("kubernetes", NOW)
PRESENT = ThrowawayCA("kubernetes@1", NOW)
THIEF = RETIRED.client("thief", "system:masters")
VOUCHED = cross(RETIRED, PRESENT)
DEEPER = cross(ThrowawayCA("deeper", NOW), RETIRED)


@pytest.mark.parametrize(
    ("chain", "cas"),
    [
        pytest.param([THIEF, VOUCHED], [PRESENT], id="the retired key below the present CA, which vouched for it"),
        pytest.param([CA.custom("t", issuer=DEEPER), DEEPER, VOUCHED], [PRESENT], id="in the middle of a path"),
        pytest.param([THIEF], [RETIRED], id="the retired CA in a bundle that names it again"),
        pytest.param([Pair(RETIRED.certificate, RETIRED.key)], [RETIRED], id="the retired CA itself"),
        pytest.param([PRESENT.custom("t", key=RETIRED.key)], [PRESENT], id="a client with the retired key"),
    ],
)
def test_a_retired_key_stands_on_no_path(chain: list[Pair], cas: list[ThrowawayCA]) -> None:
    roots, ders = [one.certificate for one in cas], [one.der for one in chain]
    if chain[0].certificate != RETIRED.certificate:
        assert ClientTrust(roots).verify(ders, NOW).path, "it would verify"
    assert refused(ders, trust=ClientTrust(roots, distrusted=[RETIRED.certificate])).code in (
        "retired-ca",
        "wrong-usage",
    )


@pytest.mark.parametrize(
    ("chain", "code"),
    [
        pytest.param([THIEF], "retired-ca", id="a leaf of the retired CA"),
        pytest.param([CA.custom("t", issuer=DEEPER), DEEPER], "retired-ca", id="one below an intermediate of it"),
        pytest.param([ThrowawayCA("kubernetes", NOW).client("t")], "unknown-ca", id="of a stranger of its name"),
    ],
)
def test_a_retired_ca_is_told_from_an_unknown_one(chain: list[Pair], code: str) -> None:
    trust = ClientTrust([PRESENT.certificate], distrusted=[RETIRED.certificate])
    assert refused([one.der for one in chain], trust=trust).code == code


@pytest.mark.parametrize(
    ("chain", "cas"),
    [
        pytest.param([THIEF, VOUCHED], [PRESENT], id="below the present CA, which vouched for it"),
        pytest.param([CA.custom("t", issuer=DEEPER), DEEPER, VOUCHED], [PRESENT], id="in the middle of a path"),
        pytest.param([THIEF], [RETIRED], id="in a bundle that names it again"),
    ],
)
def test_a_ca_of_which_a_signature_alone_is_left_stands_on_no_path(chain: list[Pair], cas: list[ThrowawayCA]) -> None:
    left = cross(PRESENT, RETIRED).certificate
    trust = ClientTrust([one.certificate for one in cas], forgotten=[left])
    assert refused([one.der for one in chain], trust=trust).code == "retired-ca"
    assert ClientTrust([PRESENT.certificate], forgotten=[left]).verify([PRESENT.client("jane").der], NOW).path


def test_another_path_is_found_beside_that_with_the_retired_key() -> None:
    trust = ClientTrust([PRESENT.certificate], distrusted=[RETIRED.certificate])
    assert trust.verify([PRESENT.client("jane").der, VOUCHED.der], NOW).common_name == "jane"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-param_enc", "explicit"),
            "an elliptic curve with explicit parameters is not accepted: name the curve",
            id="explicit parameters",
        ),
        pytest.param(
            ("genpkey", "-algorithm", "RSA-PSS", "-pkeyopt", "rsa_keygen_bits:2048"),
            "a key of the type id-RSASSA-PSS is not accepted: use rsaEncryption",
            id="id-RSASSA-PSS",
        ),
    ],
)
def test_encodings_of_keys_that_go_refuses(make: tuple[str, ...], message: str, tmp_path: Path) -> None:
    der = made_by_openssl(tmp_path, *make)
    found = refused([der], x509.load_der_x509_certificate(der).not_valid_before_utc)
    assert found.code in ("weak-key", "malformed")
    if found.code == "weak-key":
        assert str(found) == message


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_critical_constraints_on_names_of_another_type_are_not_understood(kind: str) -> None:
    """In a CA and in a leaf, as by Go."""
    limits = x509.NameConstraints(None, [OTHER_TYPES[kind]])
    ca, leaf = constrained(limits), CA.custom("jane", extensions=[CLIENT, (limits, True)])
    for chain in ([CA.custom("jane", issuer=ca), ca], [leaf]):
        assert refused([one.der for one in chain]).code == "unknown-critical-extension"
    if kind != "subjects":
        lenient = constrained(limits, critical=False)
        assert TRUST.verify([CA.custom("jane", issuer=lenient).der, lenient.der], NOW).common_name == "jane"


@pytest.mark.parametrize("order", [1, -1])
def test_the_refusal_by_the_ca_that_signed_counts_among_several_of_one_name(order: int) -> None:
    old, new = (ThrowawayCA("twin", now=now) for now in (NOW - timedelta(days=20_000), NOW))
    leaf = old.custom("jane", not_before=NOW - timedelta(hours=1), not_after=NOW + timedelta(hours=1))
    trust = ClientTrust([one.certificate for one in (old, new)][::order])
    assert refused([leaf.der], trust=trust).code == "expired"


def test_a_key_is_named_by_its_bytes_and_by_its_normal_form(tmp_path: Path) -> None:
    """`openssl x509 -pubkey` prints the bytes of the certificate, here with a compressed point."""
    der = made_by_openssl(tmp_path, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-conv_form", "compressed")
    begin = x509.load_der_x509_certificate(der).not_valid_before_utc
    assert "compressed" in str(refused([der], begin))
    found = key_identities(Certificate(der))
    printed = openssl("x509", "-inform", "DER", "-pubkey", "-noout", data=der)
    as_printed = openssl("pkey", "-pubin", "-outform", "DER", "-ec_conv_form", "compressed", data=printed)
    certificate = x509.load_der_x509_certificate(der)
    assert found == (
        f"sha256:{keys.public_key_fingerprint(keys.accepted_public_key(certificate.public_key()))}",
        f"sha256:{hashlib.sha256(as_printed).hexdigest()}",
    )
    assert TRUST.verify([JANE.der], NOW).path[0].public_keys == (f"sha256:{keys.public_key_fingerprint(JANE.key)}",)


def openssl(*arguments: str, data: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout


def made_by_openssl(root: Path, *make: str) -> bytes:
    """Return a client certificate of CA for a key that openssl makes and encodes."""
    key, request, extensions = root / "key.pem", root / "request.pem", root / "extensions"
    certificate, ca_key = Pair(CA.certificate, CA.key).write(root, "ca")
    key.write_bytes(openssl(*make))
    form = ("-conv_form", "compressed") if "compressed" in make else ()
    if form:
        key.write_bytes(openssl("ec", "-in", str(key), *form))
    extensions.write_text("extendedKeyUsage=clientAuth")
    request.write_bytes(openssl("req", "-new", "-sha256", "-key", str(key), "-subj", "/CN=jane"))
    signed = [
        "x509",
        "-req",
        "-sha256",
        "-in",
        str(request),
        "-CA",
        str(certificate),
        "-CAkey",
        str(ca_key),
        "-days",
        "9",
    ]
    return openssl(*signed, "-extfile", str(extensions), "-set_serial", "7", "-outform", "DER")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(0, id="zero"),
        pytest.param(-5, id="negative"),
        pytest.param(1 << 160, id="21 octets"),
        pytest.param(1 << 159, id="20 octets that need another for the sign"),
    ],
)
def test_a_serial_number_that_cannot_be_revoked_is_refused(number: int) -> None:
    class Numbered:
        serial_number = number

    with pytest.raises(PeerCertificateError) as raised:
        verify._check_serial_number(Numbered())  # type: ignore[arg-type]  # the library makes no such certificate
    assert raised.value.code == "bad-serial-number"


@pytest.mark.parametrize(
    ("common_name", "node"),
    [
        pytest.param("system:node:n1", "n1", id="a node"),
        pytest.param("jane", "", id="a user"),
        pytest.param("system:kube-proxy", "", id="a shared user of no machine"),
    ],
)
def test_the_node_that_a_certificate_is_for(common_name: str, node: str) -> None:
    assert TRUST.verify([CA.client(common_name).der], NOW).node_name == node


def test_a_bundle_without_cas_is_empty() -> None:
    assert ClientTrust([]).is_empty
    assert not TRUST.is_empty
