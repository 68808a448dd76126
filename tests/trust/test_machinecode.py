"""One-time codes of machines: their form, and what a proof proves."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.nodename import (
    comparison_code,
    generate_code,
    is_proven,
    is_verifier,
    parse_code,
    proof,
    same_code,
    verifier,
)

CODE = generate_code(lambda size: bytes(range(size)))
OTHER = generate_code(lambda size: bytes(size))
KEY, OTHER_KEY = b"the public key", b"another public key"


def test_a_code_is_five_groups_of_five() -> None:
    assert re.fullmatch(rb"([A-Z2-7]{5}-){4}[A-Z2-7]{5}", CODE.reveal())
    assert not CODE.matches(OTHER)


def test_a_code_is_read_as_people_type_it() -> None:
    typed = CODE.reveal().lower().replace(b"-", b" ") + b"\n"
    assert verifier(parse_code(typed)) == verifier(CODE)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"ABCDE", id="a part"),
        pytest.param(b"1" * 25, id="a digit that base32 lacks"),
        pytest.param("ü".encode() * 25, id="other letters"),
    ],
)
def test_other_texts_are_refused_without_repeating_them(text: bytes) -> None:
    with pytest.raises(
        ConfigError, match=r"^the machine code must be 25 letters A-Z and digits 2-7, as `mooring machine "
    ):
        parse_code(text)


def test_the_construction_is_fixed() -> None:
    known = Secret("AAAQE-AYEAU-DAOCA-JBIFQ-YDIOB")
    assert known == CODE
    assert verifier(known) == "ed25519:fG2YiWleJgv6Ljgznb/yzqokeC1MRamgCtyZttyxKWQ="
    assert (
        proof(known, "n1", KEY)
        == "LaJTsvyRdjwsRdDoSsbTYiQSbCDcL16Z2nJvedI8vnjKqdYWqqHVjr5Ee5rvAEPPT8cfDkUnaJkVje4CtUmkCw"
    )


def test_a_verifier_is_recognised_by_its_form() -> None:
    assert is_verifier(verifier(CODE))
    assert not is_verifier(verifier(CODE) + "\n")
    assert not is_verifier("sha256:" + "0" * 64)


@pytest.mark.parametrize(
    ("kept", "shown", "expected"),
    [
        pytest.param(verifier(CODE), proof(CODE, "n1", KEY), True, id="this code, name and key"),
        pytest.param(verifier(OTHER), proof(CODE, "n1", KEY), False, id="another code"),
        pytest.param(verifier(CODE), proof(CODE, "n2", KEY), False, id="another name"),
        pytest.param(verifier(CODE), proof(CODE, "n1", OTHER_KEY), False, id="another key"),
        pytest.param(verifier(CODE), "", False, id="no proof"),
        pytest.param(verifier(CODE), "ü", False, id="a proof that is no base64"),
        pytest.param("ed25519:", proof(CODE, "n1", KEY), False, id="a verifier of another form"),
    ],
)
def test_proofs(kept: str, shown: str, expected: bool) -> None:
    assert is_proven(kept, shown, "n1", KEY) is expected


PINS = ("sha256:" + "a" * 64, "sha256:" + "b" * 64)


def test_the_code_that_a_person_compares_is_fixed() -> None:
    assert comparison_code(b"key", PINS) == "KICQ-VWD6"
    assert comparison_code(b"key", (*reversed(PINS), PINS[0])) == comparison_code(b"key", PINS), "in any order"


@pytest.mark.parametrize(
    ("key", "pins"),
    [
        pytest.param(b"another", PINS, id="the key of whoever stands between"),
        pytest.param(b"key", PINS[:1], id="one CA of two"),
        pytest.param(b"key", (), id="no CA"),
        pytest.param(b"keysha256:" + b"a" * 64, PINS[1:], id="the same bytes, parted elsewhere"),
    ],
)
def test_another_key_or_ca_has_another_code(key: bytes, pins: Sequence[str]) -> None:
    assert comparison_code(key, pins) != comparison_code(b"key", PINS)


def test_a_code_may_be_typed_in_any_spelling() -> None:
    assert same_code("ABCD-2345", "abcd2345")
    assert same_code("abcd 2345 ", "ABCD-2345")
    assert not same_code("ABCD-2346", "ABCD-2345")
    assert not same_code("", "")
