"""Signature of cluster-info.

Source: docs/protocol/cluster-info.md#signature.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, parse_token
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.errors import DiscoveryError, NotSetUpError, SignatureMissingError, SignatureWrongError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/trust/jws.json").read_text())["vectors"]
TOKEN = parse_token("07401b.f395accd246ae52d")
TEXT = "apiVersion: v1\nkind: Config\n"


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["sentence"] for vector in VECTORS])
def test_the_published_vector_of(vector: dict[str, str]) -> None:
    made = clusterinfo.sign(vector["content"].encode(), vector["id"], vector["secret"].encode())
    assert made == vector["signature"]
    token = BootstrapToken(vector["id"], Secret(vector["secret"]))
    data = {"kubeconfig": vector["content"], f"jws-kubeconfig-{vector['id']}": made}
    if vector["content"]:
        assert clusterinfo.verify(data, token) == vector["content"]


def test_the_header_is_exactly_these_bytes() -> None:
    header, payload, _ = clusterinfo.sign(b"x", "07401b", b"s").split(".")
    assert header == "eyJhbGciOiJIUzI1NiIsImtpZCI6IjA3NDAxYiJ9"
    assert payload == ""


@given(st.binary(), st.binary(min_size=1))
def test_the_signature_is_hmac_sha256_over_header_dot_payload(payload: bytes, key: bytes) -> None:
    header, _, signature = clusterinfo.sign(payload, "abcdef", key).split(".")
    body = f"{header}.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}".encode()
    wanted = hmac.new(key, body, hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "=") == wanted


@pytest.mark.parametrize("token_id", ["", "abcde", 'a","x"', "ABCDEF", "abcdef\n"])
def test_nothing_but_a_token_id_is_put_into_the_header(token_id: str) -> None:
    with pytest.raises(ValueError, match="token id"):
        clusterinfo.sign(b"x", token_id, b"s")


def good() -> dict[str, str]:
    return {"kubeconfig": TEXT, "jws-kubeconfig-07401b": clusterinfo.sign(TEXT.encode(), "07401b", b"f395accd246ae52d")}


def other_header(header: str) -> str:
    encoded = base64.urlsafe_b64encode(header.encode()).decode().rstrip("=")
    body = f"{encoded}.{base64.urlsafe_b64encode(TEXT.encode()).decode().rstrip('=')}".encode()
    made = hmac.digest(b"f395accd246ae52d", body, "sha256")
    return f"{encoded}..{base64.urlsafe_b64encode(made).decode().rstrip('=')}"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"kubeconfig": None}, NotSetUpError, id="no kubeconfig"),
        pytest.param({"jws-kubeconfig-07401b": None}, SignatureMissingError, id="no signature for our id"),
        pytest.param({"kubeconfig": TEXT + "\n"}, SignatureWrongError, id="one more newline"),
        pytest.param({"kubeconfig": TEXT + "\ud800"}, SignatureWrongError, id="a lone surrogate in the text"),
        pytest.param({"jws-kubeconfig-07401b": ""}, SignatureMissingError, id="an empty signature"),
        pytest.param(
            {"kubeconfig": "", "jws-kubeconfig-07401b": clusterinfo.sign(b"", "07401b", b"f395accd246ae52d")},
            NotSetUpError,
            id="an empty kubeconfig, well signed",
        ),
        pytest.param({"jws-kubeconfig-07401b": "\ud800"}, SignatureWrongError, id="a signature that is no text"),
        pytest.param(
            {"jws-kubeconfig-07401b": clusterinfo.sign(TEXT.encode(), "07401b", b"07401b.f395accd246ae52d")},
            SignatureWrongError,
            id="the whole token as key, as the seed had it",
        ),
        pytest.param(
            {"jws-kubeconfig-07401b": other_header('{"kid":"07401b","alg":"HS256"}')},
            SignatureWrongError,
            id="an equal header in another order",
        ),
        pytest.param(
            {"jws-kubeconfig-07401b": other_header('{"alg":"none","kid":"07401b"}')},
            SignatureWrongError,
            id="another algorithm",
        ),
        pytest.param(
            {"jws-kubeconfig-07401b": clusterinfo.sign(TEXT.encode(), "aaaaaa", b"f395accd246ae52d")},
            SignatureWrongError,
            id="another key id",
        ),
        pytest.param(
            {"jws-kubeconfig-07401b": clusterinfo.sign(TEXT.encode(), "07401b", b"f395accd246ae52d") + "="},
            SignatureWrongError,
            id="padding",
        ),
    ],
)
def test_cluster_info_is_refused_when_it_has(change: dict[str, str | None], error: type[DiscoveryError]) -> None:
    data = {key: value for key, value in (good() | change).items() if value is not None}
    with pytest.raises(error) as caught:
        clusterinfo.verify(data, TOKEN, "verifying")
    assert str(caught.value).startswith("verifying: ")
    assert "f395accd246ae52d" not in str(caught.value)


def test_a_text_with_a_lone_surrogate_is_not_confused_with_its_replacement() -> None:
    data = {"kubeconfig": "a\ud800", "jws-kubeconfig-07401b": clusterinfo.sign(b"a?", "07401b", b"f395accd246ae52d")}
    with pytest.raises(SignatureWrongError):
        clusterinfo.verify(data, TOKEN)


def test_the_three_messages_say_why_and_what_to_do() -> None:
    assert str(NotSetUpError("step")) == (
        'step: the cluster-info ConfigMap has no key "kubeconfig": the cluster is not set up for token discovery; '
        "ask its administrator, or join with --discovery-file"
    )
    assert str(SignatureMissingError("step", "07401b", others=True)) == (
        'step: cluster-info carries no signature for token id "07401b": the token is unknown, expired, or lacks the '
        "signing usage; look on the server: `mooring status` says when cluster-info cannot be signed, `mooring token list` "
        "has the tokens; make one with `mooring token create`"
    )
    assert str(SignatureWrongError("step", "07401b")) == (
        'step: the signature of cluster-info for token id "07401b" is wrong: the secret half of the token is not the '
        "server's, or the answer was forged; this server is not trusted: check the token and the address"
    )
