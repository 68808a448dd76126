"""Recent proofs of node passwords."""

from __future__ import annotations

from mooring.secret import Secret
from mooring.trust.k3s.nodepassword import MAX_PROOFS, PROOF_KEY_BYTES, PROOF_SECONDS, RecentProofs

RIGHT, WRONG = Secret("00112233445566778899aabbccddeeff"), Secret("ffeeddccbbaa99887766554433221100")


def proofs() -> RecentProofs:
    found = RecentProofs(bytes(PROOF_KEY_BYTES))
    found.add("uid-1", RIGHT, 100.0)
    return found


def test_a_proof_counts_once() -> None:
    found = proofs()
    assert found.take("uid-1", RIGHT, 101.0)
    assert not found.take("uid-1", RIGHT, 101.0)


def test_a_proof_counts_for_its_time() -> None:
    assert proofs().take("uid-1", RIGHT, 100.0 + PROOF_SECONDS - 0.1)
    assert not proofs().take("uid-1", RIGHT, 100.0 + PROOF_SECONDS)


def test_a_proof_is_seen_without_its_password() -> None:
    assert proofs().has("uid-1", 101.0)
    assert not proofs().has("uid-1", 100.0 + PROOF_SECONDS)
    assert not proofs().has("uid-2", 101.0)


def test_a_proof_is_for_one_secret_and_one_password() -> None:
    found = proofs()
    assert not found.take("uid-2", RIGHT, 101.0), "a Secret that was made again has another uid"
    assert not found.take("uid-1", WRONG, 101.0)
    assert found.take("uid-1", RIGHT, 101.0), "a wrong password leaves the proof"


def test_a_later_proof_takes_the_place_of_an_earlier_one() -> None:
    found = proofs()
    found.add("uid-1", WRONG, 105.0)
    assert not found.take("uid-1", RIGHT, 106.0)
    assert found.take("uid-1", WRONG, 105.0 + PROOF_SECONDS - 0.1)


def test_old_proofs_are_forgotten() -> None:
    found = proofs()
    found.add("uid-2", RIGHT, 100.0 + PROOF_SECONDS)
    assert list(found._proofs) == ["uid-2"]


def test_the_number_of_proofs_is_bounded() -> None:
    found = proofs()
    for number in range(MAX_PROOFS):
        found.add(f"other-{number}", RIGHT, 101.0)
    assert not found.take("uid-1", RIGHT, 101.0)
    assert found.take("other-0", RIGHT, 101.0)


def test_neither_key_nor_password_is_shown_or_kept() -> None:
    assert repr(proofs()) == "RecentProofs()"
    assert RIGHT.reveal() not in repr(proofs()._proofs).encode()
