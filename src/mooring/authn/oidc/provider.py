"""Asking an OpenID provider for its keys: discovery document, then key set (OpenID Connect Discovery 1.0 section 4; RFC 8414).

Rules kept here (docs/protocol/openid-connect.md):
* The document is at `<issuer>/.well-known/openid-configuration`, or exactly where the configuration says. Its `issuer` must be
  the issuer, letter for letter: whoever answers there speaks for nobody else.
* Keys come from its `jwks_uri`, which must be https; under the same trust. Redirects are not followed.
* Sizes and the number of keys are bounded. Whatever is not as it must be is a `ProviderError`, and nothing is half taken.
* Keys are good for as long as the answer says it may be cached, within bounds; then they are asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from mooring.errors import MooringError
from mooring.pki.errors import KeyRefusedError
from mooring.pki.jwt.jwks import parse_key_set
from mooring.pki.jwt.keyset import KeySet
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, Wait

T = TypeVar("T")

WELL_KNOWN = "/.well-known/openid-configuration"
MAX_DOCUMENT = 64 << 10
"""Bytes of a discovery document: the longest public ones have 8 kB."""
MAX_KEY_SET = 256 << 10
"""Bytes of a key set: thirty keys with their certificates have 60 kB."""
ASK_SECONDS = 5.0
"""For each of the two answers: half of what a request may wait."""
MIN_LIFE = timedelta(minutes=5)
"""However briefly a provider wants its keys to be remembered; an unknown key id is asked for at once."""
LIFE = timedelta(hours=1)
"""When the provider says nothing."""
MAX_LIFE = timedelta(hours=24)
"""A key that was withdrawn is refused after this at the latest."""
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,9})", re.ASCII | re.IGNORECASE)
_NO_CACHE = re.compile(r"\bno-(store|cache)\b", re.IGNORECASE)

Asking = Generator[HttpRequest | Wait, HttpResponse | HttpFailure | None, T]


class ProviderError(MooringError):
    """The provider did not give its keys; why, for the operator."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Whom to ask. `target` is the name of the trust to ask it under."""

    issuer: str
    target: str
    discovery_url: str = ""

    @property
    def document_url(self) -> str:
        return self.discovery_url or self.issuer.removesuffix("/") + WELL_KNOWN


@dataclass(frozen=True, slots=True)
class Published:
    """What a provider said: its keys, where they are, and for how long they need not be asked for."""

    keys: KeySet
    jwks_uri: str
    life: timedelta


def discover(provider: Provider) -> Asking[Published]:
    """Find the keys from nothing. Raises ProviderError."""
    answer = yield from ask(provider.target, provider.document_url, MAX_DOCUMENT, "the discovery document")
    document = _object(answer.body)
    issuer = document.get("issuer")
    if issuer != provider.issuer:
        raise ProviderError(f"the discovery document is of another issuer than {provider.issuer}")
    uri = document.get("jwks_uri")
    if not isinstance(uri, str) or https_problem(uri, query=True):
        raise ProviderError("the discovery document has no https URL as jwks_uri")
    return (yield from renew(provider, uri))


def renew(provider: Provider, jwks_uri: str) -> Asking[Published]:
    """The keys, from where they are known to be. Raises ProviderError."""
    answer = yield from ask(provider.target, jwks_uri, MAX_KEY_SET, "the key set")
    try:
        keys = parse_key_set(answer.body)
    except KeyRefusedError as error:
        raise ProviderError(str(error)) from None
    return Published(keys, jwks_uri, _life(answer.headers))


def ask(
    target: str, url: str, max_bytes: int, what: str, headers: tuple[tuple[str, str], ...] = ()
) -> Asking[HttpResponse]:
    """One answer with status 200. Raises ProviderError that says `what` was asked for."""
    sent = (("accept", "application/json, */*"), *headers)
    answer = yield HttpRequest(target, "GET", url, sent, timeout=ASK_SECONDS, max_bytes=max_bytes)
    if not isinstance(answer, HttpResponse):
        raise ProviderError(f"{what}: {answer.text if isinstance(answer, HttpFailure) else 'no answer'}")
    if answer.status != 200:
        raise ProviderError(f"{what}: the provider answers {answer.status}")
    return answer


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProviderError("the discovery document is not JSON") from None
    if not isinstance(found, dict):
        raise ProviderError("the discovery document is not an object")
    return found


def _life(headers: Mapping[str, str]) -> timedelta:
    said = headers.get("cache-control", "")
    found = _MAX_AGE.search(said)
    life = timedelta(seconds=int(found[1])) if found else LIFE
    return MIN_LIFE if _NO_CACHE.search(said) else max(MIN_LIFE, min(life, MAX_LIFE))


def https_problem(text: str, *, query: bool = False) -> str:
    """Why `text` is no https URL of a host without user and fragment, and without query unless `query`; "" when it is one."""
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "it is not a URL"
    if parts.scheme != "https":
        return "the scheme must be https"
    if not named or not text.isascii() or not text.isprintable() or " " in text:
        return "it is not a URL"
    if "@" in parts.netloc:
        return "it must not contain a user name or a password"
    if "?" in text and not query:
        return "it must not contain a query"
    return "it must not contain a fragment" if "#" in text else ""
