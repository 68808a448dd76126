"""What counts as an offered credential.

Source: docs/protocol/authentication.md.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.credentials import EXTRA_SPACE, Basic, Credentials, PeerMemo, read_credentials
from mooring.secret import Secret


def headers(*values: str) -> dict[str, list[str]]:
    return {"authorization": list(values)}


@pytest.mark.parametrize(
    ("values", "token"),
    [
        pytest.param(["Bearer abc"], "abc", id="a bearer token is read"),
        pytest.param(["bEaReR abc"], "abc", id="the scheme is compared without regard to case"),
        pytest.param(["  Bearer abc  "], "abc", id="the header is trimmed"),
        pytest.param(["Bearer abc def ghi"], "abc", id="what follows a second space is ignored"),
        pytest.param(["Bearer abc", "Bearer def"], "abc", id="only the first header counts"),
        pytest.param([], None, id="no header offers nothing"),
        pytest.param([""], None, id="an empty header offers nothing"),
        pytest.param(["Bearer"], None, id="a scheme without a token offers nothing"),
        pytest.param(["Bearer "], None, id="a scheme and a space offer nothing"),
        pytest.param(["Basic YWRtaW46cGFzcw=="], None, id="basic credentials are ignored"),
        pytest.param(["Bearer\tabc"], None, id="a tab separates nothing"),
        pytest.param(["Basic x", "Bearer abc"], None, id="a second header is no second guess"),
    ],
)
def test_the_authorization_header(values: list[str], token: str | None) -> None:
    found = read_credentials(lambda name: headers(*values).get(name, []))
    assert found.bearer == (None if token is None else Secret(token))
    assert found.warnings == ()


def test_two_spaces_before_the_token_are_ignored_with_a_warning() -> None:
    found = read_credentials(lambda name: ["Bearer  abc"])
    assert (found.bearer, found.warnings) == (None, (EXTRA_SPACE,))


def test_the_peer_chain_and_the_memo_of_the_connection_are_kept() -> None:
    memo = PeerMemo()
    for values in ([], ["Basic x"], ["Bearer  x"], ["Bearer x"]):
        found = read_credentials(lambda name, values=values: values, (b"leaf",), memo)  # type: ignore[misc]  # lambda default
        assert found.peer == (b"leaf",)
        assert found.memo is memo


@given(st.text())
def test_no_header_text_ever_fails_or_yields_an_empty_or_spaced_token(text: str) -> None:
    found = read_credentials(lambda name: [text])
    if found.bearer is not None:
        token = found.bearer.reveal().decode("utf-8", "surrogatepass")
        assert token
        assert " " not in token


basic_headers = (
    st.text()
    | st.binary().map(lambda raw: "Basic " + base64.b64encode(raw).decode())
    | st.text(st.characters(max_codepoint=0xFF)).map("Basic {}".format)
)


@given(basic_headers)
def test_no_header_text_ever_fails_or_yields_half_a_password(text: str) -> None:
    found = read_credentials(lambda name: [text], schemes=("basic",))
    if found.basic is not None:
        assert found.bearer is None
        assert ":" not in found.basic.user
        found.basic.user.encode()
        found.basic.password.reveal().decode()


@given(
    st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"])),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_every_user_with_a_password_can_be_said(user: str, password: str) -> None:
    header = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    found = read_credentials(lambda name: [header], schemes=("basic",))
    assert found.basic == Basic(user, Secret(password))


def test_the_token_does_not_print() -> None:
    assert "abcdef" not in repr(read_credentials(lambda name: ["Bearer abcdef"]))


@pytest.mark.parametrize(
    ("value", "offered"),
    [
        pytest.param("Basic YWxpY2U6cGE6c3M=", ("alice", "pa:ss"), id="the first colon ends the user"),
        pytest.param("bAsIc YWxpY2U6", ("alice", ""), id="an empty password is a password"),
        pytest.param("Basic w7xzZXI6cMOkc3M=", ("üser", "päss"), id="both are UTF-8"),
        pytest.param("Basic YWxpY2U=", ("", ""), id="without a colon nobody is named"),
        pytest.param("Basic !!!!", ("", ""), id="no base64 names nobody"),
        pytest.param("Basic /////w==", ("", ""), id="no UTF-8 names nobody"),
        pytest.param("Basic", ("", ""), id="nothing after the scheme names nobody"),
        pytest.param("Basic YWxpY2U6cGFzcw== x", ("", ""), id="more than one word names nobody"),
        pytest.param("Basic  YWxpY2U6cGFzcw==", ("", ""), id="two spaces name nobody"),
    ],
)
def test_basic_is_read_where_passwords_are_judged(value: str, offered: tuple[str, str]) -> None:
    found = read_credentials(lambda name: [value], schemes=("basic",))
    assert found.bearer is None
    assert found.basic is not None
    assert (found.basic.user, found.basic.password.reveal().decode()) == offered
    assert read_credentials(lambda name: [value]).basic is None


def test_a_bearer_is_a_bearer_where_passwords_are_judged_too() -> None:
    found = read_credentials(lambda name: ["Bearer abc"], schemes=("basic",))
    assert (found.bearer, found.basic) == (Secret("abc"), None)


def test_headers_and_path_are_at_hand_for_those_who_judge_them() -> None:
    found = read_credentials(lambda name: ["alice"] if name == "x-remote-user" else [], path="/livez")
    assert (found.headers("x-remote-user"), found.path) == (["alice"], "/livez")
    assert Credentials().headers("x-remote-user") == ()


@pytest.mark.parametrize(
    ("header", "schemes", "read"),
    [
        pytest.param("Negotiate YII=", ("negotiate",), ("negotiate", b"YII="), id="a ticket"),
        pytest.param(" nEGOTIATE YII= ", ("negotiate",), ("negotiate", b"YII="), id="in any case, between blanks"),
        pytest.param("Negotiate  YII=", ("negotiate",), ("negotiate", b"YII="), id="behind two blanks"),
        pytest.param("Negotiate", ("negotiate",), ("negotiate", b""), id="nothing behind it"),
        pytest.param('Digest a="b", c="d e"  f', ("digest",), ("digest", b'a="b", c="d e"  f'), id="parameters"),
        pytest.param("Negotiate YII=", ("basic",), None, id="a scheme that nobody judges"),
        pytest.param("Negotiate YII=", (), None, id="no scheme beside Bearer"),
    ],
)
def test_credentials_of_other_schemes(header: str, schemes: tuple[str, ...], read: tuple[str, bytes] | None) -> None:
    found = read_credentials(lambda name: [header] if name == "authorization" else [], schemes=schemes)
    assert (found.bearer, found.basic, found.warnings) == (None, None, ())
    assert (found.other and (found.other.scheme, found.other.value.reveal())) == read
    assert "YII=" not in repr(found)


def test_a_token_among_the_subprotocols_is_judged_behind_a_credential_of_another_scheme() -> None:
    headers = {
        "authorization": ["Negotiate YII="],
        "upgrade": ["websocket"],
        "connection": ["Upgrade"],
        "sec-websocket-protocol": ["base64url.bearer.authorization.k8s.io.dG9rZW4, v4.channel.k8s.io"],
    }
    found = read_credentials(lambda name: headers.get(name, []), schemes=("negotiate",))
    assert (found.bearer, found.second) == (None, Secret("token"))
