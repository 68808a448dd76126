"""Service account tokens: signing, unverified reading, verification and refusal.

Source: docs/protocol/service-account-tokens.md#bound-tokens.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from mooring import base64url
from mooring.pki import keys
from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.jwt.keyset import KeySet, jwk_of, key_id, key_set_of
from mooring.pki.jwt.serviceaccount import Bound, bound_claims
from mooring.pki.jwt.token import TokenSigner, audiences, check_texts, claimed_issuer, decode_unverified, verify_token
from tests.support.slowkeys import rsa_key

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
ISSUER = "https://kubernetes.default.svc.cluster.local"
KEY = keys.generate_key()
RSA = rsa_key(2048)
P384 = keys.generate_key("ECDSA-P384")
P521 = ec.generate_private_key(ec.SECP521R1())
SIGNER = TokenSigner(KEY, ISSUER)
KNOWN = key_set_of([KEY.public_key(), RSA.public_key(), P384.public_key()])
CLAIMS: dict[str, Any] = {"iss": ISSUER, "sub": "x", "exp": SECONDS + 600, "iat": SECONDS, "nbf": SECONDS}
TOKEN = SIGNER.sign(CLAIMS)


def segment(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def token_with(header: dict[str, Any], key: ECKey | RSAKey | bytes | None = None) -> str:
    """A token with any header, truly signed by `key` (bytes: a shared secret)."""
    text = f"{segment(header)}.{segment(CLAIMS)}"
    if isinstance(key, bytes):
        return f"{text}.{segment(hmac.digest(key, text.encode(), 'sha256'))}"
    algorithm = jws.JWSRegistry.algorithms[header["alg"]]
    return f"{text}.{segment(algorithm.sign(text.encode(), key or jwk_of(KEY)))}"


def refused(token: str, now: datetime = NOW, known: KeySet = KNOWN, **options: Any) -> TokenRefusedError:
    with pytest.raises(TokenRefusedError) as raised:
        verify_token(token, known, now, issuers={ISSUER}, **options)
    assert raised.value.code in TokenRefusedError.CODES
    return raised.value


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        pytest.param(KEY, "ES256", id="P-256"),
        pytest.param(P384, "ES384", id="P-384"),
        pytest.param(P521, "ES512", id="P-521"),
        pytest.param(RSA, "RS256", id="RSA"),
    ],
)
def test_a_key_signs_with_its_algorithm_and_verifies_it(key: keys.PrivateKey, alg: str) -> None:
    signer = TokenSigner(key, ISSUER)
    token = signer.sign(CLAIMS)
    header, claims = decode_unverified(token)
    assert header == {"alg": alg, "kid": signer.key_id}
    assert claims == CLAIMS
    assert verify_token(token, key_set_of([key.public_key()]), NOW, issuers=[ISSUER]) == CLAIMS


def test_the_key_id_is_what_openssl_and_coreutils_compute() -> None:
    der = subprocess.run(
        ["openssl", "pkey", "-pubout", "-outform", "DER"],
        input=keys.private_key_pem(KEY),
        capture_output=True,
        check=True,
    ).stdout
    assert SIGNER.key_id == segment(hashlib.sha256(der).digest())
    assert key_id(KEY.public_key()) == SIGNER.key_id


def test_openssl_verifies_an_rs256_signature(tmp_path: Path) -> None:
    signing_input, _, signature = TokenSigner(RSA, ISSUER).sign(CLAIMS).rpartition(".")
    (tmp_path / "input").write_text(signing_input)
    (tmp_path / "signature").write_bytes(base64.urlsafe_b64decode(signature + "=="))
    (tmp_path / "key").write_bytes(keys.public_key_pem(RSA))
    subprocess.run(
        ["openssl", "dgst", "-sha256", "-verify", "key", "-signature", "signature", "input"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize(
    "header",
    [{"kid": ""}, {"kid": None}, {"crit": None}, {"crit": []}, {"b64": None}, {"typ": None, "cty": None}, {"typ": ""},
     {"x5c": None}, {"jwk": None}, {"nonce": ""}],
    ids=str,
)  # fmt: skip
def test_a_member_of_the_header_that_is_null_or_empty_is_an_absent_one(header: dict[str, Any]) -> None:
    """go-jose 2.6 accepts each. Kubernetes before 1.16 wrote `"kid": ""` (kubernetes/kubernetes#78502)."""
    assert verify_token(token_with({"alg": "ES256", **header}), KNOWN, NOW, issuers=[ISSUER]) == CLAIMS


@pytest.mark.parametrize("name", ["nbf", "iat", "exp"])
def test_a_time_that_is_null_is_an_absent_one_and_zero_is_a_time(name: str) -> None:
    """As go-jose reads NumericDate."""
    null = {**CLAIMS, name: None}
    assert verify_token(SIGNER.sign(null), KNOWN, NOW, issuers=[ISSUER], require_expiry=False) == null
    zero = SIGNER.sign({**CLAIMS, name: 0})
    if name == "exp":
        assert refused(zero, require_expiry=False).code == "expired"
        assert refused(SIGNER.sign(null)).code == "missing-expiry"
    else:
        assert verify_token(zero, KNOWN, NOW, issuers=[ISSUER])[name] == 0


def test_text_outside_ascii_survives() -> None:
    claims = {**CLAIMS, "sub": "é\u2603"}
    assert verify_token(SIGNER.sign(claims), KNOWN, NOW, issuers=[ISSUER]) == claims


def test_ed25519_signs_no_token() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(KeyRefusedError, match="not with Ed25519"):
        TokenSigner(key, ISSUER)
    with pytest.raises(KeyRefusedError, match="not with Ed25519"):
        key_set_of([key.public_key()])


def test_a_signer_prints_no_key() -> None:
    assert repr(SIGNER) == f"TokenSigner(ES256, {ISSUER!r})"


def test_the_key_id_chooses_the_key_and_its_absence_tries_all() -> None:
    assert verify_token(token_with({"alg": "ES256"}), KNOWN, NOW, issuers=[ISSUER]) == CLAIMS
    assert verify_token(token_with({"alg": "ES256", "x": "y"}), KNOWN, NOW, issuers=[ISSUER]) == CLAIMS
    assert verify_token(token_with({"alg": "ES256", "typ": "JWT"}), KNOWN, NOW, issuers=["other", ISSUER]) == CLAIMS
    two = key_set_of([keys.generate_key().public_key(), KEY.public_key()])
    assert verify_token(token_with({"alg": "ES256"}), two, NOW, issuers=[ISSUER]) == CLAIMS


OTHER_KEY = keys.generate_key()
OTHER = TokenSigner(OTHER_KEY, ISSUER)
BAD_ALG = "unsupported-algorithm"
PUBLIC_TEXT = keys.public_key_pem(KEY)  # what a confused verifier would take for a shared secret


@pytest.mark.parametrize(
    ("token", "code"),
    [
        pytest.param("", "malformed", id="nothing"),
        pytest.param("a.b", "malformed", id="two segments"),
        pytest.param(TOKEN + ".x", "malformed", id="four segments"),
        pytest.param(TOKEN + "=", "malformed", id="padding"),
        pytest.param(TOKEN + "\n", "malformed", id="a newline after"),
        pytest.param(TOKEN.replace(".", ". ", 1), "malformed", id="a space inside"),
        pytest.param(f"a.{segment({})}.x", "malformed", id="a header that is not base64"),
        pytest.param(f"{segment(b'{')}.{segment({})}.x", "malformed", id="a header that is not JSON"),
        pytest.param(f"{segment([])}.{segment({})}.x", "malformed", id="a header that is a list"),
        pytest.param(f"{segment({})}.{segment([])}.x", "malformed", id="a payload that is a list"),
        pytest.param(f"{segment({})}.{segment(b'[' * 9000)}.x", "malformed", id="a payload nested deeply"),
        pytest.param(f"{segment({})}.{segment(b'x' * 255)}.x", "malformed", id="a payload that is not JSON"),
        pytest.param(f"{segment({})}.{segment(CLAIMS)}.x", BAD_ALG, id="no algorithm"),
        pytest.param(f"{segment({'alg': 'none'})}.{segment(CLAIMS)}.eA", BAD_ALG, id="algorithm none"),
        pytest.param(f"{segment({'alg': 'none'})}.{segment(CLAIMS)}.", BAD_ALG, id="algorithm none, no signature"),
        pytest.param(f"{segment({'alg': 'ES256'})}.{segment(CLAIMS)}.", "malformed", id="a signature that was cut off"),
        pytest.param(f"{segment({'alg': ['ES256']})}.{segment(CLAIMS)}.x", BAD_ALG, id="an algorithm that is a list"),
        pytest.param(
            f"{segment({'alg': 'ES256', 'kid': 7})}.{segment(CLAIMS)}.x", "malformed", id="a key id that is a number"
        ),
        pytest.param(token_with({"alg": "HS256"}, key=PUBLIC_TEXT), BAD_ALG, id="an HMAC with the public key"),
        pytest.param(
            token_with({"alg": "HS256", "kid": SIGNER.key_id}, key=PUBLIC_TEXT), BAD_ALG, id="an HMAC naming a key"
        ),
        pytest.param(token_with({"alg": "PS256"}, key=jwk_of(RSA)), BAD_ALG, id="RSA-PSS"),
        pytest.param(token_with({"alg": "RS512"}, key=jwk_of(RSA)), BAD_ALG, id="RS512"),
        pytest.param(token_with({"alg": "ES256", "crit": ["exp"]}), "malformed", id="a critical header"),
        pytest.param(token_with({"alg": "ES256", "crit": [None]}), "malformed", id="a critical header that is null"),
        pytest.param(token_with({"alg": "ES256", "crit": ""}), "malformed", id="critical headers that are a text"),
        pytest.param(token_with({"alg": "ES256", "b64": False}), "malformed", id="an unencoded payload"),
        pytest.param(f"{segment({'alg': None})}.{segment(CLAIMS)}.eA", BAD_ALG, id="an algorithm that is null"),
        pytest.param(f"{segment({'alg': ''})}.{segment(CLAIMS)}.eA", BAD_ALG, id="an empty algorithm"),
        pytest.param(f"{segment(None)}.{segment(CLAIMS)}.eA", "malformed", id="a header that is null"),
        pytest.param(OTHER.sign(CLAIMS), "unknown-key", id="a key that is not known"),
        pytest.param(
            token_with({"alg": "RS256", "kid": SIGNER.key_id}, key=jwk_of(RSA)), BAD_ALG, id="another key's algorithm"
        ),
        pytest.param(
            token_with({"alg": "ES256", "kid": OTHER.key_id}), "unknown-key", id="our signature, another's key id"
        ),
        pytest.param(
            token_with({"alg": "ES256"}, key=jwk_of(OTHER_KEY)),
            "bad-signature",
            id="no key id, another's signature",
        ),
        pytest.param(token_with({"alg": "ES512"}, key=jwk_of(P521)), BAD_ALG, id="no key of that algorithm"),
        pytest.param(TOKEN[:-4], "bad-signature", id="a signature cut off"),
        pytest.param(TOKEN.rpartition(".")[0] + ".A", "malformed", id="a signature that is not base64"),
        pytest.param(SIGNER.sign({**CLAIMS, "iss": "x"}), "wrong-issuer", id="another issuer"),
        pytest.param(SIGNER.sign({**CLAIMS, "iss": [ISSUER]}), "wrong-issuer", id="an issuer that is a list"),
        pytest.param("x" * 20000, "too-large", id="too long"),
        pytest.param(f"{segment(b' ' * 512)}.x.x", "too-large", id="a header too long"),
    ],
)
def test_refused_tokens(token: str, code: str) -> None:
    refusal = refused(token)
    assert refusal.code == code
    assert not any(part and len(part) > 3 and part in str(refusal) for part in token.split("."))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CLAIMS.items() if key != name}


