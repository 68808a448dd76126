"""Credentials that a request offers, and the protocol of the authenticators that judge them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from mooring import base64url
from mooring.api.view import Views
from mooring.apimachinery.websocket import PROTOCOL, is_handshake, is_of_another_site, subprotocols
from mooring.authn.reasons import NO_OTHER_SUBPROTOCOL, TOKEN_NOT_BASE64URL, TOKEN_NOT_UTF8, TOKEN_REPEATED
from mooring.authn.verdict import FirstVerdict, Rejected
from mooring.pki.x509.verify import ReadChain
from mooring.secret import Secret

# Credentials that a request offers, read before any authenticator judges them.
#
# Rules kept here (docs/protocol/authentication.md#bearer-tokens; RFC 6750 section 2.1; RFC 7617 for Basic):
# 1. Only the first `Authorization` header counts, as in Go's `Header.Get`.
# 2. It is trimmed and split on single spaces. The scheme is compared without regard to case. The token is the second part; the text
#    after a second space is ignored.
# 3. `Basic` is read only by a server that has an authenticator of passwords. Other servers ignore it like any other scheme, as
#    kube-apiserver does: the request goes on without a credential. A value that is not base64 of `user:password` in UTF-8 gives a
#    `Basic` without a user, which every authenticator leaves alone and the chain rejects. A scheme that a custom authenticator
#    names is read in the same way; its credential is all the text after its name, and may be empty.
# 4. Two spaces before the token make the token empty: it is ignored, and the caller gets a warning.
# 5. A token or password becomes a `Secret` here and stays one.
# 6. A request for a WebSocket may carry a token among its subprotocols (`mooring.authn.credentials`). The credential of
#    `Authorization` comes first; the other token is judged when that is rejected.
# 7. The page of another site that offers such a token has that token alone: a certificate, a password or a ticket came from the
#    browser, and would let in a page that offers any text as a token. Scripts cannot set `Authorization: Bearer`.

# A bearer token in the list of WebSocket subprotocols, for browsers: they cannot set `Authorization` on a WebSocket.
#
# Rules kept here (docs/protocol/authentication.md#bearer-tokens-over-websocket):
# 1. `base64url.bearer.authorization.k8s.io.<token as base64url without padding>` is looked for only in requests for a WebSocket;
#    anywhere else it is an unknown header and offers nothing.
# 2. There is at most one. The token is UTF-8. At least one other subprotocol stands beside it, because the server echoes one of
#    the list and must never echo the token. What breaks these rules is a refused credential, never an anonymous request; the
#    operator is told which.
# 3. An empty token offers nothing.
# 4. `without_token` is what everybody else reads: the list without the token, whether or not the token was used.

NAME = "websocket"
"""Name of this place of a token in the operator's records."""
BEARER_PREFIX = "base64url.bearer.authorization.k8s.io."

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class WebSocketToken:
    """A token, or the reason for which it is malformed, or neither."""

    token: Secret | None = None
    refused: str = ""


NO_TOKEN = WebSocketToken()


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
        return NO_TOKEN
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
        """Only `mooring.authn.x509` writes it."""


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
    """The chain in `peer`, or its rejection, once an authenticator has read them. Only `mooring.authn.x509` writes
    it. They are kept for the request alone: a chain takes several times its octets when it has been read."""


def bearer(token: str) -> Secret:
    """Return the token as the bytes that were sent (`exact_text` of the transport). Other lone surrogates, which come
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
        # A browser sends certificates, passwords and tickets for requests of any page. They would let in a page of
        # another site that offers any text as a token (rule 7).
        if credentials.bearer is None and len(without_token(names)) < len(names) and _is_of_another_site(headers):
            credentials.peer, credentials.basic, credentials.other = (), None, None
        # The credential of `Authorization` is judged first (rule 6).
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


# The protocol of an authenticator: it judges one kind of credential.
#
# Rules kept here: an authenticator is synchronous, reads views and never waits. It answers with one of three verdicts (law 3), or
# with a deferred verdict that describes the missing work (law 2, `mooring.authn.verdict.Deferred`).

CONNECTION: Literal["connection"] = "connection"
SECRET: Literal["secret"] = "secret"  # noqa: S105 - a word for kinds of credentials, not a password
NOTHING: Literal["nothing"] = "nothing"


class Authenticator(Protocol):
    """An authenticator that a row of `mooring.authn.table.PROVIDERS` built."""

    @property
    def name(self) -> str:
        """Name in the operator's records, e.g. `client-certificate`."""

    @property
    def judges(self) -> Literal["connection", "secret", "nothing"]:
        """`connection`: the peer's certificate, with the headers of a proxy. `secret`: a bearer token, a password or another
        credential in a header.

        `nothing` makes it a fallback: it is called only when every other authenticator left the request alone and no secret was
        offered.
        """

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        """One verdict, at once. Never raises for a bad credential."""
