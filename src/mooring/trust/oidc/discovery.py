"""OpenID provider metadata: fetch the discovery document of an issuer and check that it is the issuer's own.

Rules kept here (OpenID Connect Discovery 1.0 section 4; RFC 8414; docs/protocol/openid-connect.md):
* The document is at `<issuer>/.well-known/openid-configuration`, or exactly where the configuration says. Its `issuer` must equal
  the issuer letter for letter: the server at that address speaks for no other issuer.
* Sizes are bounded. A document with any fault is a `ProviderError`; no part of it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mooring.errors import MooringError, quoted
from mooring.trust.httpexchange import ACCEPT_JSON, Exchange, HttpFailure, HttpRequest, HttpResponse, send

WELL_KNOWN = "/.well-known/openid-configuration"
MAX_ISSUER = 256
"""Characters of an issuer in a message."""
MAX_DOCUMENT = 64 << 10
"""Bytes of a discovery document: the longest public ones have 8 kB."""


class ProviderError(MooringError):
    """The provider did not give what was requested. `failure` is set when it did not respond at all."""

    def __init__(self, message: str, failure: HttpFailure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


def document_url(issuer: str) -> str:
    """Return the URL of the discovery document of `issuer`."""
    return issuer.removesuffix("/") + WELL_KNOWN


def fetch_metadata(target: str, issuer: str, url: str, timeout: float) -> Exchange[Mapping[str, Any]]:
    """Return the discovery document of `issuer`, from `url`. `timeout` is in seconds. Raises ProviderError."""
    request = HttpRequest(target, url=url, headers=ACCEPT_JSON, timeout=timeout, max_bytes=MAX_DOCUMENT)
    response = yield from fetch_document("the discovery document", request)
    document = _json_object(response.body)
    found = document.get("issuer")
    if found != issuer:
        named = (
            f"it names {quoted(found[:MAX_ISSUER])}"
            if isinstance(found, str) and found.isprintable()
            else "it names none"
        )
        raise ProviderError(f"the discovery document is of another issuer than {issuer}: {named}")
    return document


def fetch_document(name: str, request: HttpRequest) -> Exchange[HttpResponse]:
    """Return a response with status 200. Raises ProviderError that begins with `name`."""
    reply = yield from send(request)
    if isinstance(reply, HttpFailure):
        raise ProviderError(f"{name}: {reply.text}", reply)
    if reply.status != 200:
        raise ProviderError(f"{name}: the provider answers {reply.status}")
    return reply


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProviderError("the discovery document is not JSON") from None
    if not isinstance(document, dict):
        raise ProviderError("the discovery document is not an object")
    return document