MINUTE = 60


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        pytest.param({**CLAIMS, "exp": SECONDS - MINUTE - 1}, "expired", id="expired more than a minute ago"),
        pytest.param({**CLAIMS, "nbf": SECONDS + MINUTE + 1}, "not-yet-valid", id="begins in more than a minute"),
        pytest.param({**CLAIMS, "iat": SECONDS + MINUTE + 1}, "issued-in-future", id="issued in more than a minute"),
        pytest.param(without("exp"), "missing-expiry", id="no expiry"),
        pytest.param({**CLAIMS, "exp": "soon"}, "malformed", id="an expiry in words"),
        pytest.param({**CLAIMS, "exp": True}, "malformed", id="an expiry that is true"),
        pytest.param({**CLAIMS, "exp": 10**400}, "malformed", id="an expiry that no float holds"),
        pytest.param({**CLAIMS, "exp": 1e30}, "malformed", id="an expiry beyond all time"),
        pytest.param({**CLAIMS, "nbf": -1e30}, "malformed", id="a beginning before all time"),
    ],
)
def test_times_that_are_refused(claims: dict[str, Any], code: str) -> None:
    assert refused(SIGNER.sign(claims)).code == code


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({**CLAIMS, "exp": SECONDS - MINUTE}, id="expired a minute ago"),
        pytest.param({**CLAIMS, "nbf": SECONDS + MINUTE, "iat": SECONDS + MINUTE}, id="begins in a minute"),
        pytest.param({**CLAIMS, "exp": SECONDS + 0.5}, id="fractions of a second"),
        pytest.param({"iss": ISSUER, "exp": SECONDS}, id="an expiry alone"),
    ],
)
def test_times_that_pass(claims: dict[str, Any]) -> None:
    assert verify_token(SIGNER.sign(claims), KNOWN, NOW, issuers=[ISSUER]) == claims


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        pytest.param({"exp": SECONDS - 3 * 60 * MINUTE}, "the token expired 3h ago, at ", id="three hours late"),
        pytest.param({"nbf": SECONDS + 100}, "the token is not valid for another 100s: compare the clocks", id="early"),
        pytest.param(
            {"iat": SECONDS + 100}, "the token was issued 100s from now: compare the clocks", id="from tomorrow"
        ),
    ],
)
def test_a_refusal_by_time_has_the_difference(claims: dict[str, Any], told: str) -> None:
    assert told in str(refused(SIGNER.sign({**CLAIMS, **claims})))


