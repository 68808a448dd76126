"""Test gzip of large replies: which replies, for which clients, at which cost.

Source: docs/protocol/requests.md#limits; docs/adr/0014.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from mooring.server.response import compression
from mooring.server.response.compression import (
    AT_ONCE,
    MAX_KEPT,
    MIN_BYTES,
    MIN_DOCUMENT_BYTES,
    Compression,
    accepts_gzip,
)
from mooring.server.transport.http import Body, Pieces, Request, Response, in_pieces
from mooring.server.transport.httpgrammar import Header
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.serverroom import Server, in_server
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import Served, reply, request, serving

LARGE = b'{"kind":"List"}' * (MIN_BYTES // 10)
NOISE = random.Random(7).randbytes(MIN_BYTES * 2)
TYPE: Header = (b"content-type", b"application/json")


async def nothing() -> NoReturn:
    raise AssertionError("nobody reads the body of a GET")


def asked(encoding: str = "gzip") -> Request:
    headers = [(b"accept-encoding", encoding.encode())] if encoding else []
    return Request("GET", "/", b"", headers, TlsConnection("192.0.2.1"), nothing)


def finished(response: Response, request: Request | None = None, by: Compression | None = None) -> Response:
    return asyncio.run((by or Compression()).applied(request or asked(), response))


def header(response: Response, name: bytes) -> list[bytes]:
    return [value for key, value in response.headers if key == name]


def is_gzip(response: Response) -> bool:
    return header(response, b"content-encoding") == [b"gzip"]


def plain(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return gzip.decompress(response.body) if is_gzip(response) else response.body


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        pytest.param("gzip", True, id="Go's transport"),
        pytest.param("gzip, deflate, br, zstd", True, id="Python's clients"),
        pytest.param("br;q=1.0, GZIP ; q=0.5", True, id="in capitals, second best, with blanks"),
        pytest.param("x-gzip", True, id="the old name"),
        pytest.param("", False, id="who says nothing"),
        pytest.param("identity", False, id="who wants it as it is"),
        pytest.param("*", False, id="who takes anything, and so also what is there"),
        pytest.param("gzip;q=0", False, id="who refuses it"),
        pytest.param("gzip; q=0.000, deflate", False, id="who refuses it in four digits"),
        pytest.param("gzip;level=0", True, id="another parameter that is zero"),
        pytest.param("gzipped", False, id="a longer word"),
    ],
)
def test_who_accepts_gzip(said: str, wanted: bool) -> None:
    assert accepts_gzip(said) is wanted


@pytest.mark.parametrize(
    ("response", "request_", "wanted"),
    [
        pytest.param(Response(200, LARGE), asked(), True, id="a large reply"),
        pytest.param(Response(201, LARGE), asked(), True, id="whatever its status"),
        pytest.param(Response(200, LARGE), asked(""), False, id="not to who did not ask"),
        pytest.param(Response(200, LARGE[: MIN_BYTES - 1]), asked(), False, id="not a small one"),
        pytest.param(Response(200, NOISE), asked(), False, id="not what does not shrink"),
        pytest.param(Response(200, LARGE[:60_000] + NOISE), asked(), False, id="a head that shrinks does not deceive"),
        pytest.param(
            Response(200, NOISE[:MIN_BYTES] + LARGE + NOISE[:MIN_BYTES]),
            asked(),
            False,
            id="nor does a middle that does",
        ),
        pytest.param(
            Response(200, LARGE[:2000], (TYPE, (b"etag", b'"1"'))),
            asked(),
            True,
            id="a document that is asked for again",
        ),
        pytest.param(
            Response(200, LARGE[: MIN_DOCUMENT_BYTES - 1], (TYPE, (b"etag", b'"1"'))),
            asked(),
            False,
            id="not a document of one packet",
        ),
        pytest.param(Response(304, b"", (TYPE, (b"etag", b'"1"'))), asked(), False, id="not a reply without a body"),
    ],
)
def test_what_is_compressed(response: Response, request_: Request, wanted: bool) -> None:
    sent = finished(response, request_)
    assert is_gzip(sent) is wanted
    assert sent.status == response.status
    assert plain(sent) == response.body


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        pytest.param((), [b"Accept-Encoding"], id="a large object"),
        pytest.param(((b"vary", b"Accept"),), [b"Accept", b"Accept-Encoding"], id="one that varies already"),
        pytest.param(
            ((b"vary", b"Accept-Encoding, Accept"),), [b"Accept-Encoding, Accept"], id="one that says so already"
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["gzip", ""], ids=["asked for", "not asked for"])
def test_what_could_be_compressed_says_so(said: tuple[Header, ...], wanted: list[bytes], encoding: str) -> None:
    assert header(finished(Response(200, LARGE, (TYPE, *said)), asked(encoding)), b"vary") == wanted


def test_a_small_reply_is_left_alone() -> None:
    small = Response(200, b"{}")
    assert finished(small) is small


class Held:
    """Compression that waits until it is let go, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.calls = 0
        monkeypatch.setattr(compression, "compressed", self)

    def __call__(self, body: bytes | Body) -> bytes:
        self.calls += 1
        assert self.go.wait(20)
        return zlib.compress(b"".join(in_pieces(body)[0]), 1, compression.GZIP)


