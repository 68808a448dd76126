"""CRLs of other CAs: which are used, which are refused with which words, and which serial numbers are kept (RFC 5280 5 and 6.3)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ObjectIdentifier

from mooring.pki import keys, pem
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, generate_key, signature_hash
from mooring.pki.x509 import bundles, names
from mooring.pki.x509 import crl as module
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.crl import Crl, described, newest_crls, revoked_anchors, verified_crls
from tests.support.manualclock import EPOCH
from tests.support.slowkeys import rsa_key
from tests.support.testca import Pair, ThrowawayCA

DAY = timedelta(days=1)
OTHER = ThrowawayCA("other", EPOCH)
ROOT = Pair(OTHER.certificate, OTHER.key)
CA_BIT = (x509.BasicConstraints(True, None), True)
Extension = tuple[x509.ExtensionType, bool]


def made(
    *entries: int,
    by: Pair = ROOT,
    extensions: Iterable[Extension] = (),
    of_entry: Iterable[Extension] = (),
    begin: timedelta = timedelta(),
    end: timedelta | None = 7 * DAY,
    using: hashes.SHA224 | hashes.SHA512 | None = None,
) -> bytes:
    """Return a CRL in DER. `of_entry`: extensions of each entry."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(by.certificate.subject.for_builder())
        .last_update(EPOCH + begin)
    )
    builder = builder.next_update(EPOCH + (7 * DAY if end is None else end))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    for serial_number in entries:
        entry = x509.RevokedCertificateBuilder().serial_number(serial_number).revocation_date(EPOCH)
        for extension, critical in of_entry:
            entry = entry.add_extension(extension, critical)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(by.key, using or signature_hash(by.key)).public_bytes(Encoding.DER)


def text(*ders: bytes) -> bytes:
    return b"".join(pem.encode("X509 CRL", der) for der in ders)


def serial_numbers(data: bytes, *cas: Certificate) -> list[set[int]]:
    return [set(one.serial_numbers) for one in verified_crls(data, cas or (OTHER.certificate,))]


REASON = (x509.CRLReason(x509.ReasonFlags.key_compromise), False)
SINCE = (x509.InvalidityDate(EPOCH.replace(tzinfo=None)), False)
KNOWN = [
    (x509.CRLNumber(7), False),
    (x509.AuthorityKeyIdentifier.from_issuer_public_key(OTHER.key.public_key()), False),
    (
        x509.FreshestCRL([x509.DistributionPoint([x509.UniformResourceIdentifier("http://x/")], None, None, None)]),
        False,
    ),
]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        pytest.param(made(), [set()], id="empty"),
        pytest.param(made(5, 6), [{5, 6}], id="DER"),
        pytest.param(b"Certificate Revocation List:\n" + text(made(5)), [{5}], id="PEM with text around it"),
        pytest.param(text(made(5), made(6)), [{5}, {6}], id="several in one text"),
        pytest.param(made(5, extensions=KNOWN), [{5}], id="with the extensions of RFC 5280"),
        pytest.param(made(5, of_entry=[REASON, SINCE]), [{5}], id="with a reason and a date"),
        pytest.param(made(5, using=hashes.SHA512()), [{5}], id="over SHA-512"),
    ],
)
def test_a_crl_gives_its_serial_numbers(data: bytes, found: list[set[int]]) -> None:
    assert serial_numbers(data) == found


def test_what_is_kept_of_a_crl() -> None:
    (found,) = verified_crls(made(5), [OTHER.certificate])
    assert (found.issuer, found.issuer_key) == ("CN=other", key_identities(OTHER.certificate)[0])
    assert (found.this_update, found.next_update) == (EPOCH, EPOCH + 7 * DAY)
    assert [found.is_current(EPOCH + days * DAY) for days in (-1, 0, 7, 8)] == [False, True, True, False]
    assert "serial_numbers" not in repr(found)
    assert described(found) == "the CRL of CN=other from 2026-01-02T03:04:05Z to 2026-01-09T03:04:05Z"


