"""Key sets of other issuers, and the tokens that they verify (RFC 7517, RFC 7518 section 3).

Source: docs/protocol/openid-connect.md.

Vectors: RFC 7515 appendix A.2 (RS256) and A.3 (ES256); the rest is signed by joserfc.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry

from mooring.authn.oidc.settings import SIGNING_ALGORITHMS
from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.jwt.keyset import MAX_KEYS, MAX_TRIED, KeySet, parse_key_set
from mooring.pki.jwt.token import decode_unverified
from tests.support.jwtsigner import encoded, key_for, key_set, public, signed, signed_with_secret
from tests.support.slowkeys import rsa_key

RSA, EC = key_for("RS256"), key_for("ES256")
CLAIMS = {"sub": "jane"}

RFC_7515_A2_KEY = {
    "kty": "RSA",
    "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs"
    "D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV"
    "MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
    "e": "AQAB",
}
RFC_7515_A2 = (
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZ"
    "cAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-e"
    "OkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
)
RFC_7515_A3_KEY = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
RFC_7515_A3 = (
    "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
)


def judged(token: str, keys: KeySet) -> str:
    """The code of the refusal, "" when the signature holds."""
    header, _ = decode_unverified(token)
    try:
        keys.verify(token, header)
    except TokenRefusedError as error:
        return error.code
    return ""


@pytest.mark.parametrize("algorithm", SIGNING_ALGORITHMS)
def test_every_algorithm_is_verified_and_no_changed_token_is(algorithm: str) -> None:
    key = key_for(algorithm)
    keys = parse_key_set(key_set(public(key)))
    token = signed(CLAIMS, key, algorithm)
    head, _, tail = token.split(".")
    assert judged(token, keys) == ""
    assert judged(f"{head}.{encoded(b'{}')}.{tail}", keys) == "bad-signature"
    assert judged(signed(CLAIMS, key_for(algorithm, 1), algorithm), keys) == "bad-signature"


@pytest.mark.parametrize(
    ("token", "key"),
    [
        pytest.param(RFC_7515_A2, RFC_7515_A2_KEY, id="RFC 7515 A.2"),
        pytest.param(RFC_7515_A3, RFC_7515_A3_KEY, id="RFC 7515 A.3"),
    ],
)
def test_published_vectors(token: str, key: dict[str, str]) -> None:
    assert judged(token, parse_key_set(key_set(key))) == ""


@pytest.mark.parametrize(
    ("listed", "header", "code"),
    [
        pytest.param([public(RSA)], {}, "", id="the key of that id"),
        pytest.param([public(RSA, "other")], {}, "unknown-key", id="no key of that id"),
        pytest.param([public(RSA, None)], {}, "unknown-key", id="a key without an id is not the one that is named"),
        pytest.param([public(RSA, None)], {"kid": None}, "", id="neither has an id"),
        pytest.param([public(EC, "a"), public(RSA, "b")], {"kid": None}, "", id="no id: every key of the algorithm"),
        pytest.param(
            [public(key_for("RS256", 1)), public(RSA)], {}, "", id="two keys of one id: either may have signed"
        ),
        pytest.param([public(EC)], {}, "unsupported-algorithm", id="the key of that id is of another type"),
        pytest.param([public(RSA, alg="RS256")], {}, "", id="the key says the algorithm"),
        pytest.param([public(RSA, alg="PS256")], {}, "unsupported-algorithm", id="the key is for another algorithm"),
        pytest.param([public(RSA, use="sig", key_ops=["verify"])], {}, "", id="the key is for verifying"),
        pytest.param([public(RSA, x5c=["no certificate"], n2=[1])], {}, "", id="members nobody here reads"),
    ],
)
def test_which_key_may_have_signed(listed: list[Any], header: dict[str, Any], code: str) -> None:
    assert judged(signed(CLAIMS, RSA, **header), parse_key_set(key_set(*listed))) == code


ABSENT: list[dict[str, Any]] = [
    {},
    *({name: empty} for name in ("use", "alg", "key_ops") for empty in (None, "")),
    {"key_ops": []},
    {"use": "", "alg": "", "key_ops": None, "ext": None},
    *({name: None} for name in ("x5c", "x5t", "x5u", "d")),
    {"x5c": []},
]


@pytest.mark.parametrize("members", ABSENT, ids=str)
@pytest.mark.parametrize("kid", [{"kid": "k"}, {"kid": ""}, {"kid": None}, {}], ids=str)
def test_a_member_of_a_key_that_is_null_or_empty_is_an_absent_one(members: dict[str, Any], kid: dict[str, Any]) -> None:
    """go-jose 2.6 uses each. A key whose id is empty has none, so that no token names it."""
    keys = parse_key_set(key_set({**public(RSA, None), **members, **kid}))
    for header in ({"kid": ""}, {"kid": None}):
        assert judged(signed(CLAIMS, RSA, **header), keys) == ""
    assert judged(signed(CLAIMS, RSA), keys) == ("" if kid.get("kid") else "unknown-key")
    assert judged(signed(CLAIMS, key_for("RS256", 1), kid=""), keys) == "bad-signature"


@pytest.mark.parametrize(("before", "code"), [(MAX_TRIED - 1, ""), (MAX_TRIED, "bad-signature")])
def test_a_token_without_a_key_id_makes_so_many_keys_tried_and_no_more(before: int, code: str) -> None:
    others = [public(key_for("ES256", 1), f"other-{number}") for number in range(before)]
    keys = parse_key_set(key_set(*others, public(EC)))
    assert judged(signed(CLAIMS, EC, "ES256", kid=None), keys) == code


def test_a_public_key_is_no_shared_secret() -> None:
    token = signed_with_secret(CLAIMS, RSA.as_pem(private=False))
    assert judged(token, parse_key_set(key_set(public(RSA)))) == "unsupported-algorithm"


@pytest.mark.parametrize(
    ("token", "code"),
    [
        pytest.param(signed(CLAIMS, EC, "ES256")[:-4], "bad-signature", id="a signature cut short"),
        pytest.param(signed(CLAIMS, EC, "ES256").rpartition(".")[0] + ".AAAAA", "malformed", id="no base64"),
    ],
)
def test_broken_signatures(token: str, code: str) -> None:
    assert judged(token, parse_key_set(key_set(public(EC)))) == code


SHORT = rsa_key(1024).public_key().public_numbers().n.to_bytes(128)
USELESS = [
    pytest.param("text", id="no object"),
    pytest.param({}, id="an empty object"),
    pytest.param(public(RSA, use="enc"), id="a key for encrypting"),
    pytest.param(public(RSA, key_ops=["encrypt"]), id="a key for another operation"),
    pytest.param(public(RSA, key_ops="verify"), id="operations that are no list"),
    pytest.param(public(RSA, key_ops=False), id="operations that are false"),
    pytest.param(public(RSA, use=0), id="a use that is a number"),
    pytest.param(public(RSA, alg=0), id="an algorithm that is a number"),
    pytest.param({**public(RSA), "kty": None}, id="a type that is null"),
    pytest.param({**public(RSA), "kty": ""}, id="an empty type"),
    pytest.param({**public(EC), "kty": ""}, id="a curve of an empty type (RFC 7517 4.1)"),
    pytest.param({**public(EC), "kty": "OKP"}, id="a curve of another type"),
    pytest.param({**public(RSA), "e": None}, id="an exponent that is null"),
    pytest.param({**public(RSA), "e": ""}, id="an empty exponent"),
    pytest.param({**public(EC), "x": ""}, id="an empty coordinate"),
    pytest.param(None, id="null"),
    pytest.param(public(RSA, kid=5), id="an id that is no text"),
    pytest.param(public(RSA, alg="RSA-OAEP"), id="an algorithm that signs nothing"),
    pytest.param(public(RSA, kty=["RSA"]), id="a type that is no text"),
    pytest.param({"kty": "oct", "k": "c2VjcmV0", "kid": "k"}, id="a shared secret"),
    pytest.param(OKPKey.generate_key("Ed25519").as_dict(private=False), id="an Edwards curve"),
    pytest.param({**public(RSA), "n": encoded(SHORT)}, id="an RSA key of 1024 bits"),
    pytest.param({**public(RSA), "n": encoded(b"\xff" * 1025)}, id="an RSA key of 8200 bits"),
    pytest.param({**public(RSA), "e": encoded(b"\x01" * 5)}, id="an exponent of 33 bits"),
    pytest.param({**public(RSA), "e": encoded(b"\x02")}, id="an even exponent"),
    pytest.param({**public(RSA), "n": "!"}, id="a modulus that is no base64"),
    pytest.param({**public(RSA), "n": 5}, id="a modulus that is no text"),
    pytest.param({**public(RSA), "n": ""}, id="an empty modulus"),
    pytest.param({"kty": "RSA", "kid": "k"}, id="no modulus"),
    pytest.param({**public(EC), "crv": "secp256k1"}, id="another curve"),
    pytest.param({**public(EC), "x": public(EC)["y"]}, id="a point off the curve"),
    pytest.param({**public(EC), "x": encoded(b"\xff" * 3000)}, id="a point far off the curve"),
]


@pytest.mark.parametrize("listed", USELESS)
def test_keys_that_verify_nothing_are_passed_over(listed: Any) -> None:
    keys = parse_key_set(key_set(listed, public(EC, "good")))
    assert [key.kid for key in keys.keys] == ["good"]
    with pytest.raises(KeyRefusedError, match="none of the 1 keys of the key set can verify a token"):
        parse_key_set(key_set(listed))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        pytest.param(b"", "not JSON", id="nothing"),
        pytest.param(b"<html>", "not JSON", id="a page"),
        pytest.param(b'"\xff"', "not JSON", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "not JSON", id="a tower of brackets"),
        pytest.param(b"[]", "no list of keys", id="a list"),
        pytest.param(b"{}", "no list of keys", id="an object without keys"),
        pytest.param(b'{"keys":{}}', "no list of keys", id="keys that are no list"),
        pytest.param(b'{"keys":null}', "no list of keys", id="keys that are null"),
        pytest.param(b"null", "no list of keys", id="null"),
        pytest.param(key_set(), "none of the 0 keys", id="an empty list"),
        pytest.param(key_set(*[public(EC)] * (MAX_KEYS + 1)), "129 keys, more than 128", id="too many keys"),
    ],
)
def test_documents_that_are_no_key_set(document: bytes, why: str) -> None:
    with pytest.raises(KeyRefusedError, match=why):
        parse_key_set(document)


def test_private_members_are_not_read() -> None:
    keys = parse_key_set(key_set({**RSA.as_dict(private=True), "kid": "k"}))
    assert not keys.keys[0].key.is_private


def test_the_digest_differs_when_the_document_differs() -> None:
    one, same, other = (parse_key_set(key_set(public(key))) for key in (RSA, RSA, EC))
    assert one.digest == same.digest != other.digest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
MEMBERS = st.fixed_dictionaries(
    {"kty": st.sampled_from(["RSA", "EC"]) | JSON},
    optional={
        **{name: st.text("AQabxyz_-=", max_size=60) | JSON for name in ("n", "e", "x", "y")},
        "crv": st.sampled_from(["P-256", "P-384", "P-521"]) | JSON,
        **dict.fromkeys(("use", "kid", "alg", "key_ops"), JSON),
    },
)


@given(st.lists(MEMBERS, max_size=3))
def test_any_listed_key_is_usable_or_passed_over(listed: list[Any]) -> None:
    assert len(parse_key_set(key_set(*listed, public(EC))).keys) >= 1


@given(st.binary(max_size=200))
def test_any_document_is_a_key_set_or_refused(document: bytes) -> None:
    with contextlib.suppress(KeyRefusedError):
        assert parse_key_set(document).keys


def test_a_library_that_stumbles_over_a_key_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """cryptography raises ValueError for some malformed keys only when they are used."""

    class Stumbling:
        def verify(self, *given: object) -> bool:
            raise ValueError("it cannot be")

    token = signed(CLAIMS, RSA)
    monkeypatch.setattr(JWSRegistry, "algorithms", {"RS256": Stumbling()})
    assert judged(token, parse_key_set(key_set(public(RSA)))) == "bad-signature"
