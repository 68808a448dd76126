"""The headers that every reply has, whoever made it (reference/kubernetes.md 5.1, 7.12).

Rules kept here:
* The Audit-Id, under which the operator finds what the caller is not told.
* Nobody keeps a reply, unless whoever made it says otherwise.
* Warnings fit into what clients read of headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mooring.server.http import Header

CHALLENGE: Header = (b"www-authenticate", b'Basic realm="kubernetes-master"')
"""With 401 where passwords are judged, as kube-apiserver did. Not to browsers (they send Sec-Fetch-Site): they would keep the
password, and send it for every page that asks them to."""
MAX_WARNINGS = 4096
"""Characters of all Warning headers of one reply; Go and Python clients stop reading headers soon after."""
MAX_CUT_WARNING = 256
"""Characters left of each warning when all are too long together."""
_NOT_KEPT: Header = (b"cache-control", b"no-cache, private")


def reply_headers(
    headers: Sequence[Header], audit_id: str, warnings: Sequence[str], is_challenged: bool
) -> tuple[Header, ...]:
    """`headers` and the others."""
    every = [*headers, (b"audit-id", audit_id.encode())]
    for name, _ in headers:
        if name == b"cache-control":
            break
    else:
        every.append(_NOT_KEPT)
    if is_challenged:
        every.append(CHALLENGE)
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
