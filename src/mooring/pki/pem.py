"""PEM: strict decoding and encoding of blocks (RFC 7468), and the published CA bundle of the serving certificate."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mooring.pki.errors import PemError

# PEM: strict decoding and encoding of blocks (RFC 7468).
#
# Source: docs/protocol/certificate-signing-requests.md#validation.
#
# Rules kept here:
# * A block is `-----BEGIN LABEL-----`, base64 lines, `-----END LABEL-----` with the same label, each boundary on its own
#   line. Text around blocks is allowed (openssl writes it), a begin without its end or undecodable base64 is an error.
# * RFC 1421 headers (`Key: value` lines, as encrypted keys carry) are recognised and refused: no accepted file has them.
# * Blocks are decoded lazily: a caller that needs only the first block does not decode the others.
# * The size of the text is capped before anything is parsed.

MAX_PEM_BYTES = 1 << 20  # a CA bundle of the whole web is a quarter of this; Kubernetes stores no object above 1.5 MiB

CERTIFICATE = "CERTIFICATE"
CERTIFICATE_REQUEST = "CERTIFICATE REQUEST"

_LABEL = rb"([A-Z0-9](?:[A-Z0-9 ]{0,62}[A-Z0-9])?)"
_BEGIN, _END = (
    re.compile(rb"^-----" + word + b" " + _LABEL + rb"-----[ \t]*\r?$", re.MULTILINE) for word in (b"BEGIN", b"END")
)
"""One pattern for all labels: 1 MiB holds 17 000 labels, and Python compiles a pattern in 40 µs."""


@dataclass(frozen=True, slots=True)
class Block:
    """One PEM block: its label, its DER bytes, and the line in which it begins, counted from 1."""

    label: str
    der: bytes
    line: int = 1


def blocks(data: bytes, limit: int = MAX_PEM_BYTES, label: str = "") -> Iterator[Block]:
    """Yield the blocks of `data` in order, or those with this label only, and then nothing of the others is decoded.

    Raises PemError at the first malformed block, and for more than `limit` bytes.
    """
    if len(data) > limit:
        raise PemError(f"the PEM text is longer than {limit} bytes")
    # An invisible character would hide the first block.
    data = data.removeprefix(codecs.BOM_UTF8)
    position, line = 0, 1
    while begin := _BEGIN.search(data, position):
        end = next((one for one in _END.finditer(data, begin.end()) if one[1] == begin[1]), None)
        found = begin[1].decode("ascii")
        if end is None:
            raise PemError(f"the PEM block {found} has no end line")
        line += data.count(b"\n", position, begin.start())
        if label in ("", found):
            yield Block(found, _content(found, data[begin.end() : end.start()]), line)
        line += data.count(b"\n", begin.start(), end.end())
        position = end.end()


def _content(label: str, body: bytes) -> bytes:
    if b"-----" in body:
        raise PemError(f"the PEM block {label} ends in the line in which another begins: begin it on a line of its own")
    if b":" in body:
        raise PemError(f"the PEM block {label} carries headers, which are not allowed")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        raise PemError(f"the PEM block {label} is not base64") from None


def encode(label: str, der: bytes) -> bytes:
    """Return one PEM block with lines of 64 characters and a final newline, as Go and openssl write it."""
    text = base64.b64encode(der)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    tag = label.encode("ascii")
    return b"\n".join([b"-----BEGIN " + tag + b"-----", *lines, b"-----END " + tag + b"-----", b""])


# The CA bundle that verifies the serving certificate, as published in kube-root-ca.crt and in Secrets of service accounts.


class RootCa:
    """Bundle of CAs. Read `pem` at each use: the bundle may be replaced while the server runs."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem

    @property
    def pem(self) -> bytes:
        """The bundle in force."""
        return self._pem

    def replace(self, pem: bytes) -> None:
        """Put another bundle in force."""
        self._pem = pem
