"""A bearer token in the list of WebSocket subprotocols, for browsers: they cannot set `Authorization` on a WebSocket.

Rules kept here (docs/protocol/authentication.md#bearer-tokens-over-websocket):
1. `base64url.bearer.authorization.k8s.io.<token as base64url without padding>` is looked for only in requests for a WebSocket;
   anywhere else it is an unknown header and offers nothing.
2. There is at most one. The token is UTF-8. At least one other subprotocol stands beside it, because the server echoes one of
   the list and must never echo the token. What breaks these rules is a refused credential, never an anonymous request; the
   operator is told which.
3. An empty token offers nothing.
4. `without_token` is what everybody else reads: the list without the token, whether or not the token was used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mooring import base64url
from mooring.authn.reasons import NO_OTHER_SUBPROTOCOL, TOKEN_NOT_BASE64URL, TOKEN_NOT_UTF8, TOKEN_REPEATED
from mooring.secret import Secret

NAME = "websocket"
"""Name of this place of a token in the operator's records."""
BEARER_PREFIX = "base64url.bearer.authorization.k8s.io."

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class WebSocketToken:
    """A token, or the reason for which it is malformed, or neither."""

    token: Secret | None = None
    refused: str = ""


NOTHING = WebSocketToken()


def read_subprotocols(offered: Iterable[str]) -> WebSocketToken:
    """The token in the subprotocols of a request for a WebSocket."""
    others = 0
    encoded: str | None = None
    for name in offered:
        if not name.startswith(BEARER_PREFIX):
            others += 1
        elif encoded is not None:
            return WebSocketToken(refused=TOKEN_REPEATED)
        else:
            encoded = name.removeprefix(BEARER_PREFIX)
    if not encoded:
        return NOTHING
    if not _BASE64URL.fullmatch(encoded) or len(encoded) % 4 == 1:
        return WebSocketToken(refused=TOKEN_NOT_BASE64URL)
    token = base64url.decode(encoded)
    try:
        token.decode()
    except UnicodeDecodeError:
        return WebSocketToken(refused=TOKEN_NOT_UTF8)
    return WebSocketToken(Secret(token)) if others else WebSocketToken(refused=NO_OTHER_SUBPROTOCOL)


def without_token(offered: Iterable[str]) -> tuple[str, ...]:
    """The subprotocols that are not a token."""
    return tuple(name for name in offered if not name.startswith(BEARER_PREFIX))
