"""Add the headers that every reply has: Date, Audit-Id, Cache-Control, challenges and warnings.

Source: docs/protocol/authentication.md#connections, docs/protocol/requests.md#options.

Rules kept here:
* Audit-Id is the identifier under which the operator finds what the client is not told.
* Date is the time of the server (RFC 9110 6.6.1). Machines that join compare their clocks with it.
* Replies are not cacheable unless the handler sets Cache-Control.
* Warnings are bounded to what clients accept as headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import formatdate
from functools import lru_cache

from mooring.server.transport.http import Header

REALM = ' realm="kubernetes-master"'
"""Parameter of the Basic challenge, as kube-apiserver sent it while it supported passwords."""
MAX_WARNINGS = 4096
"""Characters of all Warning headers of one reply. Go and Python clients refuse replies with much more."""
MAX_CUT_WARNING = 256
"""Characters kept of each warning when all together are too long."""
_NO_CACHE: Header = (b"cache-control", b"no-cache, private")


def challenges(schemes: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the challenges of a 401 (RFC 9110 11.6.1), with Basic last.

    A 401 to a browser, which sends Sec-Fetch-Site, has none: browsers keep passwords and Kerberos tickets, and would send them for
    requests of any page.
    """
    names = sorted(schemes, key=lambda name: (name == "basic", name))
    return tuple((b"www-authenticate", f"{schemes[name]}{REALM if name == 'basic' else ''}".encode()) for name in names)


@lru_cache(1)  # one text a second for all replies
def _date(second: int) -> Header:
    return b"date", formatdate(second, usegmt=True).encode()


def reply_headers(
    headers: Sequence[Header], audit_id: str, warnings: Sequence[str], offered: Sequence[Header], now: datetime
) -> tuple[Header, ...]:
    """Return the headers of a reply at `now` (UTC) with those that every reply has. `offered` are the challenges."""
    every = [*headers, _date(int(now.timestamp())), (b"audit-id", audit_id.encode())]
    for name, _ in headers:
        if name == b"cache-control":
            break
    else:
        every.append(_NO_CACHE)
    every += offered
    if warnings:
        every += [(b"warning", b'299 - "%b"' % _quoted(warning)) for warning in _bounded(warnings)]
    return tuple(every)


def _bounded(warnings: Sequence[str]) -> Iterator[str]:
    """Yield warnings up to the limit. When all together are too long each is cut, as kube-apiserver does."""
    warnings = tuple(dict.fromkeys(warnings))  # a repeated write repeats its warnings
    cut = sum(map(len, warnings)) > MAX_WARNINGS
    left = MAX_WARNINGS
    for warning in warnings:
        text = warning[:MAX_CUT_WARNING] if cut else warning
        left -= len(text)
        if left < 0:
            return
        yield text


def _quoted(text: str) -> bytes:
    """Escape a warning as quoted-string (RFC 7234 5.5): control characters are dropped, UTF-8 is kept."""
    kept = "".join(character for character in text if character.isprintable())
    return kept.replace("\\", "\\\\").replace('"', '\\"').encode()
