"""Discovery by URL: fetch a discovery document over https, verified by the system's roots, then proceed as with a file."""

from __future__ import annotations

from urllib.parse import urlsplit

from mooring.trust.answertext import answer_text
from mooring.trust.discovery.errors import RefusedAnswerError
from mooring.trust.discovery.fetch import MAX_BODY, connection_error
from mooring.trust.discovery.file import discover_by_file
from mooring.trust.discovery.notices import DiscoveryExchange, Notice
from mooring.trust.discovery.polling import Polling, Rounds
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpexchange import ACCEPT_JSON, SYSTEM_ROOTS, HttpFailure, HttpRequest


def discover_by_url(
    url: str, *, allow_credentials: bool = False, polling: Polling = Polling()
) -> DiscoveryExchange[TrustedCluster]:
    """Discover a cluster by the document at an https URL, which is fetched once. Raises DiscoveryError."""
    printable = _without_secrets(url)
    yield Notice(f"Fetching the discovery document {printable}")
    step = f"fetching the discovery document {printable} (step 1)"
    reply = yield from Rounds(polling).send(HttpRequest(SYSTEM_ROOTS, url=url, headers=ACCEPT_JSON, max_bytes=MAX_BODY))
    if isinstance(reply, HttpFailure):
        raise connection_error(step, reply)
    if reply.status != 200:
        has_secret = printable != url  # a page of errors may repeat parts of the URL
        raise RefusedAnswerError(step, reply.status, "" if has_secret else answer_text(reply.body))
    return (yield from discover_by_file(reply.body, allow_credentials=allow_credentials, polling=polling, via="url"))


def _without_secrets(url: str) -> str:
    """Return the URL without user name, password and query: the query of a signed URL is a credential."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
