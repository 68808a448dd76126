"""The next CA of a cluster, and the certificates by which the old and the new CA vouch for each other."""

from __future__ import annotations

from datetime import timedelta

from cryptography import x509

from mooring.pki.keys import generate_key
from mooring.pki.x509 import names
from mooring.pki.x509.clusterca import cross_sign, find_cross_signed, successor
from tests.support.plans import entropy
from tests.support.testca import ThrowawayCA, by_library

OLD, OTHER = ThrowawayCA("kubernetes"), ThrowawayCA("other")
NOW = OLD.now
NEW = successor(generate_key(), NOW, entropy)


def test_a_new_ca_has_a_name_of_its_own() -> None:
    assert names.common_name(NEW.certificate.subject) == f"kubernetes@{int(NOW.timestamp())}"
    by_library(NEW.certificate).verify_directly_issued_by(by_library(NEW.certificate))


def test_a_cross_signed_certificate_stands_for_the_ca_under_another() -> None:
    found = cross_sign(NEW.certificate, OLD.authority, NOW, entropy)
    by_library(found).verify_directly_issued_by(by_library(OLD.certificate))
    assert (found.subject, found.public_key()) == (NEW.certificate.subject, NEW.certificate.public_key())
    assert found.not_valid_after_utc <= min(NEW.not_after, OLD.authority.not_after)
    identifiers = [
        by_library(one).extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        for one in (found, NEW.certificate)
    ]
    assert identifiers[0] == identifiers[1], "leaves name their issuer by it"


def test_a_ca_of_another_program_keeps_its_key_identifier() -> None:
    """Go 1.25 makes it of a SHA-256, and some CAs have none."""
    made = {}
    for name, extensions in (("given", [(x509.SubjectKeyIdentifier(b"0123456789"), False)]), ("none", ())):
        ca = OTHER.custom(name, extensions=extensions)
        found = cross_sign(ca.certificate, OLD.authority, NOW + timedelta(minutes=1), entropy)
        made[name] = by_library(found).extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert made["given"].digest == b"0123456789"
    assert len(made["none"].digest) == 20


def test_a_cross_signed_certificate_is_found_by_both_its_cas() -> None:
    kept = [cross_sign(NEW.certificate, OLD.authority, NOW, entropy), cross_sign(OLD.certificate, NEW, NOW, entropy)]
    assert find_cross_signed(kept, NEW.certificate, OLD.certificate) is kept[0]
    assert find_cross_signed(kept, OLD.certificate, NEW.certificate) is kept[1]
    assert find_cross_signed(kept, NEW.certificate, OTHER.certificate) is None
    assert find_cross_signed(kept, ThrowawayCA("kubernetes").certificate, NEW.certificate) is None, "another key"
