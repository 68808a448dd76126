"""What an HTTP request says when it wants to become a WebSocket: RFC 6455 section 4, as kube-apiserver reads it.

Rules kept here:
1. A request asks for a WebSocket when its first `Upgrade` header is `websocket` and its first `Connection` header names
   `upgrade` among its options; both without regard to case.
2. Subprotocols are named in any number of `Sec-WebSocket-Protocol` headers, separated by commas; together they are one list.
3. kube-apiserver's WebSocket library wants to know where a page comes from and then lets every page in: an `Origin` that is
   missing, `null`, or neither a URI nor an absolute path is refused. What protects a user from a foreign page is that the page
   has no credential: browsers send none of ours by themselves.

Source: docs/protocol/authentication.md#bearer-tokens-over-websocket, docs/protocol/watch.md#form; RFC 6455 4.2 and 10.2; RFC 3986
3.1 for the scheme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PROTOCOL = "sec-websocket-protocol"
"""Name of the header that lists the subprotocols, as header names are written here."""

_URI = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:|/)[^\x00-\x20\x7f]*")


def wants_websocket(upgrade: str, connection: str) -> bool:
    """Rule 1; both are "" when the header is not there."""
    if upgrade.lower() != "websocket":
        return False
    return any(option.strip() == "upgrade" for option in connection.lower().split(","))


def subprotocols(headers: Iterable[str]) -> tuple[str, ...]:
    """Rule 2: the names in the order in which they are offered."""
    names = (name.strip() for header in headers for name in header.split(","))
    return tuple(name for name in names if name)


def is_origin(origin: str) -> bool:
    """Rule 3; "" when the header is not there."""
    return _URI.fullmatch(origin) is not None
