"""Certificate policies along a path: which paths Go's `x509.Verify` accepts when it demands no policy.

The verdicts are those of Go 1.27 on the same certificates, which agreed with Mooring on 800 random paths as well.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import encoded
from mooring.pki.x509.verify import ClientTrust
from tests.support.rawcertificate import (
    CA_TRUE,
    COMMON_NAME,
    EXTENSIONS,
    ISSUER,
    SEQUENCE,
    SUBJECT,
    TRUE,
    UTF8,
    Foreign,
    attribute,
    edited,
    extension,
    extensions,
    name,
    oid,
    plain,
    root,
)
from tests.support.testca import ThrowawayCA

A, B, C, ANY = "1.2.3.1", "1.2.3.2", "1.2.3.3", "2.5.29.32.0"
NOW = datetime.now(UTC)


def policies(*oids: str, critical: bytes = b"") -> bytes:
    return extension("551d20", encoded(SEQUENCE, *(encoded(SEQUENCE, oid(one)) for one in oids)), critical)


def mapped(issuer: str, subject: str) -> bytes:
    return extension("551d21", encoded(SEQUENCE, encoded(SEQUENCE, oid(issuer), oid(subject))), TRUE)


def required(after: int) -> bytes:
    return extension("551d24", encoded(SEQUENCE, encoded(0x80, bytes((after,)))), TRUE)


def unmapped(after: int) -> bytes:
    return extension("551d24", encoded(SEQUENCE, encoded(0x81, bytes((after,)))), TRUE)


def both(explicit: int, mapping: int) -> bytes:
    return extension(
        "551d24", encoded(SEQUENCE, encoded(0x80, bytes((explicit,))), encoded(0x81, bytes((mapping,)))), TRUE
    )


def no_any(after: int) -> bytes:
    return extension("551d36", encoded(0x02, bytes((after,))), TRUE)


Extensions = tuple[bytes, ...]


def path(*below: Extensions, self_issued: int | None = None, of_root: Extensions = ()) -> list[Foreign]:
    """Return a chain, leaf first and root last, of the extensions of each certificate below the root, from the root on."""
    top = root(named("root"), *of_root, now=NOW)
    chain, key, issuer = [top], top.key, named("root")
    *cas, leaf = below
    for number, every in enumerate(cas):
        subject = issuer if number == self_issued else named(f"ca {number}")
        start = plain(ThrowawayCA(now=NOW))
        own = extensions(extension("551d13", CA_TRUE, TRUE), *every)
        made = edited(key, start, {ISSUER: issuer, SUBJECT: subject, EXTENSIONS: own})
        chain.append(made)
        key, issuer = made.key, subject
    chain.append(edited(key, plain(ThrowawayCA(now=NOW)), {ISSUER: issuer, EXTENSIONS: extensions(*leaf)}))
    return chain[::-1]


def named(common_name: str) -> bytes:
    return name(attribute(COMMON_NAME, UTF8, common_name.encode()))


def verified(chain: list[Foreign]) -> str:
    """Return "" for a chain that verifies, and the code of its refusal otherwise."""
    try:
        ClientTrust([Certificate(chain[-1].der)]).verify([one.der for one in chain[:-1]], NOW)
    except PeerCertificateError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(path((), ()), id="no policy, and none demanded"),
        pytest.param(path((), (policies(A, critical=TRUE),)), id="a critical policy of the leaf restricts nothing"),
        pytest.param(path((policies(A, critical=TRUE),), ()), id="nor does that of a CA"),
        pytest.param(path((policies(A),), (policies(B),)), id="policies that do not fit, without a demand"),
        pytest.param(path((policies(A), required(0)), (policies(A),)), id="the demanded policy"),
        pytest.param(path((policies(ANY), required(0)), (policies(A),)), id="any policy above"),
        pytest.param(path((policies(A), required(0)), (policies(ANY),)), id="any policy below"),
        pytest.param(path((required(3),), (), ()), id="a demand that begins further down"),
        pytest.param(path((policies(A), required(0), mapped(A, B)), (policies(B),)), id="a policy of another name"),
        pytest.param(path((policies(ANY), required(0), mapped(A, B)), (policies(B),)), id="another name for any"),
        pytest.param(
            path((policies(A), unmapped(0)), (policies(A), mapped(A, B)), (policies(B),)),
            id="a mapping that is inhibited, without a demand",
        ),
        pytest.param(path((), (policies(A), no_any(0)), (policies(A),)), id="any policy is inhibited, and none stated"),
        pytest.param(
            path((policies(ANY), no_any(0), required(0)), (policies(ANY),), (policies(A),), self_issued=1),
            id="any policy of a self-issued CA counts",
        ),
        pytest.param(path((), (), of_root=(required(0),)), id="the demand of the root does not count"),
        pytest.param(path((policies(A),), (policies(A), required(0))), id="a demand of the leaf that is met"),
        pytest.param(path((), (mapped(ANY, A),), ()), id="a mapping of any policy where none is left"),
    ],
)
def test_paths_that_verify(chain: list[Foreign]) -> None:
    assert verified(chain) == ""


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(path((required(0),), ()), id="no policy at all"),
        pytest.param(path((policies(A), required(0)), ()), id="none of the leaf"),
        pytest.param(path((policies(A), required(0)), (policies(B),)), id="another of the leaf"),
        pytest.param(path((required(1),), (), ()), id="none, after one more CA"),
        pytest.param(path((policies(A), required(0)), (policies(B),), (policies(B),)), id="none of the CA between"),
        pytest.param(path((policies(A), required(0), mapped(A, B)), (policies(A),)), id="the name of before"),
        pytest.param(
            path((policies(A), both(0, 0)), (policies(A), mapped(A, B)), (policies(B),)),
            id="a mapping that is inhibited",
        ),
        pytest.param(path((policies(A), mapped(ANY, A)), (policies(A),)), id="a mapping of any policy"),
        pytest.param(
            path((policies(ANY), no_any(0), required(0)), (policies(ANY),)), id="any policy, which is inhibited"
        ),
        pytest.param(path((), (required(0),)), id="a demand of the leaf itself"),
    ],
)
def test_paths_that_do_not_verify(chain: list[Foreign]) -> None:
    assert verified(chain) == "no-valid-policy"
