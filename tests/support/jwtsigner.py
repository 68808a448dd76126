"""Signed tokens of an issuer made for tests: every algorithm, any header, any claims, and the matching key set.

Rules kept here: joserfc signs, with a registry of its own, so that no code of Mooring both signs and verifies a token.
"""

from __future__ import annotations

import base64
import hmac
import json
from functools import cache
from typing import Any

from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from mooring.pki.keys import private_key_pem
from tests.support.slowkeys import rsa_key

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def encoded(raw: bytes) -> str:
    """Encode as base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@cache
def key_for(algorithm: str, which: int = 0) -> ECKey | RSAKey:
    """Return the private key number `which`, 0 to 2, for this algorithm; it is made once a run."""
    if algorithm in _CURVES:
        return ECKey.generate_key(_CURVES[algorithm])
    return RSAKey.import_key(private_key_pem(rsa_key(2048, which)))


def public(key: ECKey | RSAKey, kid: Any = "k", **more: Any) -> dict[str, Any]:
    """Return the public key as an entry of a key set."""
    listed = {**key.as_dict(private=False), "kid": kid, **more}
    return {name: value for name, value in listed.items() if value is not None}


def key_set(*keys: Any) -> bytes:
    """Return the key set that an issuer publishes."""
    return json.dumps({"keys": list(keys)}).encode()


def signed(claims: Any, key: ECKey | RSAKey, algorithm: str = "RS256", **header: Any) -> str:
    """Return the compact token. `header`: members beside `alg`; `kid` defaults to "k", None leaves a member out."""
    full = {name: value for name, value in {"alg": algorithm, "kid": "k", **header}.items() if value is not None}
    text = f"{encoded(json.dumps(full).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{encoded(JWSRegistry.algorithms[algorithm].sign(text.encode(), key))}"


def signed_with_secret(claims: Any, secret: bytes, **header: Any) -> str:
    """Return a token of `alg: HS256` under any bytes: joserfc refuses a public key as a secret."""
    full = {"alg": "HS256", "kid": "k", **header}
    text = f"{encoded(json.dumps(full).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


def unsigned(claims: Any, **header: Any) -> str:
    """Return a token of `alg: none` with a signature of one byte: a token with an empty signature is malformed."""
    return f"{encoded(json.dumps({'alg': 'none', **header}).encode())}.{encoded(json.dumps(claims).encode())}.AA"
