"""Replies as gzip, where that saves somebody time (docs/protocol/requests.md#limits, RFC 9110 8.4.1.3, docs/adr/0014).

Rules kept here:
* Only what is large, for a peer that asked for it, and only where the bytes shrink to half or less.
* The event loop never compresses: that is done in threads, a few at a time. When all of them are busy a reply leaves as it
  is, so that nobody waits for a saving.
* A reply with an ETag is a document that is asked for again: its compressed form is kept, a bounded number of them.
* Whatever could have been compressed says `Vary: Accept-Encoding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from isal import isal_zlib

from mooring.server.transport.http import Body, Header, Request, Response, in_pieces

MIN_BYTES = 128 << 10
"""kube-apiserver's threshold: what is smaller arrives in a few round trips as it is."""
MIN_DOCUMENT_BYTES = 1400
"""Documents are compressed once and sent often; what fits one packet cannot get faster."""
LEVEL = 1
"""As small as zlib makes it at kube-apiserver's level, ten times as fast."""
GZIP = 16 + isal_zlib.MAX_WBITS
"""zlib's word for the gzip container."""
SAMPLE = 64 << 10
"""Looked at first: a hundredth of a large list tells whether the rest is worth it.
Taken from the middle, because every reply begins alike."""
WORTH = 0.5
"""Secrets (base64 of random bytes) shrink to 0.7 at 420 MB/s here, and are unpacked at 370 MB/s and by Go at less: on a network
faster than 1 Gbit/s that is a loss of time. Text that repeats shrinks to 0.03 at 6 GB/s."""
AT_ONCE = 2
"""Replies being compressed at the same time: they hold their bytes twice, and take processors from everybody else."""
MAX_KEPT = 64
"""Compressed documents that are kept: all there are of every group version, in both forms."""


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header names gzip and does not refuse it (`q=0`)."""
    for clause in header.lower().split(","):
        coding, *parameters = (part.strip() for part in clause.split(";"))
        if coding in ("gzip", "x-gzip"):
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip() in ("0", "0.0", "0.00", "0.000")


def compressed(body: bytes | Body) -> bytes | None:
    """`body` as gzip, or None when that saves less than half of it. For threads: the interpreter is free meanwhile."""
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
    """Up to `SAMPLE` bytes around the middle, of one piece."""
    passed, middle = 0, b""
    for piece in pieces:
        passed += len(piece)
        middle = piece if len(piece) >= len(middle) else middle
        if 2 * passed >= size and len(middle) >= SAMPLE:
            break
    start = max(0, (len(middle) - SAMPLE) // 2)
    return memoryview(middle)[start : start + SAMPLE]


class Compression:
    """What `Application` asks before it sends a whole reply."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "gzip")
        self._busy = 0
        self._kept: dict[bytes, bytes | None] = {}

    async def applied(self, request: Request, response: Response) -> Response:
        """`response`, or the same compressed."""
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
            smaller = await self._smaller(body, etag)
            if smaller is not None:
                encoded: Header = (b"content-encoding", b"gzip")
                return replace(response, body=smaller, headers=(*headers, encoded))
        return replace(response, headers=headers)

    async def _smaller(self, body: bytes | Body, etag: bytes) -> bytes | None:
        if etag and etag in self._kept:
            return self._kept[etag]
        if self._busy >= AT_ONCE:
            return None
        self._busy += 1
        try:
            smaller = await asyncio.get_running_loop().run_in_executor(self._threads, compressed, body)
        finally:
            self._busy -= 1
        if etag:
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[etag] = smaller
        return smaller


def _value(response: Response, name: bytes) -> bytes:
    """All values of one header, or b""."""
    return b", ".join(value for key, value in response.headers if key == name)
