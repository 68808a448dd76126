"""Grammar of HTTP: targets, queries, hosts and the text of headers, for HTTP/1.1 and HTTP/2 alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

from httptools import HttpParserInvalidURLError, parse_url

from mooring.errors import BadRequestError

MAX_REMEMBERED_QUERY = 512
"""Bytes. Longer query strings are parsed each time, so that unauthenticated clients cannot fill memory through a cache."""


_NO_QUERY: dict[str, list[str]] = {}


def read_query(raw: bytes) -> dict[str, list[str]]:
    """Return values by name, as `parse_query` does, from memory for a short query. Treat the result as immutable."""
    if not raw:
        return _NO_QUERY
    return _remembered_query(raw) if len(raw) <= MAX_REMEMBERED_QUERY else parse_query(raw)


@lru_cache(maxsize=4096)
def _remembered_query(raw: bytes) -> dict[str, list[str]]:
    return parse_query(raw)


def parse_query(raw: bytes) -> dict[str, list[str]]:
    """Return values by name, in order of appearance. Raises BadRequestError for more than 1000 parameters, and for bytes that are
    not UTF-8: with replacement two names would become one."""
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=1000, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequestError("the query string is not UTF-8") from error
    except ValueError as error:
        raise BadRequestError("the query string has too many parameters") from error
    parsed: dict[str, list[str]] = {}
    for key, value in pairs:
        parsed.setdefault(key, []).append(value)
    return parsed


def header_text(value: bytes) -> str:
    """Decode a header value that is printed, or compared with words in ASCII. Invalid UTF-8 becomes U+FFFD."""
    return value.decode("utf-8", "replace")


def exact_text(value: bytes) -> str:
    """Decode a header value that names a user or is a secret: UTF-8, which Go clients use. Each invalid byte becomes a lone
    surrogate, so that different bytes stay different texts, and `mooring.identity.is_text` finds them."""
    return value.decode("utf-8", "surrogateescape")


Header = tuple[bytes, bytes]


Target = tuple[str, bytes]
"""Percent-decoded path, and raw query."""


def read_target(target: bytes, host: bytes = b"") -> Target | None:
    """Parse the target of a request line or `:path`. Return None when it is not a path.

    A whole URL is one only with the authority of `host`, the Host header (RFC 9112 3.2.2): a proxy could go by either of two. A
    fragment is not part of a target, and programs differ in where the path of such a one ends. The path is read as `exact_text`.
    """
    try:
        if b"#" in target:
            return None
        url = parse_url(target)
        if url.schema and target.partition(b"://")[2][: len(host) + 1].lower() not in (
            host.lower() + end for end in (b"/", b"?")
        ):
            return None
        path = url.path.decode("ascii")
    except (HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):  # `url.path` is None without a path
        return None
    return unquote(path, errors="surrogateescape") if "%" in path else path, url.query or b""


_HOST = re.compile(rb"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
"""Octets that Go's server accepts in a Host (net/http, ValidHostHeader): no slash and no user."""


def is_host(value: bytes) -> bool:
    """Return whether a Host header, or `:authority`, is one. Another one would be read in several ways."""
    return _HOST.fullmatch(value) is not None


_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def has_control_character(headers: Sequence[Header]) -> bool:
    """Return whether a value has a control character other than a tab (net/http, ValidHeaderFieldValue). The parser of HTTP/1.1
    refuses them itself."""
    return _CONTROL.search(b"".join([value for _, value in headers])) is not None


def is_known_encoding(headers: Sequence[Header]) -> bool:
    """Return whether Transfer-Encoding, if there is one, is `chunked` alone, as in Go; no other coding is decoded."""
    return all(value.lower() == b"chunked" for name, value in headers if name == b"transfer-encoding")


def header_bytes(headers: Sequence[Header]) -> int:
    """Return the size of a header block, however it arrived."""
    return sum(len(name) + len(value) + 4 for name, value in headers)
