"""What relying parties fetch to verify service account tokens: the key set and the OpenID discovery document.

Rules kept here (docs/protocol/service-account-tokens.md#issuer-discovery; RFC 7517; OpenID Connect Discovery 1.0, section 3):
* Keys are public halves with `use: sig`, `kid`, `alg`; the same key is listed once, in the order given.
* Algorithms are sorted and listed once.
* The documents are served only when the first issuer is an https URL without query and fragment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from mooring.pki.jwt.token import algorithm, jwk, key_id
from mooring.pki.keys import PublicKey


def jwks_document(keys: Iterable[PublicKey]) -> dict[str, Any]:
    """The JSON Web Key Set of `keys`. Raises KeyRefusedError for a key that does not sign tokens."""
    found = {key_id(key): key for key in keys}
    return {"keys": [_public_jwk(kid, key) for kid, key in found.items()]}


def _public_jwk(kid: str, key: PublicKey) -> dict[str, Any]:
    return {"use": "sig", "kid": kid, "alg": algorithm(key), **jwk(key).as_dict(private=False)}


def discovery_document(issuer: str, jwks_uri: str, algorithms: Iterable[str]) -> dict[str, Any]:
    """The OpenID provider configuration of `issuer`."""
    return {
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": sorted(set(algorithms)),
    }


def discoverable(issuer: str) -> bool:
    """Whether discovery may be served for `issuer`."""
    try:
        parts = urlsplit(issuer)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.netloc) and "?" not in issuer and "#" not in issuer
