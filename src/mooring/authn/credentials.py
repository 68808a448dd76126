"""Credentials that a request offers, read before any authenticator judges them.

Rules kept here (docs/protocol/authentication.md#bearer-tokens; RFC 6750 section 2.1; RFC 7617 for Basic):
1. Only the first `Authorization` header counts, as in Go's `Header.Get`.
2. It is trimmed and split on single spaces. The scheme is compared without regard to case. The token is the second part; the text
   after a second space is ignored.
3. `Basic` is read only by a server that has an authenticator of passwords. Other servers ignore it like any other scheme, as
   kube-apiserver does: the request goes on without a credential. A value that is not base64 of `user:password` in UTF-8 gives a
   `Basic` without a user, which every authenticator leaves alone and the chain rejects. A scheme that a custom authenticator
   names is read in the same way; its credential is all the text after its name, and may be empty.
4. Two spaces before the token make the token empty: it is ignored, and the caller gets a warning.
5. A token or password becomes a `Secret` here and stays one.
6. A request for a WebSocket may carry a token among its subprotocols (`mooring.authn.websocketbearer`). The credential of
   `Authorization` comes first; the other token is judged when that is rejected.
7. The page of another site that offers such a token has that token alone: a certificate, a password or a ticket came from the
   browser, and would let in a page that offers any text as a token. Scripts cannot set `Authorization: Bearer`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from mooring.apimachinery.websocket import PROTOCOL, is_handshake, is_of_another_site, subprotocols
from mooring.authn.verdict import Rejected
from mooring.authn.websocketbearer import read_subprotocols, without_token
from mooring.pki.x509.verify import ReadChain
from mooring.secret import Secret

AUTHORIZATION = "authorization"
EXTRA_SPACE = "the Authorization header has an extra space before the bearer token and was ignored"

_PARTS = 3  # scheme, token, and whatever follows: the rest is not looked at

HeaderValues = Callable[[str], Sequence[str]]
"""All values of the header with this lower-case name, in the order received."""
HeaderNames = Callable[[], Iterable[str]]
"""The lower-case names of the headers that were sent; one may come twice."""


class PeerMemo:
    """Verdicts about the peer certificate of one connection, one for each bundle of CAs. Make one for a connection and keep it
    there.

    Walking the chain costs a signature check or two, which requests on an open connection pay once.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[object, object] = {}
        """Only `mooring.authn.x509.peers` writes it."""


@dataclass(frozen=True, slots=True)
class Basic:
    """A user name and a password. `user` is empty when what was sent could not be read."""

    user: str
    password: Secret


@dataclass(frozen=True, slots=True)
class SchemeCredential:
    """The credential of a scheme other than Bearer and Basic (RFC 9110 11.4). `scheme` is in lower case; `value` may be empty."""

    scheme: str
    value: Secret


UNREADABLE_BASIC = Basic("", Secret(b""))


def _no_headers(name: str) -> Sequence[str]:
    return ()


@dataclass(slots=True)  # not frozen: each request makes one, and freezing costs a microsecond; no caller changes it
class Credentials:
    """The offered credentials. `peer`: DER certificates as presented, leaf first. `warnings` go back to the caller as headers.

    `headers` and `path` are those of the request: for an authenticating proxy, and for anonymous access to some paths. `other`: a
    credential of a scheme that only custom authenticators judge. `second`: a bearer token to judge when the credential of
    `Authorization` is rejected. `refused`: the reason for which a token among WebSocket subprotocols is malformed. `dry_run`:
    `mooring auth explain` judges a credential; no use of it is noted. `source`: IP address of the peer in normal form;
    "" when it is unknown, as in a TokenReview.
    """

    peer: tuple[bytes, ...] = ()
    bearer: Secret | None = None
    basic: Basic | None = None
    warnings: tuple[str, ...] = ()
    memo: PeerMemo = field(default_factory=PeerMemo, compare=False)
    headers: HeaderValues = field(default=_no_headers, repr=False, compare=False)
    header_names: HeaderNames = field(default=tuple, repr=False, compare=False)
    path: str = ""
    second: Secret | None = None
    refused: str = ""
    dry_run: bool = False
    other: SchemeCredential | None = None
    source: str = ""
    read_peer: ReadChain | Rejected | None = field(default=None, init=False, repr=False, compare=False)
    """The chain in `peer`, or its rejection, once an authenticator has read them. Only `mooring.authn.x509.peers` writes
    it. They are kept for the request alone: a chain takes several times its octets when it has been read."""


def bearer(token: str) -> Secret:
    """Return the token as the bytes that were sent (`mooring.server.transport.http.exact_text`). Other lone surrogates, which come
    from a JSON escape, stay distinct and match nothing."""
    try:
        return Secret(token.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return Secret(token.encode("utf-8", "surrogatepass"))


def read_credentials(
    headers: HeaderValues,
    peer: tuple[bytes, ...] = (),
    memo: PeerMemo | None = None,
    *,
    path: str = "",
    schemes: Collection[str] = (),
    header_names: HeaderNames = tuple,
    source: str = "",
) -> Credentials:
    """Return the credentials in these headers and this peer chain.

    `schemes`: in lower case, those beside Bearer that an authenticator judges (rule 3).
    """
    memo = memo or PeerMemo()
    values = headers(AUTHORIZATION)
    credentials = Credentials(peer, memo=memo, headers=headers, header_names=header_names, path=path, source=source)
    if values:
        _read_authorization(values[0], schemes, credentials)
    upgrade = headers("upgrade")
    if upgrade:
        names = _read_subprotocols(upgrade[0], headers)
        offered = read_subprotocols(names)
        credentials.refused = offered.refused
        if credentials.bearer is None and len(without_token(names)) < len(names) and _is_of_another_site(headers):
            credentials.peer, credentials.basic, credentials.other = (), None, None
        if credentials.bearer is None and credentials.basic is None and credentials.other is None:
            credentials.bearer = offered.token
        else:
            credentials.second = offered.token
    return credentials


def bearer_in(authorization: str) -> Secret | None:
    """Return the token in one `Authorization` header, or None (rule 2)."""
    credentials = Credentials()
    _read_authorization(authorization, (), credentials)
    return credentials.bearer


def _read_subprotocols(upgrade: str, headers: HeaderValues) -> tuple[str, ...]:
    connection = headers("connection")
    return subprotocols(headers(PROTOCOL)) if connection and is_handshake(upgrade, connection[0]) else ()


def _is_of_another_site(headers: HeaderValues) -> bool:
    return is_of_another_site(headers("origin"), "".join(headers("host")))


def _read_authorization(value: str, schemes: Collection[str], credentials: Credentials) -> None:
    """Put what one `Authorization` header offers into `credentials` (rules 2 to 4)."""
    parts = value.strip().split(" ", _PARTS - 1)
    scheme = parts[0].lower()
    if scheme == "bearer":
        if len(parts) > 1 and parts[1]:
            credentials.bearer = bearer(parts[1])
        elif len(parts) > 1:
            credentials.warnings = (EXTRA_SPACE,)
    elif scheme in schemes:
        if scheme == "basic":
            credentials.basic = _parse_basic(parts[1] if len(parts) == 2 else "")
        else:
            credentials.other = SchemeCredential(scheme, bearer(" ".join(parts[1:]).strip()))


def _parse_basic(encoded: str) -> Basic:
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return UNREADABLE_BASIC
    return Basic(user, Secret(password)) if colon else UNREADABLE_BASIC
