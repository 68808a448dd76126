"""Proxies in front of the server, which name the user in headers of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from mooring.api.view import Views
from mooring.authn.credentials import AUTHORIZATION, CONNECTION, Credentials, HeaderValues
from mooring.authn.impersonation import unescaped_key
from mooring.authn.reasons import NOT_UTF8, Code
from mooring.authn.requestheadersettings import HeaderNames
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.authn.x509 import CHECKS, CertificateCheck, ClientCertificateVerifier
from mooring.identity import UserInfo
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer

NAME_NOT_ALLOWED = Code("proxy-name-not-allowed")
NO_USER_HEADER = Code("no-user-header")


# Users that an authenticating proxy names: it authenticates itself with a certificate and names the user in headers.
#
# Rules kept here (docs/protocol/authentication.md#authenticating-proxy):
# 1. Without a certificate the headers are ignored, because any client can send them.
# 2. The certificate must verify under the proxy's own CAs, for clients, and have one of the allowed common names where any are
#    listed. Otherwise this authenticator rejects it, and the next one judges it as an ordinary client certificate.
# 3. The first value of each user header is read, as Go's `Header.Get` does. The first that is not empty counts; without one it is
#    not mine. The same holds for uid headers. All values of all group headers count, in order, unless they are empty.
# 4. Extra attributes are the headers with one of the prefixes. The key is the rest of the name in lower case, percent-decoded
#    where that succeeds, and not empty. All values count, prefix by prefix. A name, uid, group or extra that is not UTF-8 ends
#    the chain with a rejection. The proxy speaks for somebody else, so its certificate must not count as that of an ordinary
#    client.
# 5. The listener bounds the number of headers.
# 6. The certificate of a proxy must pass the checks of `mooring.authn.x509`: a revoked one speaks for no user.

_NOT_MINE = NotMine()
_MAY_SPEAK = NotMine("may-speak")
"""Verdict about the certificate of a proxy: the headers decide."""


class RequestHeaderAuthenticator:
    """Judges the peer chain under the proxy's CAs, and then the headers."""

    name = "request-header"
    judges = CONNECTION

    def __init__(
        self,
        trust: ClientTrust,
        names: HeaderNames,
        allowed_names: Iterable[str] = (),
        checks: Sequence[CertificateCheck] = CHECKS,
    ) -> None:
        """`allowed_names`: common names that may speak for others; none: every certificate of these CAs."""
        self._checks = checks
        self._names = names
        self._allowed = frozenset(allowed_names)
        self.replace(trust)

    def replace(self, trust: ClientTrust) -> None:
        """Verify under these CAs from now on, and no others."""
        self._peers = ClientCertificateVerifier(trust, self._judge_proxy, checks=self._checks)

    def _judge_proxy(self, peer: VerifiedPeer) -> Verdict:
        if self._allowed and peer.common_name not in self._allowed:
            return Rejected(NAME_NOT_ALLOWED, f'the certificate names "{peer.common_name}"')
        return _MAY_SPEAK

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if not credentials.peer:
            return _NOT_MINE
        proxy = self._peers.judged(credentials, views, now)
        if proxy is not _MAY_SPEAK:
            return proxy
        headers, names = credentials.headers, self._names
        username = _first_value(headers, names.username)
        if not username:
            return NotMine(NO_USER_HEADER)
        groups = tuple(value for name in names.groups for value in headers(name) if value)
        extra = MappingProxyType(dict(self._read_extra(credentials)))
        user = UserInfo(username, _first_value(headers, names.uid), groups, extra)
        if unreadable := user.unreadable:
            return Rejected(NOT_UTF8, f"{unreadable} in the headers of the proxy is not UTF-8", ends_chain=True)
        return Accepted(user, certificate=self._peers.peer(credentials))

    def _read_extra(self, credentials: Credentials) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        sent = tuple(dict.fromkeys(credentials.header_names()))
        for prefix in self._names.extra_prefixes:
            for name in sent:
                key = unescaped_key(name[len(prefix) :]) if name.startswith(prefix) else ""
                if key:
                    found[key] = (*found.get(key, ()), *credentials.headers(name))
        return found


def _first_value(headers: HeaderValues, names: Iterable[str]) -> str:
    return next((values[0] for name in names if (values := headers(name)) and values[0]), "")


# Removal of credentials from the headers of an authenticated request.
#
# Rules kept here (docs/protocol/authentication.md#connections):
# 1. The code behind authentication learns the user, never the credential: `Authorization` is removed, and so is every header in
#    which an authenticating proxy names users, the configured ones and the usual ones.
# 2. They are removed whatever authenticator accepted the request: a header that was not believed must not be believed later.

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values, as HTTP carries them."""

USUAL = HeaderNames(
    username=("x-remote-user",),
    uid=("x-remote-uid",),
    groups=("x-remote-group",),
    extra_prefixes=("x-remote-extra-",),
)
"""Headers that proxies use by convention."""


class HeaderStripper:
    """`configured`: the headers that this server's proxy speaks in, if it has one."""

    def __init__(self, configured: HeaderNames | None = None) -> None:
        spoken = (USUAL,) if configured is None else (USUAL, configured)
        whole = {name for one in spoken for name in (*one.username, *one.uid, *one.groups)}
        self._whole = frozenset(name.encode() for name in (AUTHORIZATION, *whole))
        self._prefixes = tuple(prefix.encode() for one in spoken for prefix in one.extra_prefixes)

    def left(self, headers: Headers) -> Headers:
        """Return the headers that carry no credential, in their order."""
        return [one for one in headers if one[0] not in self._whole and not one[0].startswith(self._prefixes)]
