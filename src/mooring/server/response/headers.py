"""The headers that every reply has, whoever made it.

Source: docs/protocol/authentication.md#connections, docs/protocol/requests.md#options.

Rules kept here:
* The Audit-Id, under which the operator finds what the caller is not told.
* Nobody keeps a reply, unless whoever made it says otherwise.
* Warnings fit into what clients read of headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mooring.server.transport.http import Header

REALM = ' realm="kubernetes-master"'
"""What kube-apiserver said behind Basic while it judged passwords."""
MAX_WARNINGS = 4096
"""Characters of all Warning headers of one reply; Go and Python clients stop reading headers soon after."""
MAX_CUT_WARNING = 256
"""Characters left of each warning when all are too long together."""
_NOT_KEPT: Header = (b"cache-control", b"no-cache, private")


def challenges(schemes: Mapping[str, str]) -> tuple[Header, ...]:
    """Return what a 401 offers (RFC 9110 11.6.1), other schemes before Basic.

    A 401 to a browser (it sends Sec-Fetch-Site) offers nothing: browsers keep passwords and Kerberos tickets, and would send them
    for every page that asks them to.
    """
    names = sorted(schemes, key=lambda name: (name == "basic", name))
    return tuple((b"www-authenticate", f"{schemes[name]}{REALM if name == 'basic' else ''}".encode()) for name in names)


def reply_headers(
    headers: Sequence[Header], audit_id: str, warnings: Sequence[str], offered: Sequence[Header]
) -> tuple[Header, ...]:
    """Return `headers` and the others; `offered` are the challenges."""
    every = [*headers, (b"audit-id", audit_id.encode())]
    for name, _ in headers:
        if name == b"cache-control":
            break
    else:
        every.append(_NOT_KEPT)
    every += offered
    if warnings:
        every += [(b"warning", b'299 - "%b"' % _quoted(warning)) for warning in _bounded(warnings)]
    return tuple(every)


def _bounded(warnings: Sequence[str]) -> Iterator[str]:
    """As many as clients' header limits bear; when they are too long together, each is cut, as kube-apiserver does."""
    warnings = tuple(dict.fromkeys(warnings))  # a write that was tried again says the same again
    cut = sum(map(len, warnings)) > MAX_WARNINGS
    left = MAX_WARNINGS
    for warning in warnings:
        text = warning[:MAX_CUT_WARNING] if cut else warning
        left -= len(text)
        if left < 0:
            return
        yield text


def _quoted(text: str) -> bytes:
    """RFC 7234 5.5 quoted-string: quotes and backslashes escaped, control characters dropped, UTF-8 kept."""
    kept = "".join(character for character in text if character.isprintable())
    return kept.replace("\\", "\\\\").replace('"', '\\"').encode()
