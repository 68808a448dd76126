"""Certificates as other programs make them: what can be read is what Go's `x509.ParseCertificate` reads.

Each verdict here is that of Go 1.27 on the same bytes (`crypto/x509/parser.go`), but for those whose row says otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki.errors import CertificateUnreadableError
from mooring.pki.keys import generate_key
from mooring.pki.x509 import der, names
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import DerError, encoded
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import BasicConstraints
from tests.support.rawcertificate import (
    ALGORITHM,
    BMP,
    CA_TRUE,
    CLIENT_AUTH,
    COMMON_NAME,
    EXTENSIONS,
    FALSE,
    IA5,
    NUMERIC,
    PRINTABLE,
    SEQUENCE,
    SERIAL,
    SET,
    STATE,
    SUBJECT,
    T61,
    TRUE,
    UNIVERSAL,
    UTF8,
    VALIDITY,
    VERSION,
    Foreign,
    attribute,
    edited,
    extension,
    extensions,
    name,
    oid,
    plain,
)
from tests.support.testca import ThrowawayCA, by_library

CA = ThrowawayCA()
UUID = "6983ffffffffffffffffffffffffffffffffff7f"
"""2.25.340282366920938463463374607431768211455: Go limits no number of a policy."""
PLAIN = plain(CA, "jane", "dev")


def with_(changes: dict[int, bytes | None]) -> bytes:
    return edited(CA.key, PLAIN, changes).der


def of_name(*rdns: bytes) -> bytes:
    return with_({SUBJECT: name(*rdns)})


def having(*every: bytes) -> bytes:
    return with_({EXTENSIONS: extensions(*every)})


def cn(tag: int, value: bytes) -> bytes:
    return attribute(COMMON_NAME, tag, value)


@pytest.mark.parametrize(
    ("encoding", "common_name"),
    [
        pytest.param(of_name(cn(T61, b"J\xf6rg")), "Jörg", id="T61String is read as Latin-1"),
        pytest.param(of_name(attribute(STATE, T61, b"Rh\xf4ne"), cn(UTF8, b"jane")), "jane", id="T61 in any attribute"),
        pytest.param(of_name(cn(BMP, "Jörg".encode("utf-16-be"))), "Jörg", id="BMPString"),
        pytest.param(of_name(cn(BMP, "Jörg\0".encode("utf-16-be"))), "Jörg", id="BMPString with a terminator"),
        pytest.param(of_name(cn(PRINTABLE, b"*.a & b")), "*.a & b", id="PrintableString with a star and an ampersand"),
        pytest.param(of_name(cn(IA5, b"a@b")), "a@b", id="IA5String"),
        pytest.param(of_name(cn(NUMERIC, b"12 3")), "12 3", id="NumericString"),
        pytest.param(of_name(cn(UTF8, b"")), "", id="an empty value"),
        pytest.param(of_name(), "", id="no attribute"),
        pytest.param(with_({SUBJECT: encoded(SEQUENCE, encoded(SET))}), "", id="an empty RDN"),
        pytest.param(of_name(cn(UTF8, b"z") + cn(UTF8, b"a")), "a", id="a set that is not sorted"),
        pytest.param(of_name(cn(UTF8, b"a") + cn(UTF8, b"a")), "a", id="an attribute twice in one RDN"),
    ],
)
def test_names_that_are_read(encoding: bytes, common_name: str) -> None:
    assert names.common_name(Certificate(encoding).subject) == common_name


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        pytest.param(of_name(cn(UTF8, b"\xff")), "a value that is no UTF8String", id="UTF8String in Latin-1"),
        pytest.param(of_name(cn(PRINTABLE, b"a@b")), "no PrintableString", id="PrintableString with a commercial at"),
        pytest.param(of_name(cn(IA5, b"\xe9")), "no IA5String", id="IA5String outside ASCII"),
        pytest.param(of_name(cn(NUMERIC, b"1a")), "no NumericString", id="NumericString with a letter"),
        pytest.param(of_name(cn(BMP, b"abc")), "no BMPString", id="BMPString of an odd length"),
        pytest.param(of_name(cn(BMP, b"\xd8\x3d\xde\x00")), "no BMPString", id="BMPString with surrogates"),
        pytest.param(of_name(cn(BMP, b"\xff\xfe")), "no BMPString", id="BMPString with a noncharacter"),
        pytest.param(of_name(cn(UNIVERSAL, b"\0\0\0a")), "no text", id="UniversalString"),
        pytest.param(of_name(cn(der.OCTET_STRING, b"a")), "no text", id="OCTET STRING"),
        pytest.param(of_name(cn(SEQUENCE, b"")), "no text", id="a structure"),
        pytest.param(with_({SUBJECT: encoded(SEQUENCE, encoded(SEQUENCE))}), "another type", id="no set"),
        pytest.param(of_name(encoded(SET)), "another type", id="no attribute in a set"),
        pytest.param(of_name(encoded(SEQUENCE, oid(COMMON_NAME))), "cut off", id="an attribute without a value"),
    ],
)
def test_names_that_are_refused(encoding: bytes, message: str) -> None:
    with pytest.raises(CertificateUnreadableError, match=message) as raised:
        Certificate(encoding)
    assert str(raised.value).startswith("the subject of the certificate cannot be read: ")


NOTICE = encoded(SEQUENCE, encoded(0x1A, "ausgestellt für".encode("latin-1")))
POLICY = encoded(
    SEQUENCE, oid("1.3.6.1.4.1.99999.1"), encoded(SEQUENCE, encoded(SEQUENCE, oid("1.3.6.1.5.5.7.2.2"), NOTICE))
)
LDAP = encoded(
    SEQUENCE, encoded(SEQUENCE, encoded(0xA0, encoded(0xA0, encoded(0x86, "ldap:///CN=Stelle ö".encode("latin-1")))))
)
LENGTH_0 = encoded(der.INTEGER, b"\0")


@pytest.mark.parametrize(
    "encoding",
    [
        pytest.param(having(extension("551d13", encoded(SEQUENCE, LENGTH_0))), id="no CA, and a length of paths"),
        pytest.param(having(extension("551d13", encoded(SEQUENCE, FALSE))), id="CA:FALSE written out"),
        pytest.param(having(extension("551d13", CA_TRUE, FALSE)), id="not critical, written out"),
        pytest.param(having(extension("551d20", encoded(SEQUENCE, POLICY))), id="a notice of a policy in Latin-1"),
        pytest.param(having(extension("551d1f", LDAP)), id="an LDAP address outside ASCII"),
        pytest.param(
            having(extension("1.3.6.1.5.5.7.1.1", b"\xff\xff")),
            id="information of the CA that is no DER, which Go refuses and nobody reads here",
        ),
        pytest.param(having(extension("551d11", encoded(SEQUENCE, encoded(0xA3, b"x")))), id="x400Address"),
        pytest.param(having(extension("551d11", encoded(SEQUENCE, encoded(0xA5, b"x")))), id="ediPartyName"),
        pytest.param(having(extension("551d11", encoded(SEQUENCE))), id="no alternative name"),
        pytest.param(
            having(extension("551d23", encoded(SEQUENCE, encoded(0xA1, b"x"), encoded(0x82, b"\1")))),
            id="an issuer by its name",
        ),
        pytest.param(having(extension("551d0f", encoded(der.BIT_STRING, b"\0\1"))), id="encipherOnly alone"),
        pytest.param(having(extension("551d0f", encoded(der.BIT_STRING, b"\0"))), id="no usage at all"),
        pytest.param(having(extension("551d25", encoded(SEQUENCE))), id="no purpose at all"),
        pytest.param(having(extension("1.3.36.8.3.3", b"\x30\x03abc")), id="an admission of German law"),
        pytest.param(
            having(extension("551d0f", encoded(der.BIT_STRING, b"\7\x80") + b"\0")), id="bytes behind the value"
        ),
        pytest.param(
            having(encoded(SEQUENCE, oid("551d13"), encoded(der.OCTET_STRING, CA_TRUE), b"\5\0")),
            id="bytes behind an extension",
        ),
        *(
            pytest.param(
                having(extension("551d1e", encoded(SEQUENCE, encoded(0xA0, encoded(SEQUENCE, encoded(kind, text)))))),
                id=f"constraints by {text!r}",
            )
            for kind, text in (
                (0x82, b".a.b"),
                (0x82, b""),
                (0x87, b"\x0a\0\0\0\xff\xff\xf0\0"),
                (0x87, bytes(32)),
                (0x81, b"a@b"),
                (0x86, b"a.b"),
                (0x88, b"\x2a"),
            )
        ),
        pytest.param(
            having(extension("551d20", encoded(SEQUENCE, encoded(SEQUENCE, oid(UUID))))), id="the policy of a UUID"
        ),
        pytest.param(
            having(extension("551d21", encoded(SEQUENCE, encoded(SEQUENCE, oid(UUID), oid("2a"))))),
            id="a policy that is mapped to that of a UUID",
        ),
        pytest.param(having(), id="an empty list of extensions"),
        pytest.param(with_({EXTENSIONS: None}), id="no extensions"),
        pytest.param(with_({VERSION: None}), id="version 1 with extensions"),
        pytest.param(with_({VERSION: b"\xa0\3\2\1\0", EXTENSIONS: None}), id="version 1 written out"),
        pytest.param(with_({VERSION: b"\xa0\3\2\1\1"}), id="version 2 with extensions"),
        pytest.param(with_({EXTENSIONS: encoded(0x81, b"\0\1") + PLAIN.parts[EXTENSIONS]}), id="a unique identifier"),
        pytest.param(with_({SERIAL: b"\2\1\0"}), id="the serial number 0"),
        pytest.param(with_({SERIAL: encoded(der.INTEGER, b"\1" + bytes(21))}), id="a long serial number"),
    ],
)
def test_certificates_that_are_read(encoding: bytes) -> None:
    found = Certificate(encoding)
    assert (names.common_name(found.subject), names.organizations(found.subject)) == ("jane", ("dev",))
    assert found.is_issued_by(CA.certificate)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        pytest.param(
            having(CLIENT_AUTH, CLIENT_AUTH), "the extension extended key usage stands there twice", id="one twice"
        ),
        pytest.param(
            having(*[extension("1.2.3", b"")] * 2), "the extension 1.2.3 stands there twice", id="another twice"
        ),
        pytest.param(
            having(b"\2\1\1"), "the extensions cannot be read: an extension is of another type", id="no extension"
        ),
        pytest.param(
            having(extension("2a" * 64, b"")),  # Go reads it
            "the extensions cannot be read: an object identifier has more than 63 octets",
            id="a kind of extension that the library does not hold",
        ),
        pytest.param(
            having(extension("551d13", CA_TRUE, b"\1\1\1")),
            "the extensions cannot be read: a truth value",
            id="neither true nor false",
        ),
        pytest.param(having(extension("551d13", b"\5\0")), "basic constraints cannot be read", id="basic constraints"),
        pytest.param(
            having(extension("551d13", encoded(SEQUENCE, TRUE, b"\2\1\xff"))),
            "basic constraints cannot be read: a number is negative",
            id="a negative length",
        ),
        pytest.param(
            having(extension("551d13", encoded(SEQUENCE, TRUE, encoded(2, b"\1" + bytes(8))))),
            "negative or too large",
            id="an endless length",
        ),
        pytest.param(
            having(extension("551d0f", encoded(der.BIT_STRING, b"\7\x81"))),
            "key usage cannot be read",
            id="bits that are not there",
        ),
        pytest.param(
            having(extension("551d0f", encoded(der.BIT_STRING, b"\1"))),
            "key usage cannot be read",
            id="a bit of nothing",
        ),
        pytest.param(
            having(extension("551d25", encoded(SEQUENCE, b"\2\1\1"))),
            "extended key usage cannot be read",
            id="a purpose that is none",
        ),
        pytest.param(
            having(extension("551d11", encoded(SEQUENCE, encoded(0x82, b"\xe9")))),
            "a name outside ASCII",
            id="a DNS name outside ASCII",
        ),
        pytest.param(
            having(extension("551d11", encoded(SEQUENCE, encoded(0x87, b"\1\2\3\4\5")))),
            "an IP address of 5 octets",
            id="an address that is none",
        ),
        pytest.param(
            having(extension("551d0e", encoded(4, b"x"), TRUE)),
            "subject key identifier cannot be read: it is marked as critical",
            id="a critical key identifier",
        ),
        pytest.param(
            having(extension("551d23", encoded(SEQUENCE), TRUE)),
            "authority key identifier cannot be read: it is marked",
            id="that of the issuer",
        ),
        pytest.param(
            having(extension("551d20", encoded(SEQUENCE, *[encoded(SEQUENCE, oid("1.2.3"))] * 2))),
            "a policy stands there twice",
            id="a policy twice",
        ),
        pytest.param(
            having(extension("551d1e", encoded(SEQUENCE))), "it constrains nothing", id="constraints of nothing"
        ),
        pytest.param(
            having(extension("551d1e", encoded(SEQUENCE, b"\5\0"))), "bytes follow the end", id="other constraints"
        ),
        pytest.param(
            with_({VERSION: b"\xa0\3\2\1\3"}),
            "the version of the certificate cannot be read: it is none of 1, 2 and 3",
            id="version 4",
        ),
        pytest.param(
            with_({SERIAL: b"\2\2\0\1"}),
            "the serial number of the certificate cannot be read",
            id="a serial number that is too long",
        ),
        pytest.param(
            with_({SERIAL: b"\2\1\xff"}),
            "the serial number of the certificate cannot be read: it is negative",
            id="a negative serial number",
        ),
        pytest.param(
            with_({VERSION: b"\xa0\3\2\1\1", EXTENSIONS: b"\x81\x7f"}),
            "the unique identifiers of the certificate cannot be read: an element is cut off",
            id="an identifier of version 2 that is cut off",
        ),
        pytest.param(
            having(extension("551d11", encoded(SEQUENCE, encoded(0x86, b"http://a b/")))),
            "subject alternative name cannot be read: it has a URI that is none",
            id="a URI that is none",
        ),
        *(
            pytest.param(
                having(extension("551d1e", encoded(SEQUENCE, encoded(tree, encoded(SEQUENCE, encoded(kind, text)))))),
                "name constraints cannot be read: it has a name or an address of another form",
                id=f"constraints by {text!r}",
            )
            for tree, kind, text in (
                (0xA0, 0x87, b"12345"),
                (0xA0, 0x87, b"\x0a\0\0\0\xff\0\xff\0"),
                (0xA1, 0x87, b""),
                (0xA0, 0x82, b"a.b."),
                (0xA1, 0x82, b"\xc3\xbc"),
                (0xA0, 0x81, b"a b@c"),
                (0xA0, 0x86, b"192.0.2.1"),
            )
        ),
        *(
            pytest.param(
                having(extension("551d20", encoded(SEQUENCE, encoded(SEQUENCE, oid(kind))))),
                "certificate policies cannot be read: an object identifier is cut off",
                id=f"the policy {kind!r}",
            )
            for kind in ("", "2a80", "2a8001", "8001")
        ),
        pytest.param(
            with_({SERIAL: b"\2\0"}),
            "the serial number of the certificate cannot be read",
            id="a serial number of nothing",
        ),
        pytest.param(PLAIN.der + b"\0", "the certificate cannot be read: bytes follow the end", id="a byte behind it"),
        pytest.param(PLAIN.der[:-1], "the certificate cannot be read: an element is cut off", id="cut off"),
        pytest.param(b"\x30\x80\0\0", "shortest form", id="an endless element"),
        pytest.param(b"\x30\x81\x01\0", "shortest form", id="a length that is too long"),
        pytest.param(b"\x30\x82\0\x80" + bytes(128), "shortest form", id="a length with a leading zero"),
        pytest.param(b"\x3f\x01\0", "another type", id="another tag"),
        pytest.param(encoded(SEQUENCE, b"\x1f\x01\0"), "another type", id="a long tag"),
        pytest.param(
            encoded(SEQUENCE, PLAIN.der),
            "the certificate cannot be read: an element is missing",
            id="a certificate in a sequence",
        ),
    ],
)
def test_certificates_that_are_refused(encoding: bytes, message: str) -> None:
    with pytest.raises(CertificateUnreadableError, match=message):
        Certificate(encoding)


def test_both_places_of_the_algorithm_are_the_same() -> None:
    other = encoded(SEQUENCE, oid("1.2.840.10045.4.3.3"))
    encoding = with_({ALGORITHM: other})
    whole = der.only(encoding, SEQUENCE).fields()
    data, _, signature = whole.any(), whole.any(), whole.any()
    with pytest.raises(CertificateUnreadableError, match="the signature algorithm of the certificate cannot be read"):
        Certificate(encoded(SEQUENCE, data.encoding, PLAIN.parts[ALGORITHM], signature.encoding))


BEGIN = encoded(0x17, b"250102030405Z")


@pytest.mark.parametrize(
    ("end", "moment"),
    [
        pytest.param(encoded(0x17, b"260102030405Z"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), id="UTCTime"),
        pytest.param(encoded(0x17, b"2601020304Z"), datetime(2026, 1, 2, 3, 4, tzinfo=UTC), id="without seconds"),
        pytest.param(encoded(0x17, b"260102030405+0130"), datetime(2026, 1, 2, 1, 34, 5, tzinfo=UTC), id="east"),
        pytest.param(encoded(0x17, b"260102030405-0130"), datetime(2026, 1, 2, 4, 34, 5, tzinfo=UTC), id="west"),
        pytest.param(encoded(0x17, b"490102030405Z"), datetime(2049, 1, 2, 3, 4, 5, tzinfo=UTC), id="the year 49"),
        pytest.param(encoded(0x17, b"500102030405Z"), datetime(1950, 1, 2, 3, 4, 5, tzinfo=UTC), id="the year 50"),
        pytest.param(
            encoded(0x18, b"20260102030405Z"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), id="GeneralizedTime"
        ),
        pytest.param(encoded(0x18, b"99991231235959Z"), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), id="no end"),
    ],
)
def test_times_that_are_read(end: bytes, moment: datetime) -> None:
    found = Certificate(with_({VALIDITY: encoded(SEQUENCE, BEGIN, end)}))
    assert found.not_valid_before_utc == datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert found.not_valid_after_utc == moment


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(encoded(0x17, b"260102030405+0000"), id="no offset"),
        pytest.param(encoded(0x17, b"260102030405"), id="no zone"),
        pytest.param(encoded(0x17, b"20260102030405Z"), id="a year of four digits"),
        pytest.param(encoded(0x18, b"260102030405Z"), id="a year of two digits"),
        pytest.param(encoded(0x18, b"20260102030405.5Z"), id="a fraction"),
        pytest.param(encoded(0x18, b"202601020304Z"), id="GeneralizedTime without seconds"),
        pytest.param(encoded(0x17, b"261302030405Z"), id="the thirteenth month"),
        pytest.param(encoded(0x18, b"00010101000000+2359"), id="before the first year, which Go reads"),
        pytest.param(encoded(UTF8, b"260102030405Z"), id="a text"),
    ],
)
def test_times_that_are_refused(end: bytes) -> None:
    with pytest.raises(CertificateUnreadableError, match="the validity of the certificate cannot be read"):
        Certificate(with_({VALIDITY: encoded(SEQUENCE, BEGIN, end)}))


def test_a_key_that_cannot_be_read_makes_no_certificate_unreadable() -> None:
    """A bundle may have CAs with keys of any kind."""
    unknown = CA.certificate.der.replace(bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d027f"))
    certificate = Certificate(unknown)
    assert names.common_name(certificate.subject) == "kubernetes"
    assert not Certificate(PLAIN.der).is_issued_by(certificate)


def test_a_name_of_other_bytes_is_another_name() -> None:
    """Go finds a CA by the bytes of its name."""
    utf8, t61 = (DistinguishedName.read(der.only(name(cn(tag, b"kubernetes")), SEQUENCE)) for tag in (UTF8, T61))
    assert utf8.attributes == t61.attributes
    assert utf8 != t61
    other = edited(CA.key, Foreign(CA.certificate.der, CA.key), {SUBJECT: t61.der})
    assert not Certificate(PLAIN.der).is_issued_by(Certificate(other.der))


@pytest.mark.parametrize(
    ("oid_hex", "numbers"),
    [
        pytest.param("55040a", "2.5.4.10", id="of X.500"),
        pytest.param("2a864886f70d010101", "1.2.840.113549.1.1.1", id="of RSA"),
        pytest.param("27", "0.39", id="below 40"),
        pytest.param("883703", "2.999.3", id="above 40"),
        pytest.param("2a87ffffff7f", "1.2.2147483647", id="the largest number"),
    ],
)
def test_object_identifiers_that_are_read(oid_hex: str, numbers: str) -> None:
    assert der.object_identifier(der.only(oid(oid_hex), der.OID)).dotted_string == numbers


@pytest.mark.parametrize("oid_hex", ["", "2a80", "2a8001", "2a8880808000", "86", "2a" * 64])
def test_object_identifiers_that_are_refused(oid_hex: str) -> None:
    with pytest.raises(DerError):
        der.object_identifier(der.only(oid(oid_hex), der.OID))


LIBRARY: tuple[Callable[[], Certificate], ...] = (
    lambda: CA.certificate,
    lambda: CA.client("jane", "dev", "ops").certificate,
    lambda: CA.server("a.example", "192.0.2.1", "::1").certificate,
    lambda: CA.intermediate("middle", 3).certificate,
    lambda: CA.custom("x", key=generate_key("Ed25519")).certificate,
)


@pytest.mark.parametrize("make", LIBRARY)
def test_the_library_reads_the_same(make: Callable[[], Certificate]) -> None:
    certificate = make()
    theirs = by_library(certificate)
    assert certificate.subject.rfc4514_string() == theirs.subject.rfc4514_string()
    assert certificate.issuer.der == theirs.issuer.public_bytes()
    assert certificate.serial_number == theirs.serial_number
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (
        theirs.not_valid_before_utc,
        theirs.not_valid_after_utc,
    )
    assert certificate.signed_bytes == theirs.tbs_certificate_bytes
    assert certificate.signature == theirs.signature
    assert certificate.public_key() == theirs.public_key()
    assert {one.oid: one.critical for one in theirs.extensions} == {
        one.oid: one.critical for one in certificate.extensions.by_oid.values()
    }
    theirs_constraints = [one.value for one in theirs.extensions if one.oid == ExtensionOID.BASIC_CONSTRAINTS]
    ours = certificate.extensions.basic_constraints
    assert [BasicConstraints(one.ca, one.path_length) for one in theirs_constraints if isinstance(one, x509.BasicConstraints)] == (
        [] if ours is None else [ours]
    )  # fmt: skip


def test_a_certificate_is_shown_by_its_name() -> None:
    assert repr(Certificate(PLAIN.der)).startswith("Certificate('CN=jane,O=dev', serial_number=")
    assert repr(DistinguishedName.of([[(NameOID.COMMON_NAME, "a,b")]])) == r"DistinguishedName('CN=a\\,b')"
    assert Certificate(PLAIN.der) != PLAIN.der


@given(st.binary(max_size=40), st.integers(0, len(PLAIN.der)))
def test_bytes_put_into_a_certificate_never_crash_the_reader(data: bytes, place: int) -> None:
    for encoding in (
        PLAIN.der[:place] + data + PLAIN.der[place:],
        PLAIN.der[:place] + data + PLAIN.der[place + len(data) :],
    ):
        with contextlib.suppress(CertificateUnreadableError):  # any other exception is a bug
            Certificate(encoding)
