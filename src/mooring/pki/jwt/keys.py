"""The keys that service account tokens live by: one signs, and several verify.

Source: docs/protocol/service-account-tokens.md#keys-and-flags.

Rules kept here:
* Whoever signs can verify what it signed: the public half of the signing key is always among those that verify, and comes first.
* The same key is listed once. Both are replaced together, and nobody sees the one without the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from mooring.pki.jwt.token import TokenSigner, VerificationKeys, key_id
from mooring.pki.keys import PublicKey


class TokenKeys:
    """The keys of one server, as they are now. Read `signer` and `verifying` at each use: both may be others a moment later."""

    def __init__(self, signer: TokenSigner, others: Iterable[PublicKey] = ()) -> None:
        """`others`: what verifies beside the signer's own. Raises KeyRefusedError for a key that does not sign tokens."""
        self.replace(signer, others)

    def replace(self, signer: TokenSigner, others: Iterable[PublicKey]) -> None:
        """Sign and verify with these from now on. Raises KeyRefusedError; then nothing has changed."""
        by_id = {key_id(key): key for key in (signer.public_key, *others)}
        verifying = VerificationKeys(by_id.values())
        self.signer = signer
        self.verifying = verifying