def test_who_finds_everybody_busy_gets_the_reply_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)

    async def scene() -> None:
        compression = Compression()
        first = [asyncio.ensure_future(compression.applied(asked(), Response(200, LARGE))) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        late = await compression.applied(asked(), Response(200, LARGE))
        assert not is_gzip(late)
        assert header(late, b"vary") == [b"Accept-Encoding"]
        held.go.set()
        assert all(is_gzip(sent) for sent in await asyncio.gather(*first))
        assert is_gzip(await compression.applied(asked(), Response(200, LARGE)))

    asyncio.run(scene())


def test_a_failure_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(body: bytes | Body) -> bytes:
        raise MemoryError

    compression = Compression()
    with monkeypatch.context() as broken:
        broken.setattr("mooring.server.response.compression.compressed", fails)
        for _ in range(AT_ONCE + 1):
            with pytest.raises(MemoryError):
                finished(Response(200, LARGE), by=compression)
    assert is_gzip(finished(Response(200, LARGE), by=compression))


def test_documents_are_compressed_once_and_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.go.set()
    compression = Compression()

    def document(number: int) -> bytes:
        etag = (b"etag", b'"%d"' % number)
        return plain(finished(Response(200, b"%d" % number + LARGE, (TYPE, etag)), by=compression))

    assert [document(0), document(0), document(1)] == [b"0" + LARGE, b"0" + LARGE, b"1" + LARGE]
    assert held.calls == 2
    for number in range(2, MAX_KEPT + 1):
        document(number)
    assert held.calls == MAX_KEPT + 1
    document(MAX_KEPT)
    assert held.calls == MAX_KEPT + 1
    document(0)
    assert held.calls == MAX_KEPT + 2, "the oldest was forgotten"


def test_what_does_not_shrink_is_tried_once_a_document() -> None:
    compression = Compression()
    etag = (b"etag", b'"1"')
    for _ in range(2):
        assert plain(finished(Response(200, NOISE, (TYPE, etag)), by=compression)) == NOISE


# -- over real connections ---------------------------------------------------------------------------------------


async def lists(req: Request) -> Response:
    return Response(200, LARGE)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(ThrowawayCA(), lists, transform=Compression().applied) as running:
        yield running


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("127.0.0.1", id="on this host"),
        pytest.param("127.0.0.2", id="elsewhere"),
    ],
)
def test_it_goes_to_whoever_asks_wherever_he_is(served: Served, tmp_path: Path, source: str) -> None:
    raw = socket.create_connection(("127.0.0.1", served.port), timeout=20, source_address=(source, 0))
    context: ssl.SSLContext = served.context(tmp_path)
    with context.wrap_socket(raw, server_hostname="localhost") as peer:
        for _ in range(2):  # the second one shows that the length of the first was right
            peer.sendall(request("/", headers=("Accept-Encoding: gzip",)))
            status, headers, body = reply(peer)
            assert (status, headers.get("content-encoding")) == (200, "gzip")
            assert headers["content-length"] == str(len(body))
            assert gzip.decompress(body) == LARGE


@in_server
async def test_the_documents_of_the_server_shrink(server: Server) -> None:
    compression = Compression()
    for path in ("/openapi/v2", "/openapi/v3/api/v1"):
        response = await server.response("GET", path)
        sent = await compression.applied(asked(), response)
        assert is_gzip(sent), path
        assert json.loads(plain(sent)).keys() >= {"info", "paths"}


@pytest.mark.parametrize(
    ("pieces", "smaller"),
    [
        pytest.param([LARGE[:100], LARGE, LARGE, b"]}"], True, id="a list in pieces"),
        pytest.param([b"x" * 1000] * 1000, True, id="in small pieces"),
        pytest.param([b"[", NOISE, NOISE, b"]"], False, id="pieces that do not shrink"),
        pytest.param([b"x" * 100] * 10, False, id="pieces that are little together"),
    ],
)
def test_a_reply_in_pieces_is_compressed_like_a_whole_one(pieces: list[bytes], smaller: bool) -> None:
    done = finished(Response(200, Pieces(pieces), (TYPE,)))
    assert is_gzip(done) == smaller
    whole = gzip.decompress(done.body) if isinstance(done.body, bytes) else b"".join(done.body)
    assert whole == b"".join(pieces)
