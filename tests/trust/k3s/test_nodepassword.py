"""Node passwords of k3s: the scrypt line, made here and elsewhere, and the Secret that holds it."""

from __future__ import annotations

import base64
import hashlib

import pytest

from mooring.apimachinery.schema import Obj
from mooring.secret import Secret
from mooring.trust.k3s.nodepassword import (
    MAX_LINE,
    NodePasswordError,
    hash_in,
    hash_password,
    new_secret,
    node_of,
    parse_line,
    secret_name,
)

SALT = bytes.fromhex("0123456789abcdef")
PASSWORD = Secret(b"a4f1c2e3d4b5a69788796a5b4c3d2e1f")
LINE = (  # k3s's parameters; made by hashlib.scrypt
    "$1:0123456789abcdef:15:8:1:dk3eIKa2TkiMiB8Gpt9dCxvMPoU8EVG37hTrgEZTmBIj3cSDnQPYQqQPnX9fD+6I0BkGfFGt9RYCHQklGdAFxQ"
)
RFC_7914 = (  # section 12, third vector
    "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
    "d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887"
)


def cheap(password: bytes = b"secret", ln: int = 4, size: int = 64) -> str:
    """Return a line with small parameters, made by another implementation of scrypt."""
    key = hashlib.scrypt(password, salt=SALT, n=1 << ln, r=1, p=1, dklen=size)
    return f"$1:{SALT.hex()}:{ln}:1:1:{base64.b64encode(key).decode().rstrip('=')}"


def test_the_vector_of_the_rfc_verifies() -> None:
    key = base64.b64encode(bytes.fromhex(RFC_7914)).decode().rstrip("=")
    hashed = parse_line(f"$1:{b'SodiumChloride'.hex()}:14:8:1:{key}")
    assert hashed.matches(Secret(b"pleaseletmein"))


def test_a_line_with_the_parameters_of_k3s_verifies() -> None:
    hashed = parse_line(LINE)
    assert (hashed.ln, hashed.r, hashed.p, len(hashed.salt), len(hashed.key)) == (15, 8, 1, 8, 64)
    assert hashed.matches(PASSWORD)
    assert not hashed.matches(Secret(PASSWORD.reveal() + b"\0")), "scrypt fills passwords up with zero bytes"


def test_a_line_that_is_made_here_has_the_parameters_of_k3s() -> None:
    assert hash_password(PASSWORD, SALT).line() == LINE


@pytest.mark.parametrize(
    ("line", "password", "right"),
    [
        pytest.param(cheap(), b"secret", True, id="the right password"),
        pytest.param(cheap(), b"Secret", False, id="another one"),
        pytest.param(cheap(), b"", False, id="none"),
        pytest.param(cheap(b"a"), b"a\0", False, id="the right one with a zero byte"),
        pytest.param(cheap(size=32), b"secret", True, id="another length of the key"),
        pytest.param(cheap(ln=10), b"secret", True, id="another cost"),
        pytest.param(cheap().replace("abcdef", "ABCDEF"), b"secret", True, id="a salt in capital letters"),
    ],
)
def test_lines_are_verified_with_their_own_numbers(line: str, password: bytes, right: bool) -> None:
    assert parse_line(line).matches(Secret(password)) is right


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        pytest.param("", "not of the form", id="an empty line"),
        pytest.param(cheap().replace("$1", "$2"), "not of the form", id="another version"),
        pytest.param(cheap() + "\n", "not of the form", id="a newline behind it"),
        pytest.param(cheap() + "=", "not of the form", id="padding"),
        pytest.param(cheap() + "A" * MAX_LINE, "not of the form", id="a long line"),
        pytest.param(cheap().replace(":4:1:1:", ":0:1:1:"), "zero", id="a cost of one"),
        pytest.param(cheap().replace(":4:1:1:", ":4:0:1:"), "zero", id="no blocks"),
        pytest.param(cheap().replace(":4:1:1:", ":17:8:1:"), "too costly", id="128 MiB"),
        pytest.param(cheap().replace(":4:1:1:", ":99:1:1:"), "too costly", id="a cost without end"),
        pytest.param(cheap().replace(":4:1:1:", ":15:8:9:"), "too costly", id="many passes"),
        pytest.param(cheap().replace("0123", "123"), "cannot be decoded", id="half a byte of salt"),
        pytest.param(cheap()[:-1], "cannot be decoded", id="a key that was cut"),
        pytest.param(cheap(size=8), "16 to 64 bytes", id="a short key"),
        pytest.param(cheap(size=65), "16 to 64 bytes", id="a long key"),
        pytest.param(cheap().replace("0123", "00" * 64), "above 64 bytes", id="a long salt"),
    ],
)
def test_other_lines_are_refused_without_being_repeated(line: str, problem: str) -> None:
    with pytest.raises(NodePasswordError, match=problem) as refused:
        parse_line(line)
    assert SALT.hex() not in str(refused.value)


def test_the_secret_is_that_of_k3s() -> None:
    hashed = parse_line(cheap())
    secret = new_secret("Node-1", hashed)
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": "kube-system", "name": "node-1.node-password.k3s"},
        "type": "k3s.cattle.io/node-password",
        "immutable": True,
        "data": {"hash": base64.b64encode(cheap().encode()).decode()},
    }
    assert hash_in(secret) == hashed
    assert hashed.key.hex() not in repr(hashed)
    assert secret_name("Node-1") == "node-1.node-password.k3s"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(None, id="no data"),
        pytest.param({"password": "eA=="}, id="another key"),
        pytest.param({"hash": "%"}, id="no base64"),
        pytest.param({"hash": "/w=="}, id="no text"),
    ],
)
def test_a_secret_without_a_hash_is_refused(data: Obj | None) -> None:
    with pytest.raises(NodePasswordError):
        hash_in({"metadata": {"name": "n1.node-password.k3s"}, **({"data": data} if data else {})})


@pytest.mark.parametrize(
    ("changes", "node"),
    [
        pytest.param({}, "n1", id="the Secret of a node"),
        pytest.param({"type": "Opaque"}, "", id="another type"),
        pytest.param({"metadata": {"namespace": "default", "name": "n1.node-password.k3s"}}, "", id="elsewhere"),
        pytest.param({"metadata": {"namespace": "kube-system", "name": "n1"}}, "", id="another name"),
    ],
)
def test_the_node_of_a_secret_is_in_its_name(changes: Obj, node: str) -> None:
    assert node_of({**new_secret("n1", parse_line(cheap())), **changes}) == node
