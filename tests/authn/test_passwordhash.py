"""Passwords as they may be stored (RFC 7914; the PHC string format)."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from hypothesis import example, given
from hypothesis import strategies as st

from mooring.authn.passwordhash import (
    HASH_BYTES,
    MAX_MEMORY,
    MAX_WORK,
    PREFIX,
    SALT_BYTES,
    PasswordHash,
    hash_password,
    parse_hash,
)
from mooring.errors import ConfigError
from mooring.secret import Secret

SALT = base64.b64encode(bytes(16)).decode().rstrip("=")
HASH = base64.b64encode(bytes(32)).decode().rstrip("=")
COSTLY = "the hash is too costly: 128·r·2^ln is at most 128 MiB, and r·p·2^ln at most 2^21"
SIZES = "the hash must have 8 to 64 bytes of salt, and 16 to 64 of hash, in base64"
FORM = "what begins with $scrypt$ is not a hash of the form $scrypt$ln=…,r=…,p=…$salt$hash; it has commas, put it in quotes"


def test_the_third_vector_of_rfc_7914_section_12() -> None:
    """`scrypt (P="pleaseletmein", S="SodiumChloride", N=16384, r=8, p=1, dkLen=64)`."""
    expected = (
        "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
        "d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887"
    )
    hashed = PasswordHash(14, 8, 1, b"SodiumChloride", bytes(64))
    assert hashed.derive(Secret("pleaseletmein")).hex() == expected


def test_what_is_stored_is_read_back_and_derived_again() -> None:
    hashed = hash_password(Secret("correct horse"), bytes(range(SALT_BYTES)))
    read = parse_hash(hashed.text())
    assert read == hashed
    assert hashed.text().startswith("$scrypt$ln=15,r=8,p=1$AAECAwQFBgcICQoLDA0ODw$")
    assert len(hashed.expected) == HASH_BYTES
    assert read.derive(Secret("correct horse")) == hashed.expected
    assert read.derive(Secret("correct horse ")) != hashed.expected


def test_another_library_derives_the_same() -> None:
    hashed = hash_password(Secret("žluťoučký kůň"), bytes(SALT_BYTES))
    Scrypt(bytes(SALT_BYTES), HASH_BYTES, 1 << 15, 8, 1).verify("žluťoučký kůň".encode(), hashed.expected)


@pytest.mark.parametrize(
    ("parameters", "cost"),
    [
        pytest.param("ln=10,r=1,p=1", (10, 1, 1), id="the least"),
        pytest.param("ln=17,r=8,p=1", (17, 8, 1), id="the most memory"),
        pytest.param("ln=16,r=8,p=2", (16, 8, 2), id="the second of OWASP"),
        pytest.param("ln=13,r=8,p=10", (13, 8, 10), id="the last of OWASP"),
        pytest.param("ln=11,r=1,p=999", (11, 1, 999), id="little memory, much work"),
    ],
)
def test_costs_that_are_accepted(parameters: str, cost: tuple[int, int, int]) -> None:
    hashed = parse_hash(f"$scrypt${parameters}${SALT}${HASH}")
    assert (hashed.ln, hashed.r, hashed.p) == cost
    assert hashed.work == (cost[1] * cost[2]) << cost[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("$scrypt$", FORM, id="nothing behind the name"),
        pytest.param("$scrypt$ln=15", FORM, id="what is left of it without quotes in the file"),
        pytest.param(f"$scrypt$ln=15,r=8$${SALT}${HASH}", FORM, id="a parameter missing"),
        pytest.param(f"$scrypt$r=8,ln=15,p=1${SALT}${HASH}", FORM, id="parameters in another order"),
        pytest.param(f"$scrypt$ln=015,r=8,p=1${SALT}${HASH}", FORM, id="a zero in front"),
        pytest.param(f"$scrypt$ln=15,r=8,p=0${SALT}${HASH}", FORM, id="no parallelism"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${SALT}=${HASH}", FORM, id="padding"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${SALT}${HASH}$", FORM, id="something behind"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${SALT}${HASH}\n", FORM, id="a line end behind"),
        pytest.param(f"$scrypt$ln=١٥,r=8,p=1${SALT}${HASH}", FORM, id="digits of another script"),
        pytest.param(f"$scrypt$ln=9,r=8,p=1${SALT}${HASH}", "the hash is too weak: ln must be 10 or more", id="too weak"),
        pytest.param(f"$scrypt$ln=18,r=8,p=1${SALT}${HASH}", COSTLY, id="too much memory"),
        pytest.param(f"$scrypt$ln=17,r=9,p=1${SALT}${HASH}", COSTLY, id="too much memory by its blocks"),
        pytest.param(f"$scrypt$ln=17,r=8,p=3${SALT}${HASH}", COSTLY, id="too much work"),
        pytest.param(f"$scrypt$ln=99,r=999,p=999${SALT}${HASH}", COSTLY, id="far too much"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1$AAAA${HASH}", SIZES, id="a short salt"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${'A' * 88}${HASH}", SIZES, id="a long salt"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${SALT}$AAAA", SIZES, id="a short hash"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${SALT}${'A' * 88}", SIZES, id="a long hash"),
        pytest.param(f"$scrypt$ln=15,r=8,p=1${SALT}A${'A' * 41}", SIZES, id="what base64 cannot be"),
    ],
)  # fmt: skip
def test_what_is_no_hash_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_hash(text)
    assert str(refused.value) == why


@given(st.text(max_size=80), st.text(st.sampled_from("0123456789$,=lnrpA+/"), max_size=80))
@example("", "ln=17,r=8,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA")
def test_whatever_is_read_is_bounded(text: str, likely: str) -> None:
    for given_text in (text, PREFIX + text, PREFIX + likely):
        try:
            hashed = parse_hash(given_text)
        except ConfigError:
            continue
        assert 128 * (hashed.r << hashed.ln) <= MAX_MEMORY
        assert hashed.work <= MAX_WORK


@pytest.mark.parametrize("cost", [(10, 1, 1), (10, 1, 64), (10, 32, 2), (11, 1, 999)])
def test_no_bounded_cost_is_refused_for_its_memory(cost: tuple[int, int, int]) -> None:
    assert len(PasswordHash(*cost, bytes(8), bytes(16)).derive(Secret("x"))) == 16


def test_the_hash_is_not_shown() -> None:
    assert HASH not in repr(parse_hash(f"$scrypt$ln=15,r=8,p=1${SALT}${HASH}"))
    assert "expected" not in repr(parse_hash(f"$scrypt$ln=15,r=8,p=1${SALT}${HASH}"))