def ca(*extensions: Extension, key: PrivateKey | None = None) -> Pair:
    """Return a CA of the name `other`, with these extensions."""
    return OTHER.custom("other", key=key, extensions=list(extensions))


def usage(**allowed: bool) -> Extension:
    every = dict.fromkeys(
        (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
            "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
        ),
        False,
    )  # fmt: skip
    return x509.KeyUsage(**(every | allowed)), True


AGREEMENT = Pair(
    OTHER.custom(
        "other",
        key=x25519.X25519PrivateKey.generate(),  # type: ignore[arg-type]  # no key of a CA
        extensions=[CA_BIT],
    ).certificate,
    OTHER.key,
)
SIGNING = ca(CA_BIT, usage(key_cert_sign=True, crl_sign=True))
UNLIMITED = ca(CA_BIT)
STRANGER = Pair(ThrowawayCA("else").certificate, OTHER.key)
NO_CRL_SIGN = ca(CA_BIT, usage(key_cert_sign=True))
NO_CA = ca((x509.BasicConstraints(False, None), True))
NOTHING = ca()


@pytest.mark.parametrize("by", [SIGNING, UNLIMITED], ids=["cRLSign", "no key usage"])
def test_a_ca_that_may_sign_crls_does(by: Pair) -> None:
    assert serial_numbers(made(5, by=by), OTHER.certificate, by.certificate) == [{5}]


def element(tag: int, content: bytes) -> bytes:
    """Return an element of DER with a content below 256 octets."""
    size = len(content)
    length = bytes([size]) if size < 0x80 else bytes([0x81, size])
    return bytes([tag]) + length + content


def without_end(der: bytes) -> bytes:
    """Return a CRL without nextUpdate, which the library does not make. Its signature is wrong."""
    tbs = x509.load_der_x509_crl(der).tbs_certlist_bytes
    begin = tbs.index(b"\x17\x0d") + 15  # thisUpdate is a UTCTime
    assert tbs[begin : begin + 2] == b"\x17\x0d"
    header = 2 if tbs[1] < 0x80 else 2 + (tbs[1] & 0x7F)
    rest = der[der.index(tbs) + len(tbs) :]
    return element(0x30, element(0x30, tbs[header:begin] + tbs[begin + 15 :]) + rest)


POINT = x509.IssuingDistributionPoint(
    [x509.UniformResourceIdentifier("http://x/1.crl")], None, False, False, None, False, False
)
STRANGE = x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\5\0")
ANOTHER = x509.CertificateIssuer([x509.DirectoryName(names.subject("another").for_builder())])


