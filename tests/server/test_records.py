"""Bytes through TLS in memory: nothing is lost, repeated or mixed up (RFC 8446 5, RFC 5246 6.2)."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from OpenSSL import SSL

from mooring.server.records import RECORD, WRITE_PIECE, Records
from tests.server.test_idlecost import Pair
from tests.support.testca import ThrowawayCA

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module", params=VERSIONS, ids=["TLS 1.2", "TLS 1.3"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(ThrowawayCA(), request.param)


@pytest.fixture(params=VERSIONS, ids=["TLS 1.2", "TLS 1.3"])
def fresh(request: pytest.FixtureRequest) -> Pair:
    return Pair(ThrowawayCA(), request.param)


def everything(records: Records, pair: Pair) -> list[bytes]:
    return list(iter(lambda: records.read(pair.tls), b""))


def heard(pair: Pair, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += pair.peer.read(size - len(found))
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(size=st.integers(1, WRITE_PIECE), as_view=st.booleans())
def test_what_is_written_arrives(pair: Pair, size: int, as_view: bool) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    pair._in.write(Records().write(pair.tls, memoryview(data) if as_view else data))
    assert heard(pair, size) == data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(st.integers(1, 2 * RECORD), max_size=4), cut=st.integers(0, 100))
def test_what_arrives_is_read_record_by_record_however_it_is_cut(pair: Pair, sizes: list[int], cut: int) -> None:
    records = Records()
    data = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    if data:
        pair.peer.write(data)
    sent = pair._out.read()
    found: list[bytes] = []
    for piece in (sent[:cut], sent[cut:]):
        if piece:
            pair.tls.bio_write(piece)
        found += everything(records, pair)
    assert b"".join(found) == data
    assert all(len(one) <= RECORD for one in found)


def test_two_sessions_share_a_buffer_and_no_bytes(fresh: Pair) -> None:
    other, records = Pair(ThrowawayCA(), ssl.TLSVersion.TLSv1_3), Records()
    for one, data in ((fresh, b"one"), (other, b"other")):
        one.peer.write(data)
        one.tls.bio_write(one._out.read())
    first, second = records.read(fresh.tls), records.read(other.tls)
    assert (first, second) == (b"one", b"other")


def test_nothing_is_no_error(fresh: Pair) -> None:
    assert Records().read(fresh.tls) == b""


def test_the_end_is_told(fresh: Pair) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        fresh.peer.unwrap()
    fresh.tls.bio_write(fresh._out.read())
    with pytest.raises(SSL.ZeroReturnError):
        Records().read(fresh.tls)


def test_what_is_no_record_is_an_error(fresh: Pair) -> None:
    fresh.tls.bio_write(bytes(100))
    with pytest.raises(SSL.Error):
        Records().read(fresh.tls)


def test_writing_after_the_end_is_an_error(fresh: Pair) -> None:
    fresh.tls.shutdown()
    with pytest.raises(SSL.Error):
        Records().write(fresh.tls, b"x")
