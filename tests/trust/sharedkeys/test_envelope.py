"""Sealed keys: what opens a row, what each change of it does, and what a row may ask of its reader."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, private_key_pem, public_key_pem
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.bundles import certificates_pem
from mooring.secret import Secret
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.envelope import DamagedKeysError, SharedKeysRow, TokenTerm, WrongTokenError
from mooring.trust.sharedkeys.keyset import MAX_BYTES, SharedKeySet, are_related, authorities_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CLUSTER = "8f2b1c9e-0000-4000-8000-000000000001"
TOKEN, OTHER = Secret("0123456789abcdef"), Secret("fedcba9876543210")


REAL_N = envelope.N


@cache
def ca(number: int) -> tuple[Authority, bytes]:
    key = generate_key()
    return self_signed_ca(key, "kubernetes", NOW, number), private_key_pem(key)


def authority(number: int = 1) -> Authority:
    return ca(number)[0]


def files(number: int = 1, **more: bytes) -> dict[str, Secret]:
    one, key = ca(number)
    given = {name.replace("_", "."): Secret(data) for name, data in more.items()}
    return {"ca.crt": Secret(one.certificate_pem), "ca.key": Secret(key), **given}


def keys(number: int = 1, **more: bytes) -> SharedKeySet:
    return SharedKeySet.of(files(number, **more))


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", 16)


def sealed(*tokens: Secret) -> tuple[SharedKeysRow, Secret]:
    content = keys()
    terms = [TokenTerm(one, 100, 0 if number == 0 else 200) for number, one in enumerate(tokens or (TOKEN,))]
    return envelope.seal(envelope.claim(CLUSTER, content), content, terms, os.urandom)


def first_version() -> tuple[SharedKeysRow, Secret]:
    """Return a row as the first version of the program wrote it."""
    data_key, nonce, content = Secret(os.urandom(32)), os.urandom(12), keys()
    wrap = envelope._wrap(CLUSTER, data_key, TokenTerm(TOKEN), os.urandom)
    row = replace(envelope.claim(CLUSTER, content), generation=2, wraps=(wrap,), version=1, nonce=nonce, names=())
    plain = msgspec.json.encode({name: one.reveal() for name, one in content.files.items()})
    return replace(row, data=AESGCM(data_key.reveal()).encrypt(nonce, plain, envelope._header(row))), data_key


# ── the set ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_set_names_the_ca_that_issues_first() -> None:
    bundle = certificates_pem([authority(2).certificate, authority(1).certificate])
    found = SharedKeySet.of(
        {**files(1), "ca.crt": Secret(bundle), "retired-ca.crt": Secret(authority(3).certificate_pem)}
    )
    by_number = {number: authorities_of(authority(number).certificate_pem)[0] for number in (1, 2, 3)}
    assert found.authorities == (by_number[1], by_number[2], by_number[3])
    assert authorities_of(bundle, authority(3).certificate_pem) == (by_number[2], by_number[1], by_number[3])


def test_sets_with_a_ca_in_common_belong_to_one_cluster() -> None:
    both = SharedKeySet.of(
        {**files(1), "ca.crt": Secret(certificates_pem([authority(1).certificate, authority(2).certificate]))}
    )
    assert are_related(both.authorities, keys(2).authorities)
    assert not are_related(keys(1).authorities, keys(2).authorities)


def test_the_fingerprint_follows_every_file_and_not_the_form_of_a_key() -> None:
    public = public_key_pem(authority(2).public_key)
    found = {
        keys().fingerprint,
        keys(2).fingerprint,
        keys(sa_pub=public).fingerprint,
        keys(lineage_pub=public).fingerprint,
    }
    assert len(found) == 4
    reworded = {**files(), "ca.key": Secret(b"a comment\n" + files()["ca.key"].reveal())}
    assert SharedKeySet.of(reworded).fingerprint == keys().fingerprint


BAD_SETS: dict[str, tuple[Any, str]] = {
    "an unknown file": (lambda: {**files(), "../x": Secret(b"")}, "no file '../x'"),
    "no certificate": (lambda: {"ca.key": files()["ca.key"]}, "ca.crt is missing"),
    "no key": (lambda: {"ca.crt": files()["ca.crt"]}, "ca.key is missing"),
    "the key of another CA": (lambda: {**files(), "ca.key": files(2)["ca.key"]}, "ca.crt: "),
    "a certificate that is none": (lambda: {**files(), "cross-signed.crt": Secret(b"x")}, "cross-signed.crt: "),
    "a key that is none": (lambda: {**files(), "sa.key": Secret(b"x")}, "sa.key: "),
    "more than a set needs": (lambda: {**files(), "sa.pub": Secret(b"x" * MAX_BYTES)}, "larger than 256 KiB"),
}


@pytest.mark.parametrize(("make", "reason"), BAD_SETS.values(), ids=BAD_SETS)
def test_refused_sets(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SharedKeySet.of(make())


# ── sealing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_that_was_stored_is_opened_by_its_token() -> None:
    row, data_key = sealed()
    stored = envelope.decode(envelope.encode(row))
    assert stored == row
    assert stored.is_sealed
    assert envelope.unlock(stored, TOKEN) == data_key
    assert envelope.open_keys(stored, data_key) == keys()


def test_no_private_key_and_no_token_stands_in_a_row() -> None:
    value = envelope.encode(sealed()[0])
    for line in files()["ca.key"].reveal().splitlines():
        assert line not in value
    assert TOKEN.reveal() not in value


def test_another_token_opens_nothing() -> None:
    row, _ = sealed()
    with pytest.raises(WrongTokenError, match="this server token does not open them"):
        envelope.unlock(row, OTHER)


def test_every_token_of_a_row_opens_the_keys_and_tells_the_others() -> None:
    row, data_key = sealed(TOKEN, OTHER)
    assert [envelope.unlock(row, token) for token in (TOKEN, OTHER)] == [data_key, data_key]
    one, two = row.wraps
    terms = (TokenTerm(TOKEN, 100, 0, one.id), TokenTerm(OTHER, 100, 200, two.id))
    assert envelope.open_terms(row, data_key) == terms
    resealed, _ = envelope.seal(row, keys(), terms, os.urandom)
    assert [wrap.id for wrap in resealed.wraps] == [one.id, two.id]
    assert resealed.wraps[0].salt != one.salt
    assert [one.is_over(200) for one in row.wraps] == [False, True]
    assert not row.wraps[1].is_over(199)


def test_a_row_of_the_first_version_is_read_and_written_back_as_it_was() -> None:
    row, data_key = first_version()
    stored = envelope.decode(envelope.encode(row))
    assert b"until" not in envelope.encode(row)
    assert envelope.unlock(stored, TOKEN) == data_key
    assert envelope.open_keys(stored, data_key) == keys()
    assert envelope.open_terms(stored, data_key) == ()
    following = envelope.decode(envelope.encode(envelope.reseal(stored, keys(2), data_key, os.urandom)))
    assert (following.version, envelope.open_keys(following, data_key)) == (1, keys(2))
    after, new_key = envelope.seal(stored, keys(), [TokenTerm(OTHER, 5)], os.urandom)
    assert (after.version, envelope.open_terms(after, new_key)) == (2, (TokenTerm(OTHER, 5, 0, after.wraps[0].id),))


def test_a_removed_token_opens_neither_the_row_nor_with_its_old_wrap_what_comes_later() -> None:
    before, old_key = sealed(TOKEN, OTHER)
    after, new_key = envelope.seal(before, keys(), [TokenTerm(OTHER)], os.urandom)
    with pytest.raises(WrongTokenError):
        envelope.unlock(after, TOKEN)
    assert envelope.unlock(replace(after, wraps=before.wraps), TOKEN) == old_key
    with pytest.raises(WrongTokenError, match="of another data key"):
        envelope.open_keys(after, old_key)
    assert envelope.open_keys(after, new_key) == keys()


def test_no_more_tokens_than_a_reader_tries() -> None:
    tokens = [Secret(f"token-number-{number:04}") for number in range(envelope.MAX_WRAPS)]
    row, _ = sealed(*tokens)
    for wrong in ([], [*tokens, OTHER]):
        with pytest.raises(ConfigError, match="one to 4 server tokens"):
            envelope.seal(row, keys(), [TokenTerm(one) for one in wrong], os.urandom)


def test_each_generation_has_a_nonce_of_its_own_and_the_same_tokens() -> None:
    row, data_key = sealed()
    following = envelope.reseal(row, keys(2), data_key, os.urandom)
    assert (following.generation, following.wraps) == (row.generation + 1, row.wraps)
    assert following.nonce != row.nonce
    assert envelope.open_keys(following, data_key) == keys(2)
    assert envelope.open_terms(following, data_key) == envelope.open_terms(row, data_key)


CHANGES: dict[str, Any] = {
    "another cluster": lambda row: replace(row, cluster="other"),
    "an earlier generation": lambda row: replace(row, generation=row.generation - 1),
    "another fingerprint": lambda row: replace(row, fingerprint="00"),
    "other authorities": lambda row: replace(row, authorities=("sha256:00",)),
    "another end of a token": lambda row: replace(row, wraps=(replace(row.wraps[0], until=1),)),
    "another time at which a token was made": lambda row: replace(row, wraps=(replace(row.wraps[0], created=1),)),
    "one wrap less": lambda row: replace(row, wraps=()),
    "the first version": lambda row: replace(row, version=1),
    "another nonce": lambda row: replace(row, nonce=bytes(12)),
    "other content": lambda row: replace(row, data=row.data[:-1] + bytes([row.data[-1] ^ 1])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_outside_of_the_servers_is_not_opened(change: Any) -> None:
    row, data_key = sealed()
    with pytest.raises(WrongTokenError):
        envelope.open_keys(change(row), data_key)


WRAP_CHANGES: dict[str, Any] = {
    "another identifier": lambda wrap: replace(wrap, id="00"),
    "other costs": lambda wrap: replace(wrap, n=wrap.n * 2),
    "another salt": lambda wrap: replace(wrap, salt=bytes(16)),
}


@pytest.mark.parametrize("change", WRAP_CHANGES.values(), ids=WRAP_CHANGES)
def test_a_changed_wrap_opens_nothing(change: Any) -> None:
    row, _ = sealed()
    with pytest.raises(WrongTokenError):
        envelope.unlock(replace(row, wraps=(change(row.wraps[0]),)), TOKEN)


def test_a_wrap_of_another_cluster_opens_nothing() -> None:
    row, _ = sealed()
    with pytest.raises(WrongTokenError):
        envelope.unlock(replace(row, cluster="other"), TOKEN)


CONTENT: dict[str, tuple[Any, str]] = {
    "no JSON": (b"x", "they cannot be read"),
    "the content of the first version": (msgspec.json.encode({"ca.crt": b"x"}), "they cannot be read"),
    "no set of keys": (msgspec.json.encode({"files": {"ca.crt": b"x"}, "tokens": []}), "ca.key is missing"),
    "other keys than the row names": (None, "the fingerprint is of others"),
}


@pytest.mark.parametrize(("text", "reason"), CONTENT.values(), ids=CONTENT)
def test_content_that_a_holder_of_the_data_key_spoilt(text: bytes | None, reason: str) -> None:
    row, data_key = sealed()
    other = {"files": {name: one.reveal() for name, one in files(2).items()}, "tokens": []}
    plain = msgspec.json.encode(other) if text is None else text
    cipher = AESGCM(data_key.reveal())
    spoilt = replace(row, data=cipher.encrypt(row.nonce, plain, envelope._header(row)))
    with pytest.raises(DamagedKeysError, match=reason):
        envelope.open_keys(spoilt, data_key)


def test_tokens_that_are_of_other_wraps_are_damage() -> None:
    row, data_key = sealed()
    plain = msgspec.json.encode({"files": {}, "tokens": [{"token": "eA==", "created": 1, "until": 2}]})
    spoilt = replace(row, data=AESGCM(data_key.reveal()).encrypt(row.nonce, plain, envelope._header(row)))
    with pytest.raises(DamagedKeysError, match="of other wraps"):
        envelope.open_terms(spoilt, data_key)


# ── reading rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_claim_holds_no_keys() -> None:
    row = envelope.decode(envelope.encode(envelope.claim(CLUSTER, keys())))
    assert not row.is_sealed
    assert row.authorities == keys().authorities


def _wrapped(**change: Any) -> Any:
    def changed(row: dict[str, Any]) -> None:
        row["wraps"][0].update(change)

    return changed


BAD_ROWS: dict[str, Any] = {
    "a wrap that asks for gigabytes": _wrapped(n=1 << 24),
    "a wrap whose cost is no power of two": _wrapped(n=(1 << 16) + 1),
    "a wrap that costs nothing": _wrapped(n=1),
    "a wrap of wide blocks": _wrapped(r=1 << 10),
    "a wrap that takes minutes": _wrapped(p=1 << 10),
    "a wrap without parallelism": _wrapped(p=0),
    "a wrap with a short salt": _wrapped(salt="AA=="),
    "a wrap with a short nonce": _wrapped(nonce="AA=="),
    "a wrap with a short key": _wrapped(key="AA=="),
    "a wrap of a text": _wrapped(n="many"),
    "too many wraps": lambda row: row.update(wraps=row["wraps"] * 5),
    "keys that nothing opens": lambda row: row.pop("wraps"),
    "wraps of nothing": lambda row: row.pop("sealed"),
    "a nonce of another length": lambda row: row["sealed"].update(nonce="AA=="),
    "content that is not base64": lambda row: row["sealed"].update(data="?"),
    "generation 0": lambda row: row.update(generation=0),
    "no CA": lambda row: row.update(authorities=[]),
    "more CAs than a set has": lambda row: row.update(authorities=["x"] * 257),
    "a member that nobody knows": lambda row: row.update(more=1),
    "no cluster": lambda row: row.pop("cluster"),
    "a version of a later program": lambda row: row.update(version=3),
    "times in the first version": lambda row: row.update(version=1),
}


@pytest.mark.parametrize("change", BAD_ROWS.values(), ids=BAD_ROWS)
def test_refused_rows(change: Any) -> None:
    row = msgspec.json.decode(envelope.encode(sealed()[0]))
    change(row)
    with pytest.raises(DamagedKeysError) as raised:
        envelope.decode(msgspec.json.encode(row))
    assert ("update it" in str(raised.value)) == (row.get("version") == 3)


NO_ROWS = {
    "empty": b"",
    "no JSON": b"x",
    "a list": b"[]",
    "no version": b"{}",
    "too long": b" " * (envelope.MAX_ROW + 1),
    "brackets without an end": b'{"a":' + b"[" * 100_000,
}


@pytest.mark.parametrize("value", NO_ROWS.values(), ids=NO_ROWS)
def test_values_that_are_no_row(value: bytes) -> None:
    with pytest.raises(DamagedKeysError, match="restore it from a backup"):
        envelope.decode(value)


def test_a_row_is_written_with_costs_that_a_reader_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", REAL_N)
    row, data_key = sealed()
    assert row.wraps[0].n * row.wraps[0].r * 128 == 64 << 20
    assert envelope.unlock(envelope.decode(envelope.encode(row)), TOKEN) == data_key