@pytest.mark.parametrize(
    ("data", "cas", "words"),
    [
        pytest.param(b"", [ROOT], "neither DER nor does it hold an X509 CRL PEM block", id="nothing"),
        pytest.param(b"junk", [ROOT], "neither DER nor", id="junk"),
        pytest.param(b"\x30\x03\2\1\0", [ROOT], "cannot be parsed", id="other DER"),
        pytest.param(made()[:-1], [ROOT], "cannot be parsed", id="cut"),
        pytest.param(text(b"junk"), [ROOT], "cannot be parsed", id="junk in PEM"),
        pytest.param(OTHER.certificate_pem, [ROOT], "only X509 CRL PEM blocks are allowed, found CERTIFICATE", id="a certificate"),
        pytest.param(made(extensions=[(x509.DeltaCRLIndicator(3), True)]), [ROOT], "is a delta CRL", id="delta"),
        pytest.param(made(extensions=[(POINT, True)]), [ROOT], "covers a part", id="partitioned"),
        pytest.param(made(extensions=[(POINT, False)]), [ROOT], "covers a part", id="partitioned, not critical"),
        pytest.param(made(extensions=[(STRANGE, True)]), [ROOT], "not understood: 1.2.3.4", id="critical extension"),
        pytest.param(made(5, of_entry=[(STRANGE, True)]), [ROOT], "an entry with a critical", id="critical in an entry"),
        pytest.param(made(5, of_entry=[(ANOTHER, True)]), [ROOT], "lists certificates of other CAs", id="indirect"),
        pytest.param(made(), [STRANGER], "CN=other, the issuer of a CRL, is none of", id="unknown CA"),
        pytest.param(made(by=Pair(OTHER.certificate, generate_key())), [ROOT], "was not signed with the key", id="other key"),
        pytest.param(made(by=NO_CRL_SIGN), [NO_CRL_SIGN], "its key usage needs cRLSign", id="no cRLSign"),
        pytest.param(made(), [AGREEMENT], "was not signed with the key", id="a key that signs nothing"),
        pytest.param(without_end(made()), [ROOT], "has no nextUpdate", id="no nextUpdate"),
        pytest.param(made(by=NO_CA), [NO_CA], "does not let it sign CRLs", id="no CA"),
        pytest.param(made(by=NOTHING), [NOTHING], "does not let it sign CRLs", id="no basicConstraints"),
        pytest.param(made(using=hashes.SHA224()), [ROOT], "not signed over SHA-256", id="SHA-224"),
    ],
)  # fmt: skip
def test_a_crl_is_refused(data: bytes, cas: list[Pair], words: str) -> None:
    with pytest.raises(PkiError, match=words):
        verified_crls(data, [one.certificate for one in cas])


def test_a_flipped_bit_in_any_signed_byte_is_noticed() -> None:
    good = made(5)
    signed = x509.load_der_x509_crl(good).tbs_certlist_bytes
    begin = good.index(signed)
    for place in range(begin, begin + len(signed)):
        bad = bytearray(good)
        bad[place] ^= 1
        with pytest.raises(PkiError):
            verified_crls(bytes(bad), [OTHER.certificate])


@pytest.mark.parametrize("name", ["MAX_CRL_BYTES", "MAX_CRLS"])
def test_sizes_are_capped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, 1)
    for data in (text(made(), made()), made()) if name == "MAX_CRL_BYTES" else (text(made(), made()),):
        with pytest.raises(PkiError, match=r"longer than 1 bytes|more than 1 CRLs"):
            verified_crls(data, [OTHER.certificate])


def test_keys_of_other_kinds_sign_too_and_cannot_be_mixed_up() -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), rsa_key(2048)):
        by = ca(CA_BIT, key=key)
        assert serial_numbers(made(5, by=by), by.certificate) == [{5}]
        with pytest.raises(PkiError, match="was not signed"):
            verified_crls(made(5, by=by), [OTHER.certificate])
        with pytest.raises(PkiError, match="was not signed"):
            verified_crls(made(5), [by.certificate])


def crl(key: str, begin: int) -> Crl:
    return Crl("CN=other", key, EPOCH + begin * DAY, EPOCH + (begin + 7) * DAY, frozenset())


def test_the_newest_of_each_ca_counts_and_none_older_than_the_one_in_force() -> None:
    a1, a2, b1 = crl("a", 1), crl("a", 2), crl("b", 1)
    assert newest_crls([a1, b1, a2, a1], {}) == {"a": a2, "b": b1}
    assert newest_crls([a2], {"a": a2, "b": b1}) == {"a": a2}
    with pytest.raises(PkiError, match=r"from 2026-01-03T.* is older than the one in force"):
        newest_crls([a1], {"a": a2})


def test_a_ca_of_the_bundle_that_another_one_has_revoked_is_found() -> None:
    below, beside = OTHER.intermediate("below"), OTHER.intermediate("beside")
    forged = ThrowawayCA("other", EPOCH)  # another key under the same name
    bundle = [forged.certificate, OTHER.certificate, below.certificate, beside.certificate]
    number, own = below.certificate.serial_number, OTHER.certificate.serial_number
    revoked = {key_identities(below.certificate)[0]}
    assert revoked_anchors(bundle, verified_crls(made(number, own), bundle)) == revoked
    assert revoked_anchors(bundle, verified_crls(made(1), bundle)) == set()
    by_forged = verified_crls(made(number, by=Pair(forged.certificate, forged.key)), bundle)
    assert revoked_anchors(bundle, by_forged) == set(), "it has not issued that certificate"