def test_legacy_tokens_need_no_expiry_but_keep_one_they_have() -> None:
    token = SIGNER.sign({"iss": ISSUER})
    assert verify_token(token, KNOWN, NOW, issuers=[ISSUER], require_expiry=False) == {"iss": ISSUER}
    assert refused(SIGNER.sign({**CLAIMS, "exp": 1}), require_expiry=False).code == "expired"


def test_without_keys_or_issuers_nothing_is_verified() -> None:
    assert refused(TOKEN, known=key_set_of([])).code == "unknown-key"
    with pytest.raises(TokenRefusedError, match="issued by another issuer"):
        verify_token(TOKEN, KNOWN, NOW, issuers=[])


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("AQgwabz019-_.~"))
def test_no_character_of_a_token_can_be_changed(place: int, character: str) -> None:
    changed = TOKEN[:place] + character + TOKEN[place + 1 :]
    if changed != TOKEN:
        refused(changed)


def test_a_signature_has_one_text() -> None:
    """64 octets leave four bits of the last character unused; they must be zero (RFC 4648 3.5)."""
    for unused in range(1, 16):
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        changed = TOKEN[:-1] + alphabet[alphabet.index(TOKEN[-1]) + unused]
        assert refused(changed).code == "bad-signature"


@given(
    st.text(max_size=200)
    | st.lists(st.binary(max_size=60), min_size=3, max_size=3).map(lambda parts: ".".join(map(segment, parts)))
)
def test_junk_never_crashes(token: str) -> None:
    refused(token)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_what_is_signed_is_what_is_read(claims: dict[str, Any]) -> None:
    assert decode_unverified(SIGNER.sign(claims))[1] == claims


