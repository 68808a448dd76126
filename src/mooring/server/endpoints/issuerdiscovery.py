"""Serve service account issuer discovery: the OpenID configuration and the public keys of this cluster's token issuer.

Source: docs/protocol/service-account-tokens.md#issuer-discovery.

Rules kept here:
* The documents hold public keys only.
* They exist only when the issuer is an https URL without query and fragment.
* RBAC decides which users may read them (ClusterRole `system:service-account-issuer-discovery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mooring.apimachinery.codec.json import encode_json
from mooring.pki.jwt.jwks import discovery_document, is_discoverable, jwks_document
from mooring.pki.jwt.keyset import algorithm_of
from mooring.pki.jwt.token import TokenKeys
from mooring.pki.keys import PublicKey
from mooring.server.endpoints.notfound import not_found
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response

_CACHE = (b"cache-control", b"public, max-age=3600")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenIssuer:
    """Issuer of service account tokens, as relying parties see it."""

    url: str
    jwks_uri: str
    keys: TokenKeys

    @property
    def public_keys(self) -> Sequence[PublicKey]:
        """The keys that verify tokens now."""
        return self.keys.public_keys


async def openid_configuration(context: RequestContext, issuer: TokenIssuer) -> Response:
    """Answer `/.well-known/openid-configuration`."""
    if not is_discoverable(issuer.url):
        return not_found()
    document = discovery_document(issuer.url, issuer.jwks_uri, map(algorithm_of, issuer.public_keys))
    return Response(200, encode_json(document), (content_type("application/json"), _CACHE))


async def jwks(context: RequestContext, issuer: TokenIssuer) -> Response:
    """Answer `/openid/v1/jwks` with the keys that verify tokens."""
    if not is_discoverable(issuer.url):
        return not_found()
    document = jwks_document(issuer.public_keys)
    return Response(200, encode_json(document), (content_type("application/jwk-set+json"), _CACHE))
