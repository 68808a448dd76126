"""Bootstrap data of k3s: rows that Go's libraries made open, ours are the same bytes, and each failure has its own name."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.sharedkeys import k3sbootstrapdata
from mooring.trust.sharedkeys.k3sbootstrapdata import (
    EMPTY_KEY,
    AnotherTokenError,
    BootstrapFile,
    DamagedBootstrapDataError,
    NoBootstrapDataError,
    UnfinishedBootstrapDataError,
    decrypt,
    open_rows,
    row_key,
    seal_row,
)

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors/trust/k3sbootstrapdata.json").read_bytes()
)["vectors"]
SENTENCES = [one["sentence"] for one in VECTORS]
TOKEN, OTHER = Secret("0123456789abcdef0123456789abcdef"), Secret("fedcba9876543210fedcba9876543210")
CHANGED = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def row(plaintext: bytes, passphrase: Secret = TOKEN) -> dict[str, bytes]:
    """Return a whole row with any plaintext."""
    return dict([sealed_text(plaintext, passphrase)])


def sealed_text(plaintext: bytes, passphrase: Secret) -> tuple[str, bytes]:
    def keep(files: object) -> bytes:
        return plaintext

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(k3sbootstrapdata, "encode_files", keep)
        return seal_row({}, passphrase, os.urandom)


# ── vectors ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vector", VECTORS, ids=SENTENCES)
def test_a_row_of_go_opens(vector: dict[str, Any]) -> None:
    passphrase = Secret(vector["passphrase"])
    assert row_key(passphrase) == vector["key"]
    opened = open_rows({vector["key"]: vector["value"].encode()}, passphrase)
    files = {name: base64.b64encode(one.content.reveal()).decode() for name, one in opened.files.items()}
    assert (opened.key, files) == (vector["key"], vector["files"])


@pytest.mark.parametrize("vector", VECTORS, ids=SENTENCES)
def test_a_row_that_is_sealed_here_has_the_bytes_of_go(vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    passphrase = Secret(vector["passphrase"])
    if not passphrase:
        with pytest.raises(ConfigError, match="empty token"):
            seal_row({}, passphrase, os.urandom)
        return
    drawn = {8: bytes.fromhex(vector["salt"]), 12: bytes.fromhex(vector["nonce"])}
    monkeypatch.setattr(k3sbootstrapdata, "encode_files", lambda files: base64.b64decode(vector["plaintext"]))
    assert seal_row({}, passphrase, drawn.__getitem__) == (vector["key"], vector["value"].encode())


def test_the_times_of_files_are_read() -> None:
    opened = open_rows({VECTORS[0]["key"]: VECTORS[0]["value"].encode()}, TOKEN)
    assert opened.files["ServerCAKey"].changed == datetime(2024, 5, 6, 5, 8, 9, 123457, tzinfo=UTC)
    assert opened.files["ServerCA"].changed == datetime(2024, 5, 6, 5, 8, 9, 123457, tzinfo=UTC)
    assert opened.files["PasswdFile"].changed is None


def test_files_come_back_as_they_were() -> None:
    files = {
        "ServerCA": BootstrapFile(Secret(b"certificate"), CHANGED),
        "ServerCAKey": BootstrapFile(Secret(bytes(range(256)))),
        "EncryptionHash": BootstrapFile(Secret(b"")),
    }
    key, value = seal_row(files, TOKEN, os.urandom)
    opened = open_rows({key: value, "/bootstrap/000000000000": b"of another token"}, TOKEN)
    assert opened.files == files
    assert opened.weakness == ""
    assert b"certificate" not in value


# ── rows of old versions ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_of_the_empty_passphrase_opens_and_is_named() -> None:
    legacy = VECTORS[-1]
    opened = open_rows({EMPTY_KEY: legacy["value"].encode()}, TOKEN)
    assert "CVE-2021-32001" in opened.weakness
    assert set(opened.files) == {"ServerCA", "ClientCA"}


def test_a_row_of_the_whole_token_opens_and_is_named() -> None:
    whole = Secret("K10" + "0" * 64 + "::server:" + TOKEN.reveal().decode())
    opened = open_rows(row(b"{}", whole), TOKEN, whole)
    assert opened.weakness == "the passphrase is the whole text of the token"
    assert opened.key == row_key(whole)


def test_the_row_of_the_token_is_preferred() -> None:
    rows = {EMPTY_KEY: VECTORS[-1]["value"].encode(), **row(b"{}")}
    assert open_rows(rows, TOKEN).weakness == ""


# ── rows that do not open ─────────────────────────────────────────────────────────────────────────────────────────


def good() -> bytes:
    return next(iter(row(b"{}").values()))


DAMAGED = {
    "a value without a colon": lambda value: value.replace(b":", b""),
    "a value that is not base64": lambda value: value + b"!",
    "a value that is cut": lambda value: value[:-8],
    "a value with a nonce alone": lambda value: value[:17] + base64.b64encode(bytes(12)),
    "a value without a nonce": lambda value: value[:17],
    "another salt": lambda value: b"0" * 16 + value[16:],
    "a value that is too large": lambda value: value + b"A" * k3sbootstrapdata.MAX_VALUE,
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_told_apart_from_a_wrong_token(damage: Any) -> None:
    with pytest.raises(DamagedBootstrapDataError, match="is damaged"):
        open_rows({row_key(TOKEN): damage(good())}, TOKEN)


def test_a_row_of_another_token_is_a_wrong_token() -> None:
    with pytest.raises(AnotherTokenError, match="another token"):
        open_rows(row(b"{}", OTHER), TOKEN)


def test_an_empty_token_opens_rows_of_the_empty_passphrase_alone() -> None:
    with pytest.raises(AnotherTokenError):
        open_rows(row(b"{}"), Secret(""))
    assert open_rows({EMPTY_KEY: VECTORS[-1]["value"].encode()}, Secret("")).weakness


def test_a_datastore_without_rows_is_named() -> None:
    with pytest.raises(NoBootstrapDataError, match="no key below /bootstrap"):
        open_rows({}, TOKEN)


def test_the_lock_of_a_server_that_creates_the_row_is_named() -> None:
    with pytest.raises(UnfinishedBootstrapDataError, match="lock"):
        open_rows({row_key(TOKEN): b""}, TOKEN)


NOT_FILES = {
    "not JSON": b"\xff\xfe",
    "a list": b"[]",
    "brackets without an end": b'{"ServerCA":' + b"[" * 100_000,
    "a file that is a number": b'{"ServerCA": 5}',
    "an old file that is not base64": b'{"ServerCA": "x!"}',
    "a file whose content is not base64": b'{"ServerCA": {"Content": "x!"}}',
    "a file whose time is none": b'{"ServerCA": {"Timestamp": "yesterday"}}',
}


@pytest.mark.parametrize("plaintext", NOT_FILES.values(), ids=NOT_FILES)
def test_a_plaintext_that_holds_no_files_is_damaged(plaintext: bytes) -> None:
    with pytest.raises(DamagedBootstrapDataError, match="something that is no bootstrap data"):
        open_rows(row(plaintext), TOKEN)


def test_files_that_k3s_does_not_know_are_passed_over() -> None:
    plaintext = b'{"Later": 5, "ServerCA": {}, "ClientCA": null, "ServiceKey": {"Timestamp": null, "Content": "eA==", "Mode": 1}}'
    opened = open_rows(row(plaintext), TOKEN)
    assert {name: one.content.reveal() for name, one in opened.files.items()} == {
        "ServerCA": b"",
        "ClientCA": b"",
        "ServiceKey": b"x",
    }


REFUSED: dict[str, tuple[dict[str, BootstrapFile], str]] = {
    "a name that k3s does not know": ({"Other": BootstrapFile(Secret(b""))}, "no file 'Other'"),
    "more than a row holds": ({"ServerCA": BootstrapFile(Secret(bytes(2 << 20)))}, "larger than 2 MiB"),
}


@pytest.mark.parametrize(("files", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_sealed(files: dict[str, BootstrapFile], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        seal_row(files, TOKEN, os.urandom)


def test_no_error_repeats_what_is_secret() -> None:
    key, value = seal_row({"ServerCA": BootstrapFile(Secret(b"private"))}, TOKEN, os.urandom)
    with pytest.raises(DamagedBootstrapDataError) as raised:
        decrypt(key, value[:-4], TOKEN)
    assert "private" not in str(raised.value)
    assert TOKEN.reveal().decode() not in str(raised.value)
    assert "private" not in repr(open_rows({key: value}, TOKEN))
