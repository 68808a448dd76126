"""CAs that other programs made: names in Latin-1, several of one name, policies, and keys of each kind.

`openssl verify` and Go find an issuer by its name: what such a CA issues has the bytes of the CA's name in it.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.pki import pem
from mooring.pki.errors import CertificateUnreadableError, CrlError, PeerCertificateError, RequestError
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509 import der, names, profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.bundles import certificates, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import cross_sign, find_cross_signed, successor
from mooring.pki.x509.crl import revocation_list, revoked_certificate, verified_crls
from mooring.pki.x509.der import encoded
from mooring.pki.x509.distinguishedname import DistinguishedName, signed_with
from mooring.pki.x509.requests import parse_request
from mooring.pki.x509.signatures import is_signed, signature_algorithm
from mooring.pki.x509.verify import MAX_SIGNATURE_CHECKS, ClientTrust
from tests.support.rawcertificate import (
    CLIENT_AUTH,
    COMMON_NAME,
    EXAMPLE,
    EXTENSIONS,
    FALSE,
    JOERG,
    KEY,
    SEQUENCE,
    SET,
    TRUE,
    UTF8,
    VERSION,
    Foreign,
    attribute,
    edited,
    extension,
    issued,
    name,
    oid,
    plain,
    request,
    root,
    signed,
)
from tests.support.slowkeys import rsa_key
from tests.support.testca import Pair, ThrowawayCA

NOW = datetime.now(UTC)
"""Time of what is made here, too: a certificate begins five minutes before it is made, and a run takes longer."""


def entropy(count: int) -> bytes:
    return b"\x11" * count


def test_a_user_whose_name_is_in_latin_1() -> None:
    ca = root(EXAMPLE, now=NOW)
    peer = ClientTrust([Certificate(ca.der)]).verify([issued(ca, JOERG, [CLIENT_AUTH], NOW).der], NOW)
    assert (peer.common_name, peer.organizations) == ("Jörg", ("Bücher",))


@pytest.mark.parametrize(
    "name_",
    [
        pytest.param(EXAMPLE, id="Latin-1 in a T61String"),
        pytest.param(
            encoded(SEQUENCE, encoded(SET, *[attribute(COMMON_NAME, UTF8, one) for one in (b"z", b"a")])),
            id="a set that is not sorted",
        ),
        pytest.param(
            encoded(SEQUENCE, encoded(SET), *[encoded(SET, attribute(COMMON_NAME, UTF8, b"a"))]), id="an empty RDN"
        ),
    ],
)
def test_what_such_a_ca_issues_has_its_name_byte_for_byte(name_: bytes, tmp_path: Path) -> None:
    ca = root(name_, now=NOW)
    authority = Authority(Certificate(ca.der), ca.key)
    key = generate_key()
    leaf = authority.sign(profiles.client(key.public_key(), NOW, "jane", ["dev"]), NOW, 7)
    assert leaf.issuer.der == name_
    assert ClientTrust([authority.certificate]).verify([leaf.der], NOW).common_name == "jane"
    (tmp_path / "ca.crt").write_bytes(ca.pem)
    (tmp_path / "jane.crt").write_bytes(pem.encode(pem.CERTIFICATE, leaf.der))
    subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.crt", "jane.crt"], cwd=tmp_path, check=True, capture_output=True
    )


def test_a_revocation_list_of_such_a_ca_is_read(tmp_path: Path) -> None:
    ca = root(EXAMPLE, now=NOW)
    authority = Authority(Certificate(ca.der), ca.key)
    signed = revocation_list(authority, [revoked_certificate(7, NOW, "keyCompromise")], NOW)
    (found,) = verified_crls(signed, [authority.certificate])
    assert (found.issuer, found.serial_numbers) == ("CN=root,O=Société Exemple", frozenset({7}))
    (tmp_path / "ca.crt").write_bytes(ca.pem)
    (tmp_path / "crl").write_bytes(pem.encode("X509 CRL", signed))
    command = ["openssl", "crl", "-in", "crl", "-CAfile", "ca.crt", "-noout"]
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert b"verify OK" in shown.stderr


def test_a_revocation_list_that_names_such_a_ca_once_more_is_read(tmp_path: Path) -> None:
    """easy-rsa writes `authorityKeyIdentifier=keyid:always,issuer:always` into each."""
    ca = root(EXAMPLE, now=NOW)
    (tmp_path / "ca.crt").write_bytes(ca.pem)
    (tmp_path / "ca.key").write_bytes(private_key_pem(ca.key))
    (tmp_path / "index").touch()
    (tmp_path / "number").write_text("01")
    (tmp_path / "cnf").write_text(
        "[ca]\ndefault_ca=my\n[my]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\ndefault_crl_days=7\n"
        "crl_extensions=ext\n[ext]\nauthorityKeyIdentifier=keyid,issuer:always\n"
    )
    command = ["openssl", "ca", "-config", "cnf", "-cert", "ca.crt", "-keyfile", "ca.key", "-gencrl", "-out", "crl"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (found,) = verified_crls((tmp_path / "crl").read_bytes(), [Certificate(ca.der)])
    assert found.issuer == "CN=root,O=Société Exemple"


LISTING = ThrowawayCA("kubernetes", NOW)
LIST = revocation_list(LISTING.authority, [revoked_certificate(7, NOW, "unspecified")], NOW)
LIST_VERSION, _, _, THIS_UPDATE, NEXT_UPDATE, ENTRIES, LIST_EXTENSIONS = range(7)
MINUTES = encoded(der.UTC_TIME, f"{NOW:%y%m%d%H%M}Z".encode())
TIME = encoded(der.UTC_TIME, b"260101000000Z")


def listed(changes: Mapping[int, bytes]) -> bytes:
    """Return a CRL with other elements, signed again."""
    whole = der.only(LIST, SEQUENCE).fields()
    parts = [one.encoding for one in whole.next(SEQUENCE).fields()]
    for place, encoding in changes.items():
        parts[place] = encoding
    return signed(encoded(SEQUENCE, *parts), LISTING.key, whole.next(SEQUENCE).encoding)


def entry(*after: bytes, time: bytes = TIME) -> dict[int, bytes]:
    return {ENTRIES: encoded(SEQUENCE, encoded(SEQUENCE, b"\2\1\7", time, *after))}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="as usual"),
        pytest.param({THIS_UPDATE: MINUTES}, id="a time without seconds"),
        pytest.param(entry(encoded(SEQUENCE, extension("551d15", encoded(0x0A, b"\7")))), id="a reason that is none"),
        pytest.param(entry(encoded(SEQUENCE, extension("551d15", encoded(0x0A, b"\1"), FALSE))), id="a default"),
        pytest.param(entry(encoded(SEQUENCE, extension("551d18", b"\xff"))), id="a moment that is no DER"),
    ],
)
def test_revocation_lists_that_are_read(changes: Mapping[int, bytes]) -> None:
    (found,) = verified_crls(listed(changes), [LISTING.certificate])
    assert found.serial_numbers == frozenset({7})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({LIST_VERSION: b"\2\1\2"}, "another version", id="version 3"),
        pytest.param({LIST_EXTENSIONS: b"\5\0"}, "bytes follow", id="other extensions"),
        pytest.param(entry(time=b"\5\0"), "an entry has no time", id="an entry without a time"),
        pytest.param(entry(b"\5\0"), "bytes follow", id="another element in an entry"),
        pytest.param(
            {LIST_EXTENSIONS: encoded(0xA0, encoded(SEQUENCE, *[extension("1.2.3", b"")] * 2))}, "twice", id="one twice"
        ),
        pytest.param({THIS_UPDATE: b"\5\0"}, "a time has another form", id="no time"),
    ],
)
def test_revocation_lists_that_are_refused(changes: Mapping[int, bytes], message: str) -> None:
    with pytest.raises(CrlError, match=f"a CRL cannot be parsed: .*{message}"):
        verified_crls(listed(changes), [LISTING.certificate])


def test_such_a_ca_is_replaced() -> None:
    ca = root(EXAMPLE, now=NOW)
    old, new = Authority(Certificate(ca.der), ca.key), successor(generate_key(), NOW, entropy)
    led = cross_sign(old.certificate, new, NOW, entropy)
    assert led.subject == old.certificate.subject
    assert led.is_issued_by(new.certificate)
    assert find_cross_signed([led], old.certificate, new.certificate) == led
    back = cross_sign(new.certificate, old, NOW, entropy)
    assert back.is_issued_by(old.certificate)


@pytest.mark.parametrize("algorithm", ["ECDSA-P384", "RSA-2048", "Ed25519"])
def test_a_key_of_each_kind_signs_for_a_name_that_the_library_does_not_write(algorithm: str) -> None:
    key, issuer = generate_key(algorithm), DistinguishedName.read(der.only(EXAMPLE, SEQUENCE))
    plain = self_signed_ca(key, "root", NOW, 1)

    def sign(issuer_: x509.Name, _: x509.Name) -> bytes:
        assert issuer_ == x509.Name([]), "a placeholder"
        return plain.certificate.der

    made = Certificate(signed_with(sign, key, issuer, plain.certificate.subject))
    assert made.issuer == issuer
    assert made.subject == plain.certificate.subject
    trusted = Certificate(signed_with(sign, key, issuer, issuer))
    assert made.is_issued_by(trusted)


IDENTIFIED = tuple(ThrowawayCA("kubernetes", NOW) for _ in range(MAX_SIGNATURE_CHECKS + 1))


def anonymous(of: ThrowawayCA) -> Pair:
    """Return a CA of the same name and key without a key identifier."""
    by = Pair(of.certificate, of.key)
    return of.custom("kubernetes", key=of.key, issuer=by, extensions=[(x509.BasicConstraints(True, None), True)])


@pytest.mark.parametrize("place", [0, MAX_SIGNATURE_CHECKS], ids=["the first", "the last"])
@pytest.mark.parametrize("are_identified", [True, False], ids=["by key identifier", "without key identifiers"])
def test_each_of_many_cas_of_one_name_verifies_its_machines(place: int, *, are_identified: bool) -> None:
    """kubeadm calls the CA of every cluster `kubernetes`, and a bundle may have those of many."""
    bundle = [one.certificate if are_identified else anonymous(one).certificate for one in IDENTIFIED]
    ca = IDENTIFIED[place]
    leaf = ca.client("jane") if are_identified else ca.custom("jane")
    assert ClientTrust(bundle).verify([leaf.der], NOW).common_name == "jane"


def test_a_presenters_own_cas_are_tried_so_many_times_at_most() -> None:
    """Each of ten certificates may have been issued by each CA of the name: without a budget 330 checks of one handshake."""
    bundle = [anonymous(one).certificate for one in IDENTIFIED]
    stranger = ThrowawayCA("kubernetes", NOW)
    chain: list[Pair] = [
        stranger.custom("kubernetes", key=stranger.key, extensions=[(x509.BasicConstraints(True, number), True)])
        for number in range(9)
    ]
    leaf = stranger.custom("jane", issuer=chain[0])
    checks = _counted(bundle, [leaf.der, *(one.der for one in chain)])
    assert checks <= len(bundle) + MAX_SIGNATURE_CHECKS


def _counted(bundle: Sequence[Certificate], chain: Sequence[bytes]) -> int:
    count = 0
    unbound = Certificate.is_issued_by

    def counted(self: Certificate, issuer: Certificate) -> bool:
        nonlocal count
        count += 1
        return unbound(self, issuer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Certificate, "is_issued_by", counted)
        with pytest.raises(PeerCertificateError):
            ClientTrust(bundle).verify(chain, NOW)
    return count


CRITICAL = [
    pytest.param("551d20", encoded(SEQUENCE, encoded(SEQUENCE, oid("1.3.6.1.4.1.99999.1"))), id="policies"),
    pytest.param("551d1f", encoded(SEQUENCE, encoded(SEQUENCE)), id="CRL distribution points"),
    pytest.param("551d24", encoded(SEQUENCE, encoded(0x80, b"\3")), id="policy constraints"),
    pytest.param("551d36", encoded(0x02, b"\0"), id="inhibit any policy"),
    pytest.param("551d21", encoded(SEQUENCE, encoded(SEQUENCE, oid("1.2.3"), oid("1.2.4"))), id="policy mappings"),
]


@pytest.mark.parametrize(("kind", "value"), CRITICAL)
def test_critical_extensions_that_go_understands(kind: str, value: bytes) -> None:
    """On a leaf and on a CA, as in Go."""
    critical = extension(kind, value, TRUE)
    ca = root(EXAMPLE, critical, now=NOW)
    peer = ClientTrust([Certificate(ca.der)]).verify([issued(ca, JOERG, [CLIENT_AUTH, critical], NOW).der], NOW)
    assert peer.common_name == "Jörg"


@pytest.mark.parametrize(
    ("every", "code"),
    [
        pytest.param([extension("1.2.3.4", b"", TRUE)], "unknown-critical-extension", id="one that nobody knows"),
        pytest.param(
            [extension("551d11", encoded(SEQUENCE, encoded(0xA0, b"x")), TRUE)],
            "unknown-critical-extension",
            id="alternative names of another type",
        ),
        pytest.param([extension("551d13", b"\5\0")], "malformed", id="one that cannot be read"),
    ],
)
def test_extensions_that_refuse_a_leaf(every: list[bytes], code: str) -> None:
    ca = root(EXAMPLE, now=NOW)
    with pytest.raises(PeerCertificateError) as raised:
        ClientTrust([Certificate(ca.der)]).verify([issued(ca, JOERG, [CLIENT_AUTH, *every], NOW).der], NOW)
    assert raised.value.code == code


EXTENSION_REQUEST, CHALLENGE = "1.2.840.113549.1.9.14", "1.2.840.113549.1.9.7"


def asked(*every: bytes) -> bytes:
    return encoded(SEQUENCE, oid(EXTENSION_REQUEST), encoded(SET, encoded(SEQUENCE, *every)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(request(JOERG), id="a name in Latin-1"),
        pytest.param(
            request(JOERG, asked(extension("551d13", encoded(SEQUENCE, b"\2\1\0")))),
            id="a length of paths without a CA",
        ),
        pytest.param(request(JOERG, asked(extension("551d20", b"\xff"))), id="a policy that is no DER"),
        pytest.param(request(JOERG, encoded(SEQUENCE, oid("1.2.3"))), id="an attribute without a value"),
        pytest.param(
            request(JOERG, encoded(SEQUENCE, oid(CHALLENGE), encoded(SET, encoded(UTF8, b"\xff")))),
            id="a password that is no text",
        ),
    ],
)
def test_requests_that_are_read(text: bytes) -> None:
    found = parse_request(text)
    assert (found.common_name, found.organizations, found.challenge_password) == ("Jörg", ("Bücher",), "")
    template = profiles.from_request(found, ["client auth"], NOW, None, timedelta(hours=1))
    assert template.subject == names.subject("Jörg", ["Bücher"])


def without_attributes() -> bytes:
    key = generate_key()
    (block,) = pem.blocks(request(JOERG, key=key))
    whole = der.only(block.der, SEQUENCE).fields()
    parts = [one.encoding for one in whole.next(SEQUENCE).fields()]
    encoding = signed(encoded(SEQUENCE, *parts[:3]), key, whole.next(SEQUENCE).encoding)
    return pem.encode(pem.CERTIFICATE_REQUEST, encoding)


DNS_NAME = extension("551d11", encoded(SEQUENCE, encoded(0x82, b"a.example")))


@pytest.mark.parametrize(
    "attribute_",
    [
        pytest.param(b"\x31" + asked(DNS_NAME)[1:], id="a set instead of a sequence"),
        pytest.param(b"\x04" + asked(DNS_NAME)[1:], id="octets"),
        pytest.param(
            encoded(SEQUENCE, oid(EXTENSION_REQUEST), encoded(SET, encoded(SEQUENCE, DNS_NAME), b"\xff")),
            id="a second value that is none",
        ),
        pytest.param(encoded(SEQUENCE, oid(EXTENSION_REQUEST), encoded(SET)), id="no value"),
    ],
)
def test_names_that_go_does_not_see_in_a_request_are_not_asked_for(attribute_: bytes) -> None:
    """An approver in Go saw a request without names, and the certificate had them."""
    assert parse_request(request(JOERG, attribute_)).alternative_names == names.NO_NAMES
    assert parse_request(request(JOERG, asked(DNS_NAME))).alternative_names.dns == ("a.example",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(request(JOERG, asked(), asked()), "it asks for extensions twice", id="extensions twice"),
        pytest.param(
            request(JOERG, asked(extension("551d11", encoded(SEQUENCE, encoded(0x82, b"\xe9"))))),
            "a name outside ASCII",
            id="a name outside ASCII",
        ),
        pytest.param(
            request(name(attribute(COMMON_NAME, UTF8, b"\xe9"))), "no UTF8String", id="a subject that is no text"
        ),
        pytest.param(without_attributes(), "an element is missing", id="no attributes"),
        pytest.param(
            request(name(attribute("2a" * 64, UTF8, b"x"))), "more than 63 octets", id="a kind of attribute too long"
        ),
    ],
)
def test_requests_that_are_refused(text: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_request(text)


PSS_OF: Mapping[str, tuple[hashes.SHA256 | hashes.SHA512, int, bool]] = {
    "SHA-256": (hashes.SHA256(), 32, True),
    "SHA-512": (hashes.SHA512(), 64, True),
    "a short salt": (hashes.SHA256(), 20, False),
}


@pytest.mark.parametrize("form", PSS_OF)
def test_signatures_of_rsa_pss(form: str) -> None:
    """Go knows three forms: SHA-256, SHA-384 and SHA-512, with a salt as long as the hash and MGF1 over the same hash."""
    digest, salt, accepted = PSS_OF[form]
    key = rsa_key(2048)
    assert isinstance(key, rsa.RSAPrivateKey)
    named = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    builder = x509.CertificateBuilder(named, named, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(True, None), True)
    built = builder.sign(key, digest, rsa_padding=padding.PSS(padding.MGF1(digest), salt))
    certificate = Certificate(built.public_bytes(Encoding.DER))
    assert certificate.is_issued_by(certificate) is accepted
    assert certificate.has_strong_signature is accepted


@pytest.mark.parametrize("algorithm", ["ECDSA-P256", "RSA-2048"])
def test_a_request_may_be_signed_over_sha_1_and_a_certificate_may_not(algorithm: str) -> None:
    """As in Go's `checkSignature`. OpenSSL of ten years ago signed requests so."""
    key = generate_key(algorithm)
    mark = {
        "ECDSA-P256": ("1.2.840.10045.4.3.2", "1.2.840.10045.4.1"),
        "RSA-2048": ("1.2.840.113549.1.1.11", "1.2.840.113549.1.1.5"),
    }
    sha256, sha1 = (signature_algorithm(der.only(encoded(SEQUENCE, oid(one)), SEQUENCE)) for one in mark[algorithm])
    assert sha256 is not None
    assert sha256.is_strong
    assert sha1 is not None
    assert not sha1.is_strong
    if isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(b"data", ec.ECDSA(hashes.SHA1()))
    else:
        assert isinstance(key, rsa.RSAPrivateKey)
        signature = key.sign(b"data", padding.PKCS1v15(), hashes.SHA1())
    assert is_signed(b"data", signature, sha1, key.public_key())
    assert not is_signed(b"other", signature, sha1, key.public_key())
    assert not is_signed(b"data", signature, sha256, key.public_key())


