"""Test the records that a client may send: a turn of the event loop takes few, and few may have no data (RFC 8446 4.6.3, 5.1)."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.transport import tlsconnection
from mooring.server.transport.http import Request, Response
from mooring.server.transport.tlsconnection import FREE_RECORDS, RECORDS_PER_SECOND, RECORDS_PER_TURN, TlsRecords
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import Served, reply, request, rest, serving

KEY_UPDATE = b"\x18\x00\x00\x01\x00"
HANDSHAKE = b"\x16"


async def tell(asked: Request) -> Response:
    return Response(200, str(len(await asked.body())).encode())


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


@pytest.fixture(scope="module")
def server(ca: ThrowawayCA) -> Iterator[Served]:
    with serving(ca, tell) as served:
        yield served


def record(content: bytes) -> bytes:
    return b"\x17\x03\x03" + len(content).to_bytes(2) + content


def key_updates(secret: bytes, number: int) -> bytes:
    """Return that many records with a KeyUpdate each, of a client that has sent nothing else since the handshake."""
    digest: HashAlgorithm = SHA384() if len(secret) == SHA384.digest_size else SHA256()

    def expand(label: bytes, length: int) -> bytes:
        label = b"tls13 " + label
        info = length.to_bytes(2) + bytes([len(label)]) + label + b"\x00"
        return HKDFExpand(digest, length, info).derive(secret)

    records = b""
    for _ in range(number):
        key, nonce = expand(b"key", 32 if len(secret) == SHA384.digest_size else 16), expand(b"iv", 12)
        content = KEY_UPDATE + HANDSHAKE
        header = b"\x17\x03\x03" + (len(content) + 16).to_bytes(2)
        records += header + AESGCM(key).encrypt(nonce, content, header)
        secret = expand(b"traffic upd", len(secret))
    return records


def test_a_flood_of_key_updates_ends_its_connection(server: Served, tmp_path: Path) -> None:
    context = server.context(tmp_path, version=ssl.TLSVersion.TLSv1_3)
    context.keylog_filename = str(tmp_path / "keys")
    with server.client(tmp_path, context=context) as peer:
        lines = dict(line.split(" ", 1) for line in (tmp_path / "keys").read_text().splitlines() if line[:1] != "#")
        secret = bytes.fromhex(lines["CLIENT_TRAFFIC_SECRET_0"].split()[1])
        os.write(peer.fileno(), key_updates(secret, 2 * FREE_RECORDS))
        assert rest(peer) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_of_one_byte_are_served_in_many_turns(
    server: Served, tmp_path: Path, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    decrypt = tlsconnection.TlsProtocol._decrypt_deferred

    def counted(protocol: tlsconnection.TlsProtocol) -> None:
        before = protocol._records.begun
        decrypt(protocol)
        turns.append(protocol._records.begun - before)

    monkeypatch.setattr(tlsconnection.TlsProtocol, "_decrypt_deferred", counted)
    with server.client(tmp_path, version=version) as peer:
        for octet in request("/", "POST", body=b"x" * 5000):
            peer.sendall(bytes([octet]))
        assert reply(peer)[2] == b"5000"
    assert max(turns) <= RECORDS_PER_TURN


@given(st.lists(st.binary(max_size=40), max_size=60), st.lists(st.integers(0, 2000), max_size=20), st.integers(1, 40))
def test_records_are_counted_however_the_bytes_are_cut(contents: list[bytes], cuts: list[int], most: int) -> None:
    data = b"".join(map(record, contents))
    records = TlsRecords()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        part = data[start:end]
        while part:
            before = records.begun
            taken = records.end_of(part, most)
            assert taken > 0
            assert records.begun - before <= most
            part = part[taken:]
    assert records.begun == len(contents)


def test_a_turn_ends_where_a_record_ends() -> None:
    records = TlsRecords()
    assert records.end_of(record(b"abc") * 3, 2) == 2 * len(record(b"abc"))
    assert records.begun == 2


def test_records_without_data_have_a_budget_that_refills_with_time() -> None:
    records = TlsRecords()
    records.start(10)
    assert not records.are_too_empty(FREE_RECORDS + 5, 5, 10)
    assert records.are_too_empty(1, 0, 10)
    assert not records.are_too_empty(0, 0, 10 + 1 / RECORDS_PER_SECOND)
    assert not records.are_too_empty(1000, 1000, 11)
    assert records.are_too_empty(1, 0, 11)
