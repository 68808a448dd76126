"""JWTs that the cluster signs and verifies itself, such as service account tokens (RFC 7519).

Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens):
* A signed header has exactly `alg` and `kid`.
* Shape, algorithm and issuer are checked before any cryptography, then the signature, then the times.
* The public half of the signing key is always among the keys that verify, and comes first. Signing key and verification keys are
  replaced together.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import datetime

from joserfc import jws

from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.claims import check_times
from mooring.pki.jwt.compact import Claims, check_header, decode_unverified
from mooring.pki.jwt.keyset import KeySet, algorithm_of, jwk_of, key_id, key_set_of
from mooring.pki.keys import PrivateKey, PublicKey

ALGORITHMS = ("ES256", "ES384", "ES512", "RS256")
"""Algorithms of service account keys."""


class TokenSigner:
    """Signs claims with one private key on behalf of one issuer."""

    def __init__(self, private_key: PrivateKey, issuer: str) -> None:
        """`private_key` is of a type that signs tokens; raises KeyRefusedError otherwise."""
        self.issuer = issuer
        self.public_key = private_key.public_key()
        self.algorithm = algorithm_of(private_key)
        self.key_id = key_id(private_key)
        self._header = {"alg": self.algorithm, "kid": self.key_id}
        self._key = jwk_of(private_key)

    def sign(self, claims: Claims) -> str:
        """Return the compact token of `claims`. The text is a credential: give it to its owner only."""
        payload = json.dumps(claims, separators=(",", ":"), ensure_ascii=False)
        return jws.serialize_compact(dict(self._header), payload, self._key, algorithms=[self.algorithm])

    def __repr__(self) -> str:
        return f"TokenSigner({self.algorithm}, {self.issuer!r})"


class TokenKeys:
    """The current signing key of one server and its verification keys. Read the attributes at each use: `replace` changes them."""

    def __init__(self, signer: TokenSigner, others: Iterable[PublicKey] = ()) -> None:
        """`others` verify beside the signer's own key. Raises KeyRefusedError for a key that does not sign tokens."""
        self.replace(signer, others)

    def replace(self, signer: TokenSigner, others: Iterable[PublicKey]) -> None:
        """Sign and verify with these keys from now on. After KeyRefusedError nothing has changed."""
        by_id = {key_id(key): key for key in (signer.public_key, *others)}
        verifying = key_set_of(by_id.values())
        self.signer = signer
        self.verifying = verifying
        self.public_keys: tuple[PublicKey, ...] = tuple(by_id.values())
        self.key_ids: tuple[str, ...] = tuple(by_id)


def verify_token(
    token: str,
    keys: KeySet,
    now: datetime,
    *,
    issuers: Collection[str],
    require_expiry: bool = True,
) -> Claims:
    """Return the claims of a token that one of `issuers` signed with one of `keys` and that is valid at `now`.

    Audience and bound objects are for the caller to check. `require_expiry=False` is for the tokens of Secrets, which have none.
    Raises TokenRefusedError.
    """
    header, claims = decode_unverified(token)
    check_header(header, ALGORITHMS)
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or issuer not in issuers:
        raise TokenRefusedError("wrong-issuer", "the token was issued by another issuer")
    keys.verify(token, header)
    check_times(claims, now, require_expiry)
    return claims