def test_a_root_of_version_2_is_a_ca() -> None:
    """As in Go, where version 3 alone needs basic constraints. Such a certificate that is only presented is none."""
    ca = ThrowawayCA("kubernetes", NOW)
    start = Foreign(ca.certificate.der, ca.key)
    old = edited(ca.key, start, {VERSION: b"\xa0\3\2\1\1", EXTENSIONS: None})
    leaf = ca.client("jane")
    assert ClientTrust([Certificate(old.der)]).verify([leaf.der], NOW).common_name == "jane"
    (listed,) = verified_crls(revocation_list(ca.authority, [], NOW), [Certificate(old.der)])
    assert listed.issuer == "CN=kubernetes"
    with pytest.raises(PeerCertificateError, match="not a CA"):
        ClientTrust([]).verify([leaf.der, old.der], NOW)


UNKNOWN_KEY = encoded(SEQUENCE, encoded(SEQUENCE, oid("1.2.3.4")), encoded(der.BIT_STRING, b"\0x"))


def test_a_ca_with_a_key_of_an_unknown_kind_in_a_bundle_hinders_no_other() -> None:
    ca = ThrowawayCA("kubernetes", NOW)
    start = Foreign(ca.certificate.der, ca.key)
    odd = Certificate(edited(ca.key, start, {KEY: UNKNOWN_KEY}).der)
    assert len(key_identities(odd)) == 1
    (listed,) = verified_crls(revocation_list(ca.authority, [], NOW), [odd, ca.certificate])
    assert listed.issuer_key == key_identities(ca.certificate)[0]
    assert ClientTrust([odd, ca.certificate]).verify([ca.client("jane").der], NOW).common_name == "jane"


