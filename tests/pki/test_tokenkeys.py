"""Keys that sign and verify service account tokens, and the claims of Secrets' tokens.

Source: docs/protocol/service-account-tokens.md#keys-and-flags.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.pki.errors import KeyRefusedError
from mooring.pki.jwt.serviceaccount import LEGACY_ISSUER, LegacyToken, read_legacy
from mooring.pki.jwt.token import TokenKeys, TokenSigner, decode_unverified, verify_token
from mooring.pki.keys import generate_key
from tests.support.slowkeys import rsa_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW, OTHER = generate_key(), generate_key(), rsa_key(2048)
ISSUER = "https://mooring.example"


def test_the_signers_own_key_verifies_first_and_each_key_once() -> None:
    keys = TokenKeys(TokenSigner(OLD, ISSUER), (OTHER.public_key(), OLD.public_key(), OTHER.public_key()))
    assert keys.public_keys == (OLD.public_key(), OTHER.public_key())
    assert keys.key_ids == tuple(TokenSigner(key, ISSUER).key_id for key in (OLD, OTHER))
    assert TokenKeys(TokenSigner(NEW, ISSUER)).public_keys == (NEW.public_key(),)


def test_both_are_replaced_together() -> None:
    keys = TokenKeys(TokenSigner(OLD, ISSUER))
    before = keys.signer.sign({"iss": ISSUER, "exp": int(NOW.timestamp())})
    keys.replace(TokenSigner(NEW, ISSUER), (OLD.public_key(),))
    after = keys.signer.sign({"iss": ISSUER, "exp": int(NOW.timestamp())})
    assert decode_unverified(after)[0]["kid"] == TokenSigner(NEW, ISSUER).key_id
    for token in (before, after):
        assert verify_token(token, keys.verifying, NOW, issuers=(ISSUER,))["iss"] == ISSUER


def test_a_key_that_signs_no_tokens_changes_nothing() -> None:
    keys = TokenKeys(TokenSigner(OLD, ISSUER))
    signer, verifying = keys.signer, keys.verifying
    with pytest.raises(KeyRefusedError):
        keys.replace(TokenSigner(NEW, ISSUER), (generate_key("Ed25519").public_key(),))
    assert keys.signer is signer
    assert keys.verifying is verifying


def test_claims_of_a_secrets_token() -> None:
    """The claims that kube-controller-manager's token controller signs."""
    token = LegacyToken("ns", "robot-token-1yvwg", "robot", "uid-1")
    assert token.claims() == {
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": "ns",
        "kubernetes.io/serviceaccount/secret.name": "robot-token-1yvwg",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": "uid-1",
        "sub": "system:serviceaccount:ns:robot",
    }
    assert token.claims()["iss"] == LEGACY_ISSUER
    assert read_legacy(token.claims()) == token


@pytest.mark.parametrize("name", [name for name in LegacyToken("n", "s", "a", "u").claims() if name != "iss"])
@pytest.mark.parametrize("value", [None, "", 7, ["x"]], ids=["missing", "empty", "a number", "a list"])
def test_a_bad_claim_is_named(name: str, value: object) -> None:
    made = {**LegacyToken("n", "s", "a", "u").claims(), name: value}
    told = read_legacy(made)
    assert isinstance(told, str)
    assert name in told
