"""Bytes through TLS sessions in memory, by OpenSSL's own functions (docs/adr/0003, docs/adr/0023).

Why not by pyOpenSSL's methods: each makes a buffer of 16 kB, looks for errors of callbacks that are long over, and says by an
exception that nothing more has come; on a request kept alive that takes 7 µs, and this 3 µs. Handshakes, errors and the
goodbye are pyOpenSSL's.

Rules kept here:
* What comes out is copied: one buffer serves all sessions of a thread.
* Errors are those of `SSL.Connection.recv` and `sendall`, except that no whole record is no error.
"""

from __future__ import annotations

from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL

# ruff: noqa: SLF001 - pyOpenSSL has no names for the three things that its own methods hand to OpenSSL

RECORD = 16_384
"""RFC 8446 5.1: no TLS record carries more plain text, so one read never needs a larger buffer."""
RECORD_OVERHEAD = 4096
"""Room for record headers and tags when asking the BIO for what was just encrypted."""
WRITE_PIECE = 32_768
"""Large replies are encrypted and handed to the kernel in pieces, so that memory holds them once, not three times."""


class Records:
    """One for the sessions of one thread."""

    __slots__ = ("_buffer", "_end", "_view")

    def __init__(self) -> None:
        self._buffer = Binding.ffi.new("char[]", WRITE_PIECE + RECORD_OVERHEAD)
        self._view = Binding.ffi.buffer(self._buffer)
        self._end = Binding.ffi.new("char **")

    def read(self, tls: SSL.Connection) -> bytes:
        """The plain text of the next record; b"" when it is not whole. Raises SSL.ZeroReturnError at the end, SSL.Error."""
        lib = Binding.lib
        if not lib.BIO_get_mem_data(tls._into_ssl, self._end):
            return b""
        size = lib.SSL_read(tls._ssl, self._buffer, RECORD)
        if size <= 0:
            try:
                tls._raise_ssl_error(tls._ssl, size)
            except SSL.WantReadError:
                return b""
        return self._copied(size)

    def write(self, tls: SSL.Connection, data: bytes | memoryview) -> bytes:
        """The cipher text of at most WRITE_PIECE bytes, and of what was pending. Raises SSL.Error."""
        lib = Binding.lib
        start, left = Binding.ffi.from_buffer(data), len(data)
        while left:  # it takes one record at a time
            size = lib.SSL_write(tls._ssl, start, left)
            if size <= 0:
                tls._raise_ssl_error(tls._ssl, size)
            start, left = start + size, left - size
        return self._copied(lib.BIO_read(tls._from_ssl, self._buffer, WRITE_PIECE + RECORD_OVERHEAD))

    def _copied(self, size: int) -> bytes:
        copy: bytes = self._view[:size]
        return copy
