"""Removal of credentials from the headers of an authenticated request.

Rules kept here (docs/protocol/authentication.md#connections):
1. The code behind authentication learns the user, never the credential: `Authorization` is removed, and so is every header in
   which an authenticating proxy names users, the configured ones and the usual ones.
2. They are removed whatever authenticator accepted the request: a header that was not believed must not be believed later.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.authn.credentials import AUTHORIZATION
from mooring.authn.requestheader.settings import HeaderNames

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values, as HTTP carries them."""

USUAL = HeaderNames(
    username=("x-remote-user",),
    uid=("x-remote-uid",),
    groups=("x-remote-group",),
    extra_prefixes=("x-remote-extra-",),
)
"""Headers that proxies use by convention."""


class Stripping:
    """`configured`: the headers that this server's proxy speaks in, if it has one."""

    def __init__(self, configured: HeaderNames | None = None) -> None:
        spoken = (USUAL,) if configured is None else (USUAL, configured)
        whole = {name for one in spoken for name in (*one.username, *one.uid, *one.groups)}
        self._whole = frozenset(name.encode() for name in (AUTHORIZATION, *whole))
        self._prefixes = tuple(prefix.encode() for one in spoken for prefix in one.extra_prefixes)

    def left(self, headers: Headers) -> Headers:
        """Return the headers that carry no credential, in their order."""
        return [one for one in headers if one[0] not in self._whole and not one[0].startswith(self._prefixes)]