@pytest.mark.parametrize("info", [encoded(SEQUENCE), UNKNOWN_KEY], ids=["no algorithm", "an unknown kind"])
def test_a_leaf_with_a_key_that_cannot_be_read_is_refused(info: bytes) -> None:
    ca = ThrowawayCA("kubernetes", NOW)
    leaf = edited(ca.key, plain(ca), {KEY: info})
    with pytest.raises(PeerCertificateError) as raised:
        ClientTrust([ca.certificate]).verify([leaf.der], NOW)
    assert raised.value.code in ("weak-key", "malformed")


def test_a_bundle_names_the_certificate_that_cannot_be_read() -> None:
    good, bad = root(EXAMPLE).pem, root(name(attribute(COMMON_NAME, UTF8, b"\xff"))).pem
    with pytest.raises(
        CertificateUnreadableError, match=rf"^certificate 2 of 3, in line {good.count(10) + 2}: the issuer "
    ):
        certificates(b"# of us\n" + good + bad + good)
    with pytest.raises(CertificateUnreadableError, match=r"^the issuer of the certificate cannot be read: "):
        certificates(bad)


def test_the_fingerprint_is_the_sha_256_of_the_certificate() -> None:
    ca = root(EXAMPLE, now=NOW)
    assert Certificate(ca.der).fingerprint == hashlib.sha256(ca.der).hexdigest()
