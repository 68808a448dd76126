"""Signed tokens of an issuer that tests make up: every algorithm, any header, any claims, and the key set that goes with them.

Rules kept here: signing is joserfc's, with its own registry, so that what is verified here was not made by what verifies it.
"""

from __future__ import annotations

import base64
import hmac
import json
from functools import cache
from typing import Any

from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def encoded(raw: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@cache
def key_for(algorithm: str, which: int = 0, bits: int = 2048) -> ECKey | RSAKey:
    """The private key number `which` that signs with this algorithm; the same for all tests of a run."""
    if algorithm in _CURVES:
        return ECKey.generate_key(_CURVES[algorithm])
    return RSAKey.generate_key(bits)


def public(key: ECKey | RSAKey, kid: Any = "k", **more: Any) -> dict[str, Any]:
    """The key as a key set lists it."""
    listed = {**key.as_dict(private=False), "kid": kid, **more}
    return {name: value for name, value in listed.items() if value is not None}


def key_set(*keys: Any) -> bytes:
    """The document an issuer publishes."""
    return json.dumps({"keys": list(keys)}).encode()


def signed(claims: Any, key: ECKey | RSAKey, algorithm: str = "RS256", **header: Any) -> str:
    """The compact token. `header`: beside `alg`; `kid` is "k" unless told otherwise, None leaves a member out."""
    full = {name: value for name, value in {"alg": algorithm, "kid": "k", **header}.items() if value is not None}
    text = f"{encoded(json.dumps(full).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{encoded(JWSRegistry.algorithms[algorithm].sign(text.encode(), key))}"


def signed_with_secret(claims: Any, secret: bytes, **header: Any) -> str:
    """A token of `alg: HS256` made with any bytes: joserfc itself refuses to take a public key for a secret."""
    full = {"alg": "HS256", "kid": "k", **header}
    text = f"{encoded(json.dumps(full).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


def unsigned(claims: Any, **header: Any) -> str:
    """A token of `alg: none`, with a signature of one byte: an empty one has not the form of a token."""
    return f"{encoded(json.dumps({'alg': 'none', **header}).encode())}.{encoded(json.dumps(claims).encode())}.AA"
