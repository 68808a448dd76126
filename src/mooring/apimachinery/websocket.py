"""Headers of the WebSocket opening handshake (RFC 6455 section 4), read as in kube-apiserver.

Rules kept here:
1. A request is an opening handshake when its first `Upgrade` header is `websocket` and its first `Connection` header names
   `upgrade` among its options; both case-insensitive. Spaces and tabs around an option are not part of it. Others are, as for the
   HTTP parser: what the parser does not take for an upgrade must not be answered as one.
2. Subprotocols are listed in any number of `Sec-WebSocket-Protocol` headers, separated by commas; together they are one list.
3. The WebSocket library of kube-apiserver requires an `Origin` and accepts any: a request is refused when it is missing, `null`, or
   neither a URI nor an absolute path.
4. A page of another site is one whose origin is not `https://` and the Host of the request. Browsers add certificates, passwords
   and tickets to its handshakes, so that only a token speaks for it.

Source: docs/protocol/authentication.md#bearer-tokens-over-websocket, docs/protocol/watch.md#form; RFC 6455 4.2 and 10.2; RFC 3986
3.1 for the scheme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PROTOCOL = "sec-websocket-protocol"
"""Name of the header with the subprotocols, in lower case."""

_URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:|/)[^\x00-\x20\x7f]*")


def is_handshake(upgrade: str, connection: str) -> bool:
    """Return whether the headers are those of an opening handshake (rule 1); an absent header is ""."""
    if upgrade.lower() != "websocket":
        return False
    return any(option.strip(" \t") == "upgrade" for option in connection.lower().split(","))


def subprotocols(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the offered subprotocols in their order (rule 2)."""
    names = (name.strip() for header in headers for name in header.split(","))
    return tuple(name for name in names if name)


def is_valid_origin(origin: str) -> bool:
    """Return whether an Origin is accepted (rule 3); an absent header is ""."""
    return _URI.fullmatch(origin) is not None


def is_of_another_site(origins: Sequence[str], host: str) -> bool:
    """Return whether a page of another site sent these Origin headers (rule 4). Programs that are not browsers send none."""
    return bool(origins) and [origin.lower() for origin in origins] != [f"https://{host.lower()}"]
