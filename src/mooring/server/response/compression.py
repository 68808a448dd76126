"""Compress large replies with gzip where that saves time (docs/protocol/requests.md#limits, RFC 9110 8.4.1.3, docs/adr/0014).

Rules kept here:
* Only large replies are compressed, for clients that accept gzip, and only where the bytes shrink to half or less.
* The event loop never compresses. A few threads do; while all are busy, replies are sent uncompressed, so that none waits.
* A reply with an ETag is a document that is requested again. Its compressed form is cached, for a bounded number of documents.
* Every reply that could be compressed has `Vary: Accept-Encoding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from isal import isal_zlib

from mooring.bounded import Bounded
from mooring.server.transport.http import Body, Request, Response, in_pieces
from mooring.server.transport.httpgrammar import Header

MIN_BYTES = 128 << 10
"""kube-apiserver's threshold: a smaller reply arrives in a few round trips anyway."""
MIN_DOCUMENT_BYTES = 1400
"""Threshold of documents, which are compressed once and sent often. Compression does not speed up what fits one packet."""
LEVEL = 1
"""Level of ISA-L: as small as zlib at kube-apiserver's level, and ten times as fast."""
GZIP = 16 + isal_zlib.MAX_WBITS
"""zlib's `wbits` for the gzip container."""
SAMPLE = 64 << 10
"""Bytes that are compressed first, to decide whether the rest is worth it: a hundredth of a large list. They are taken from the
middle, because all replies begin alike."""
WORTH = 0.5
"""Largest ratio that is worth it. Secrets (base64 of random bytes) shrink to 0.7 at 420 MB/s and are decompressed at 370 MB/s, by
Go at less: on a network faster than 1 Gbit/s that costs time. Repetitive text shrinks to 0.03 at 6 GB/s."""
AT_ONCE = 2
"""Replies that are compressed at the same time. Each is in memory twice, and takes processor time from other requests."""
MAX_KEPT = 64
"""Compressed documents that are cached: those of all group versions, in both forms, fit."""


def accepts_gzip(header: str) -> bool:
    """Return True when an Accept-Encoding header names gzip, unless with `q=0`."""
    for clause in header.lower().split(","):
        coding, *parameters = (part.strip() for part in clause.split(";"))
        if coding in ("gzip", "x-gzip"):
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip() in ("0", "0.0", "0.00", "0.000")


def compressed(body: bytes | Body) -> bytes | None:
    """Return `body` as gzip, or None when that saves less than half. Runs in a thread, without the interpreter lock."""
    pieces, size = in_pieces(body)
    if size > SAMPLE:
        sample = _middle(pieces, size)
        if len(isal_zlib.compress(sample, LEVEL)) > len(sample) * WORTH:
            return None
    if isinstance(body, bytes):
        smaller = isal_zlib.compress(body, LEVEL, GZIP)
    else:
        stream = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, GZIP)
        smaller = b"".join([*map(stream.compress, pieces), stream.flush()])
    return smaller if len(smaller) <= size * WORTH else None


def _middle(pieces: Iterable[bytes], size: int) -> memoryview:
    """Return up to `SAMPLE` bytes of one piece near the middle."""
    passed, middle = 0, b""
    for piece in pieces:
        passed += len(piece)
        middle = piece if len(piece) >= len(middle) else middle
        if 2 * passed >= size and len(middle) >= SAMPLE:
            break
    start = max(0, (len(middle) - SAMPLE) // 2)
    return memoryview(middle)[start : start + SAMPLE]


class Compression:
    """Compression of the whole replies of an `Application`."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "gzip")
        self._busy = 0
        self._cached: Bounded[bytes, bytes | None] = Bounded(MAX_KEPT)

    async def applied(self, request: Request, response: Response) -> Response:
        """Return `response`, compressed if that is worth it."""
        body = response.body
        _, size = in_pieces(body)
        if size < MIN_DOCUMENT_BYTES:
            return response
        etag = _value(response, b"etag")
        if not etag and size < MIN_BYTES:
            return response
        headers = response.headers
        if b"accept-encoding" not in _value(response, b"vary").lower():
            headers = (*headers, (b"vary", b"Accept-Encoding"))
        if accepts_gzip(request.header(b"accept-encoding")):
            smaller = await self._compress(body, etag)
            if smaller is not None:
                encoded: Header = (b"content-encoding", b"gzip")
                return replace(response, body=smaller, headers=(*headers, encoded))
        return replace(response, headers=headers)

    async def _compress(self, body: bytes | Body, etag: bytes) -> bytes | None:
        if etag and etag in self._cached:
            return self._cached[etag]
        if self._busy >= AT_ONCE:
            return None
        self._busy += 1
        try:
            smaller = await asyncio.get_running_loop().run_in_executor(self._threads, compressed, body)
        finally:
            self._busy -= 1
        if etag:
            self._cached[etag] = smaller
        return smaller


def _value(response: Response, name: bytes) -> bytes:
    """Return all values of one header, or b""."""
    return b", ".join(value for key, value in response.headers if key == name)
