"""What is left of a request's headers once it is known who sent it.

Rules kept here (docs/protocol/authentication.md#connections):
1. Whoever serves a request is told who sent it, never how that was proved: `Authorization` is gone, and so is every header in
   which an authenticating proxy speaks, those that are configured and those that everybody uses.
2. They go whoever was accepted and by whatever: a header that was not believed must not be believed further on.
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
"""What proxies say by convention."""


class Stripping:
    """`configured`: the headers that this server's proxy speaks in, if it has one."""

    def __init__(self, configured: HeaderNames | None = None) -> None:
        spoken = (USUAL,) if configured is None else (USUAL, configured)
        whole = {name for one in spoken for name in (*one.username, *one.uid, *one.groups)}
        self._whole = frozenset(name.encode() for name in (AUTHORIZATION, *whole))
        self._prefixes = tuple(prefix.encode() for one in spoken for prefix in one.extra_prefixes)

    def left(self, headers: Headers) -> Headers:
        """The headers that prove nothing, in their order."""
        return [one for one in headers if one[0] not in self._whole and not one[0].startswith(self._prefixes)]
