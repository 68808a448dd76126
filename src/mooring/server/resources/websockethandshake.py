"""Check the WebSocket handshake of a watch, and answer it (RFC 6455 4.2).

Source: docs/protocol/watch.md#form.

Rules kept here:
* The handshake is checked as kube-apiserver checks it, after authentication and authorization: a key, version 13, an Origin.
* The subprotocol that carries a token is removed from the list before one of the others is selected and returned.
"""

from __future__ import annotations

from wsproto.utilities import generate_accept_token

from mooring.apimachinery.websocket import PROTOCOL, is_handshake, is_of_another_site, is_valid_origin, subprotocols
from mooring.authn.credentials import without_token
from mooring.errors import BadRequestError, ForbiddenError
from mooring.server.response.render import error_response
from mooring.server.transport.http import Header, Request, Response

VERSION = "13"


def is_websocket(request: Request) -> bool:
    """Return True when a request asks for a WebSocket. Only watches check: other requests ignore the Upgrade header."""
    return is_handshake(request.header(b"upgrade"), request.header(b"connection"))


def handshake_error(request: Request, *, needs_origin: bool = True) -> Response | None:
    """Return the error reply for a handshake that cannot be accepted, else None.

    `needs_origin`: refuse a handshake without an Origin, as kube-apiserver does for watches.
    """
    key = request.header(b"sec-websocket-key")
    if not key:
        return error_response(BadRequestError("the WebSocket handshake has no Sec-WebSocket-Key"), request)
    if not key.isascii():
        return error_response(BadRequestError("the Sec-WebSocket-Key of the handshake is not ASCII"), request)
    if request.header(b"sec-websocket-version") != VERSION:
        error = BadRequestError(f"the WebSocket version is not supported: this server speaks version {VERSION}")
        response = error_response(error, request)
        response.headers = (*response.headers, (b"sec-websocket-version", VERSION.encode()))  # RFC 6455 4.4
        return response
    if needs_origin and not is_valid_origin(request.header(b"origin")):
        return error_response(ForbiddenError("the WebSocket handshake has no Origin that is a URI"), request)
    if _is_of_another_site(request):
        message = (
            "the Origin of the WebSocket handshake is another site, and the request has no credential but a client certificate or "
            "one that browsers send by themselves: send a token"
        )
        return error_response(ForbiddenError(message), request)
    if not all(name.isascii() and name.isprintable() for name in _subprotocols(request)):
        message = "a subprotocol of the WebSocket handshake is not printable ASCII (RFC 6455 4.1)"
        return error_response(BadRequestError(message), request)
    return None


def _is_of_another_site(request: Request) -> bool:
    """Return whether a page of another site may have opened the WebSocket with a credential that it does not know.

    Browsers send the origin of the page. They present a certificate, a password or a Kerberos ticket to every site that asks, and
    never a bearer token. A page of `http:` may come from the network: the server has none.
    """
    scheme = request.header(b"authorization").partition(" ")[0].lower()
    if scheme == "bearer" or not (scheme or request.connection.chain):
        return False
    if len(_subprotocols(request)) < len(subprotocols(request.header_values(PROTOCOL.encode()))):
        return False  # one of them carries a token, and no other credential was judged (`mooring.authn.credentials`)
    return is_of_another_site(request.header_values(b"origin"), request.header(b"host"))


def _subprotocols(request: Request) -> tuple[str, ...]:
    """Return the offered subprotocols except the one that carries a token."""
    return without_token(subprotocols(request.header_values(PROTOCOL.encode())))


def accept_headers(request: Request) -> tuple[Header, ...]:
    """Return the headers of the 101 reply."""
    headers: list[Header] = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", generate_accept_token(request.header(b"sec-websocket-key").encode("ascii"))),
    ]
    if offered := _subprotocols(request):
        headers.append((PROTOCOL.encode(), offered[0].encode("ascii")))
    return tuple(headers)
