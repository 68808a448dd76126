"""What a request offered to prove who sends it, before anybody judges it.

Rules kept here (reference/kubernetes.md 5.1, 5.5; RFC 6750 section 2.1):
1. Only the first `Authorization` header counts, as in Go's `Header.Get`; a second one is never a second guess.
2. It is trimmed and split on single spaces; the scheme is compared without regard to case; the token is the second part
   and whatever follows a second space is ignored.
3. A scheme other than bearer (Basic, for one) offers nothing here: the request goes on without a bearer.
4. Two spaces before the token make it empty: it is ignored, and a warning tells the caller.
5. The token becomes a `Secret` here, once, and stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooring.secret import Secret

AUTHORIZATION = "authorization"
EXTRA_SPACE = "the Authorization header has an extra space before the bearer token and was ignored"

_PARTS = 3  # scheme, token, and whatever follows: the rest is not looked at

HeaderValues = Callable[[str], Sequence[str]]
"""All values of the header with this lower-case name, in the order received."""


class PeerMemo:
    """What one connection already knows about its peer certificate; make one per connection and keep it there.

    Only `mooring.authn.clientcert` writes it. The chain walk costs a signature check or two; requests on a kept-alive
    connection should pay for it once.
    """

    __slots__ = ("known", "trust")

    def __init__(self) -> None:
        self.trust: object | None = None
        self.known: object | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What was offered. `peer`: DER certificates as presented, leaf first. `warnings` go back to the caller as headers."""

    peer: tuple[bytes, ...] = ()
    bearer: Secret | None = None
    warnings: tuple[str, ...] = ()
    memo: PeerMemo = field(default_factory=PeerMemo, compare=False)


def bearer(token: str) -> Secret:
    """The token as bytes; text that is not encodable (a lone surrogate of a JSON escape) stays distinct and matches nothing."""
    return Secret(token.encode("utf-8", "surrogatepass"))


def read_credentials(headers: HeaderValues, peer: tuple[bytes, ...] = (), memo: PeerMemo | None = None) -> Credentials:
    """The credentials in these headers and this peer chain."""
    memo = memo or PeerMemo()
    values = headers(AUTHORIZATION)
    if not values:
        return Credentials(peer, memo=memo)
    parts = values[0].strip().split(" ", _PARTS - 1)
    if len(parts) < 2 or parts[0].lower() != "bearer":
        return Credentials(peer, memo=memo)
    if not parts[1]:
        return Credentials(peer, warnings=(EXTRA_SPACE,), memo=memo)
    return Credentials(peer, bearer(parts[1]), memo=memo)
