"""Keys of an OpenID provider: discovery document, then key set (OpenID Connect Discovery 1.0 section 4).

Rules kept here (docs/protocol/openid-connect.md):
* The discovery document is fetched and checked by `mooring.trust.oidc.discovery`.
* Keys come from its `jwks_uri`, which must be https, under the same trust.
* Sizes and the number of keys are bounded. A key set with any fault is a `ProviderError`; no part of it is used.
* Keys are used for as long as the response may be cached, within bounds. Then they are fetched again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from mooring.pki.errors import KeyRefusedError
from mooring.pki.jwt.jwks import parse_key_set
from mooring.pki.jwt.keyset import KeySet
from mooring.trust.httpexchange import ACCEPT_JSON, Exchange, HttpRequest
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.oidc.discovery import ProviderError, document_url, fetch_document, fetch_metadata

MAX_KEY_SET = 256 << 10
"""Bytes of a key set: thirty keys with their certificates have 60 kB."""
REQUEST_SECONDS = 5.0
"""Timeout of each of the two requests: half of the time that an authentication may wait."""
MIN_LIFE = timedelta(minutes=5)
"""Lower bound of the time for which keys are cached. An unknown key id is fetched at once."""
LIFE = timedelta(hours=1)
"""Time for which keys are cached when the provider does not say."""
MAX_LIFE = timedelta(hours=24)
"""Upper bound of the time for which keys are cached: a withdrawn key is refused after it at the latest."""
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,9})", re.ASCII | re.IGNORECASE)
_NO_CACHE = re.compile(r"\bno-(store|cache)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """A provider. `target` is the name under which the driver knows its trust."""

    issuer: str
    target: str
    discovery_url: str = ""

    @property
    def document_url(self) -> str:
        return self.discovery_url or document_url(self.issuer)


@dataclass(frozen=True, slots=True)
class Published:
    """Keys of a provider, their URL, and the time for which they are cached."""

    keys: KeySet
    jwks_uri: str
    life: timedelta


def discover(provider: OidcProvider) -> Exchange[Published]:
    """Return the keys, found by the discovery document. Raises ProviderError."""
    document = yield from fetch_metadata(provider.target, provider.issuer, provider.document_url, REQUEST_SECONDS)
    uri = document.get("jwks_uri")
    if not isinstance(uri, str) or https_url_problem(uri, query=True):
        raise ProviderError("the discovery document has no https URL as jwks_uri")
    return (yield from renew(provider, uri))


def renew(provider: OidcProvider, jwks_uri: str) -> Exchange[Published]:
    """Return the keys at their known URL. Raises ProviderError."""
    request = HttpRequest(
        provider.target, url=jwks_uri, headers=ACCEPT_JSON, timeout=REQUEST_SECONDS, max_bytes=MAX_KEY_SET
    )
    response = yield from fetch_document("the key set", request)
    try:
        keys = parse_key_set(response.body)
    except KeyRefusedError as error:
        raise ProviderError(str(error)) from None
    return Published(keys, jwks_uri, _life(response.headers))


def _life(headers: Mapping[str, str]) -> timedelta:
    cache_control = headers.get("cache-control", "")
    max_age = _MAX_AGE.search(cache_control)
    life = timedelta(seconds=int(max_age[1])) if max_age else LIFE
    return MIN_LIFE if _NO_CACHE.search(cache_control) else max(MIN_LIFE, min(life, MAX_LIFE))