@pytest.mark.parametrize(
    ("token", "issuer"),
    [
        pytest.param(TOKEN, ISSUER, id="a good token"),
        pytest.param(TOKEN.rpartition(".")[0], ISSUER, id="the signature and its dot cut off"),
        pytest.param(TOKEN.rpartition(".")[0] + ".", ISSUER, id="the signature cut off"),
        pytest.param(TOKEN[:-5], ISSUER, id="a part of the signature cut off"),
        pytest.param(TOKEN + ".more.still", ISSUER, id="more segments"),
        pytest.param(f"{segment({'alg': 'none'})}.{segment(CLAIMS)}.", ISSUER, id="the algorithm none"),
        pytest.param(f"junk!.{segment(CLAIMS)}.x", ISSUER, id="an unreadable header"),
        pytest.param(f".{segment(CLAIMS)}.", ISSUER, id="no header"),
        pytest.param(f"{'h' * 99_999}.{segment(CLAIMS)}.x", ISSUER, id="a header of any length"),
        pytest.param(f"h.{base64.b64encode(json.dumps(CLAIMS).encode()).decode()}.x", ISSUER, id="padding"),
        pytest.param(
            f"h.{base64.b64encode(json.dumps({'iss': ISSUER, 'x': '???>>>'}).encode()).decode()}.x",
            ISSUER,
            id="the other alphabet",
        ),
        pytest.param(f"h. {segment(CLAIMS)} .x", ISSUER, id="blanks around the payload"),
        pytest.param(f"h.{segment({'iss': 'x' * 70_000})}.x", "", id="a payload that is too long"),
        pytest.param(f"h.{segment({'iss': [ISSUER]})}.x", "", id="an issuer that is no text"),
        pytest.param(f"h.{segment([ISSUER])}.x", "", id="a payload that is no object"),
        pytest.param(f"h.{segment(b'[' * 40_000)}.x", "", id="a payload of brackets"),
        pytest.param("h.é.x", "", id="a payload outside ASCII"),
        pytest.param("abcdef.0123456789abcdef", "", id="a bootstrap token"),
        pytest.param("opaque", "", id="no segments"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_the_issuer_that_a_token_claims_is_read_in_any_form_of_it(token: str, issuer: str) -> None:
    assert claimed_issuer(token) == issuer


@given(st.text())
def test_any_text_claims_an_issuer_or_none(text: str) -> None:
    assert claimed_issuer(text) == ""


@pytest.mark.parametrize(
    ("claims", "named"),
    [({}, ()), ({"aud": []}, ()), ({"aud": ""}, ("",)), ({"aud": "a"}, ("a",)), ({"aud": ["a", "b"]}, ("a", "b"))],
    ids=str,
)
def test_the_audiences_of_a_token(claims: dict[str, Any], named: tuple[str, ...]) -> None:
    assert audiences(claims) == named


@pytest.mark.parametrize("named", [None, 5, ["a", 5], [None], {"a": 1}, True], ids=str)
def test_audiences_of_other_types_are_refused(named: object) -> None:
    with pytest.raises(TokenRefusedError) as raised:
        audiences({"aud": named})
    assert raised.value.code == "malformed"


def test_a_claim_that_must_be_text_is_refused_with_another_type() -> None:
    check_texts({"sub": "x", "jti": None}, "sub", "jti", "nonce")
    with pytest.raises(TokenRefusedError, match="jti is not a text"):
        check_texts({"sub": "x", "jti": 7}, "sub", "jti")


ACCOUNT = Bound("builder", "uid-1")


def test_the_claims_of_an_unbound_token() -> None:
    claims = bound_claims(
        issuer=ISSUER,
        namespace="ci",
        service_account=ACCOUNT,
        audiences=("a", "b"),
        now=NOW + timedelta(microseconds=9),
        lifetime=timedelta(hours=1),
        jti="id-1",
    )
    assert claims == {
        "aud": ["a", "b"],
        "exp": SECONDS + 3600,
        "iat": SECONDS,
        "iss": ISSUER,
        "jti": "id-1",
        "kubernetes.io": {"namespace": "ci", "serviceaccount": {"name": "builder", "uid": "uid-1"}},
        "nbf": SECONDS,
        "sub": "system:serviceaccount:ci:builder",
    }


def test_the_claims_of_a_token_bound_to_a_pod_on_a_node() -> None:
    claims = bound_claims(
        issuer=ISSUER, namespace="ci", service_account=ACCOUNT, audiences=["a"], now=NOW, lifetime=timedelta(days=365),
        jti="id-1", pod=Bound("p", "1"), secret=Bound("s", "2"), node=Bound("n", "3"),
    )  # fmt: skip
    assert claims["kubernetes.io"] == {
        "namespace": "ci",
        "serviceaccount": {"name": "builder", "uid": "uid-1"},
        "pod": {"name": "p", "uid": "1"},
        "secret": {"name": "s", "uid": "2"},
        "node": {"name": "n", "uid": "3"},
    }
    assert claims["exp"] == SECONDS + 365 * 86400


# Go's encoding/json replaces such a text by U+FFFD, which makes one user of all of them.
@pytest.mark.parametrize(
    "sub", [b"\\ud800", b"\\udfff\\ud800", b"a\\udc00b", b"M\xfcller", b"\xed\xa0\x80", b"\xc0\xaf"]
)
def test_claims_with_a_text_that_is_not_unicode_are_malformed(sub: bytes) -> None:
    payload = base64url.encode(b'{"sub":"' + sub + b'"}')
    with pytest.raises(TokenRefusedError) as refusal:
        decode_unverified(f"{base64url.encode(b'{}')}.{payload}.c2ln")
    assert refusal.value.code == "malformed"
