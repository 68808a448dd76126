"""Published key sets and the OpenID discovery document."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from joserfc import jwt as library
from joserfc.jwk import KeySet

from mooring.pki import keys
from mooring.pki.errors import KeyRefusedError
from mooring.pki.jwt import keyset
from mooring.pki.jwt.token import TokenSigner
from tests.support.slowkeys import rsa_key

ISSUER = "https://issuer.example"
EC_KEY = keys.generate_key()
RSA = rsa_key(2048)
P521 = ec.generate_private_key(ec.SECP521R1())


def test_each_key_is_listed_once_with_public_members_only() -> None:
    ours, rsa_key = EC_KEY.public_key(), RSA.public_key()
    first, second = keyset.jwks_document([ours, rsa_key, ours])["keys"]
    assert first.keys() == {"use", "kty", "kid", "alg", "crv", "x", "y"}
    assert second.keys() == {"use", "kty", "kid", "alg", "n", "e"}
    assert (first["use"], first["kty"], first["alg"], first["crv"]) == ("sig", "EC", "ES256", "P-256")
    assert (second["use"], second["kty"], second["alg"], second["e"]) == ("sig", "RSA", "RS256", "AQAB")


@pytest.mark.parametrize(
    "key", [pytest.param(EC_KEY, id="P-256"), pytest.param(RSA, id="RSA"), pytest.param(P521, id="P-521")]
)
def test_a_relying_party_verifies_a_token_with_the_key_set(key: keys.PrivateKey) -> None:
    signer = TokenSigner(key, ISSUER)
    known = KeySet.import_key_set(keyset.jwks_document([signer.public_key]))  # type: ignore[arg-type]  # the library wants its TypedDict
    token = library.decode(signer.sign({"iss": ISSUER}), known, algorithms=[signer.algorithm])
    assert token.claims == {"iss": ISSUER}
    assert token.header["kid"] == signer.key_id


def test_a_key_that_signs_no_token_is_not_published() -> None:
    with pytest.raises(KeyRefusedError):
        keyset.jwks_document([ed25519.Ed25519PrivateKey.generate().public_key()])


def test_the_discovery_document() -> None:
    assert keyset.discovery_document(ISSUER, ISSUER + "/openid/v1/jwks", ["RS256", "ES256", "RS256"]) == {
        "issuer": "https://issuer.example",
        "jwks_uri": "https://issuer.example/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256", "RS256"],
    }


@pytest.mark.parametrize(
    ("issuer", "served"),
    [
        pytest.param("https://issuer.example", True, id="https"),
        pytest.param("https://issuer.example/path", True, id="https with a path"),
        pytest.param("http://issuer.example", False, id="http"),
        pytest.param("https://issuer.example?x=y", False, id="a query"),
        pytest.param("https://issuer.example?", False, id="an empty query"),
        pytest.param("https://issuer.example#x", False, id="a fragment"),
        pytest.param("https:///path", False, id="no host"),
        pytest.param("kubernetes/serviceaccount", False, id="the legacy issuer"),
        pytest.param("https://[", False, id="no URL"),
    ],
)
def test_discovery_is_served_for_https_issuers_only(issuer: str, served: bool) -> None:
    assert keyset.is_discoverable(issuer) is served