def test_a_crl_that_states_another_algorithm_inside_is_refused() -> None:
    """RFC 5280 5.1.1.2: both fields must be equal. The signature is right."""
    inside = x509.load_der_x509_crl(made()).tbs_certlist_bytes
    sha256, sha384 = bytes.fromhex("06082a8648ce3d040302"), bytes.fromhex("06082a8648ce3d040303")
    assert inside.count(sha256) == 1
    for name in (sha256, sha384):
        signed = inside.replace(sha256, name)
        assert isinstance(OTHER.key, ec.EllipticCurvePrivateKey)
        signature = OTHER.key.sign(signed, ec.ECDSA(hashes.SHA256()))
        encoding = element(0x30, signed + element(0x30, sha256) + element(0x03, b"\0" + signature))
        if name == sha256:
            assert serial_numbers(encoding) == [set()]
            continue
        with pytest.raises(PkiError, match=r"was not signed with the key|cannot be parsed"):
            verified_crls(encoding, [OTHER.certificate])


def test_a_version_1_root_signs_crls(v1_certificate: Callable[[], Certificate], tmp_path: Path) -> None:
    by = Pair(v1_certificate(), keys.load_private_key((tmp_path / "key").read_bytes()))
    assert by.certificate.version == 1
    assert serial_numbers(made(5, by=by), by.certificate) == [{5}]


# -- openssl -----------------------------------------------------------------------------------------------------------

CONFIGURATION = """
[ca]
default_ca = own
[own]
dir = .
database = index.txt
crlnumber = crlnumber
default_md = sha256
default_crl_days = 7
certificate = ca.crt
private_key = ca.key
policy = any
[any]
commonName = supplied
"""


@pytest.fixture
def openssl(tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs `openssl` in a directory that holds a CA of the name `by-hand`."""

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "ca.cnf").write_text(CONFIGURATION)
    (tmp_path / "index.txt").write_text("")
    (tmp_path / "crlnumber").write_text("01\n")
    run("req", "-x509", "-newkey", "rsa:2048", "-noenc", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=by-hand",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    return run


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl on PATH")
@pytest.mark.parametrize("version", [(), ("-crlexts", "extensions")], ids=["version 1", "version 2"])
def test_crls_of_openssl_are_read(openssl: Callable[..., None], tmp_path: Path, version: tuple[str, ...]) -> None:
    config = tmp_path / "ca.cnf"
    text = config.read_text() + "[extensions]\nauthorityKeyIdentifier = keyid\n"
    config.write_text(text if version else text.replace("crlnumber = crlnumber\n", ""))
    openssl("req", "-newkey", "rsa:2048", "-noenc", "-keyout", "jane.key", "-out", "jane.csr", "-subj", "/CN=jane")
    openssl(
        "x509",
        "-req",
        "-in",
        "jane.csr",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-set_serial",
        "0x1234",
        "-out",
        "jane.crt",
    )
    openssl("ca", "-config", "ca.cnf", "-revoke", "jane.crt", *(("-crl_reason", "keyCompromise") if version else ()))
    openssl("ca", "-config", "ca.cnf", "-gencrl", "-out", "crl.pem", *version)
    openssl("crl", "-in", "crl.pem", "-outform", "DER", "-out", "crl.der")
    (authority,) = bundles.certificates((tmp_path / "ca.crt").read_bytes())
    for name in ("crl.pem", "crl.der"):
        assert serial_numbers((tmp_path / name).read_bytes(), authority) == [{0x1234}]
