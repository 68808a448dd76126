"""Distributed groups: a token names the service that holds them (OpenID Connect Core 1.0 section 5.6.2).

Rules kept here (docs/protocol/openid-connect.md#verification):
* Only the groups claim is looked for, and only when the token lacks it: `_claim_names` names a source, `_claim_sources` gives its
  endpoint and perhaps an access token. A source without an endpoint is an aggregated one, and is ignored. Null and an empty
  endpoint or access token are absent ones. A name of no source, or of one that is not there, rejects the token, as in go-oidc.
* The source is read from tokens with a verified signature only, so that no other caller chooses a server to contact. The endpoint
  must be https, and is reached under the trust of the issuer, with the access token as bearer token.
* The response is a JWT of its own issuer, for one of the same audiences, and is verified like any other. Its keys are found signer
  discovery, unless it is of the same issuer.
* Any failure rejects the request: without its groups the user would escape the rules about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mooring.authn.claims.mapping import Claims, ClaimsRefusedError
from mooring.authn.oidc.idtoken import MAX_HEADER, MAX_TOKEN, check
from mooring.authn.oidc.issuer import JwtIssuer
from mooring.authn.oidc.provider import REQUEST_SECONDS, OidcProvider, discover
from mooring.authn.oidc.reasons import DISTRIBUTED_CLAIM
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.compact import decode_unverified
from mooring.secret import Secret
from mooring.trust.httpexchange import ACCEPT_JSON, Exchange, HttpRequest
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.oidc.discovery import ProviderError, fetch_document


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Service that holds the claim `name`."""

    name: str
    endpoint: str
    access_token: Secret | None = None


def source_of(name: str, claims: Claims) -> ClaimSource | None:
    """Return the source of the claim; None when the claims hold it or name no source. Raises ClaimsRefusedError."""
    names, sources = claims.get("_claim_names"), claims.get("_claim_sources")
    if name in claims or names is None or (isinstance(names, dict) and name not in names):
        return None
    named = names[name] if isinstance(names, dict) else None
    if not isinstance(named, str) or not named:
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the token does not name the source of the claim {name} by a text")
    if not isinstance(sources, dict) or named not in sources:
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} is not among _claim_sources")
    source = sources[named]
    if not isinstance(source, dict | None):
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} is not an object")
    endpoint, token = ((source or {}).get(member) for member in ("endpoint", "access_token"))
    if endpoint in (None, ""):
        return None
    if not isinstance(endpoint, str) or https_url_problem(endpoint, query=True):
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} has no https URL as endpoint")
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} has an access token that is none")
    return ClaimSource(name, endpoint, Secret(token) if token else None)


def fetch(source: ClaimSource, issuer: JwtIssuer, now: datetime) -> Exchange[Any]:
    """Fetch the value of the claim. Raises ClaimsRefusedError."""
    try:
        return (yield from _fetch_verified(source, issuer, now))
    except (ProviderError, TokenRefusedError, ClaimsRefusedError) as error:
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the claim {source.name}: {error}") from None


def _fetch_verified(source: ClaimSource, issuer: JwtIssuer, now: datetime) -> Exchange[Any]:
    token = source.access_token
    request = HttpRequest(
        issuer.provider.target,
        url=source.endpoint,
        headers=ACCEPT_JSON,
        timeout=REQUEST_SECONDS,
        max_bytes=MAX_TOKEN,
        authorization=None if token is None else Secret(b"Bearer " + token.reveal()),
    )
    response = yield from fetch_document("its source", request)
    text = response.body.decode("utf-8", "replace").strip()
    header, claims = decode_unverified(text, MAX_HEADER, MAX_TOKEN)
    check(header, claims, issuer.config.expected, now)
    signer = claims.get("iss")
    if not isinstance(signer, str) or https_url_problem(signer):
        raise TokenRefusedError("wrong-issuer", "the token of its source has no issuer that is an https URL")
    published = issuer.known(now) if signer == issuer.config.url else None
    if published is None:
        published = yield from discover(OidcProvider(signer, issuer.provider.target))
    published.keys.verify(text, header)
    if source.name not in claims:
        raise ProviderError("its source does not give it")
    return claims[source.name]
