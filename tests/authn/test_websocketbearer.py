"""A bearer token among WebSocket subprotocols.

Source: docs/protocol/authentication.md#bearer-tokens-over-websocket.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.credentials import BEARER_PREFIX, WebSocketToken, read_subprotocols, without_token
from mooring.authn.reasons import NO_OTHER_SUBPROTOCOL, TOKEN_NOT_BASE64URL, TOKEN_NOT_UTF8, TOKEN_REPEATED
from mooring.secret import Secret


def protocol(token: str | bytes) -> str:
    raw = token.encode() if isinstance(token, str) else token
    return BEARER_PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.mark.parametrize(
    ("names", "token", "refused"),
    [
        pytest.param([], None, "", id="no list offers nothing"),
        pytest.param(["base64.binary.k8s.io"], None, "", id="a list without a token offers nothing"),
        pytest.param([protocol("abc"), "x"], "abc", "", id="a token before another protocol"),
        pytest.param(["x", protocol("abc")], "abc", "", id="a token after another protocol"),
        pytest.param([protocol("a"), "x"], "a", "", id="two letters carry one byte"),
        pytest.param([protocol("ab"), "x"], "ab", "", id="three letters carry two bytes"),
        pytest.param([protocol("schlüssel~?>"), "x"], "schlüssel~?>", "", id="UTF-8, in the letters of URLs"),
        pytest.param([BEARER_PREFIX + "YX", "x"], "a", "", id="bits left over are not looked at, as in Go"),
        pytest.param([BEARER_PREFIX, "x"], None, "", id="an empty token offers nothing"),
        pytest.param([BEARER_PREFIX], None, "", id="an empty token alone offers nothing"),
        pytest.param([protocol("abc").upper(), "x"], None, "", id="the prefix is compared as it is"),
        pytest.param([protocol("abc")], None, NO_OTHER_SUBPROTOCOL, id="a token alone leaves nothing to echo"),
        pytest.param([protocol("abc"), protocol("abc"), "x"], None, TOKEN_REPEATED, id="one token, said twice"),
        pytest.param([protocol("abc"), "x", protocol("def")], None, TOKEN_REPEATED, id="two tokens"),
        pytest.param([BEARER_PREFIX, "x", protocol("def")], None, TOKEN_REPEATED, id="an empty token and another"),
        pytest.param([protocol("abcd") + "==", "x"], None, TOKEN_NOT_BASE64URL, id="padding is refused"),
        pytest.param(
            [BEARER_PREFIX + "YWJj+/", "x"], None, TOKEN_NOT_BASE64URL, id="the letters of plain base64 are refused"
        ),
        pytest.param(
            [BEARER_PREFIX + "YWJjZ", "x"], None, TOKEN_NOT_BASE64URL, id="a letter that carries no byte is refused"
        ),
        pytest.param([BEARER_PREFIX + "YW Jj", "x"], None, TOKEN_NOT_BASE64URL, id="a space inside is refused"),
        pytest.param([BEARER_PREFIX + "YWJjé", "x"], None, TOKEN_NOT_BASE64URL, id="a letter outside ASCII is refused"),
        pytest.param([BEARER_PREFIX + "YWJj\n", "x"], None, TOKEN_NOT_BASE64URL, id="a line end is refused"),
        pytest.param([protocol(b"\xff\xfe"), "x"], None, TOKEN_NOT_UTF8, id="bytes that are no text are refused"),
        pytest.param([protocol(b"\xed\xa0\x80"), "x"], None, TOKEN_NOT_UTF8, id="half a surrogate pair is no text"),
        pytest.param([protocol(b"\xff")], None, TOKEN_NOT_UTF8, id="what is worse is told first"),
    ],
)
def test_the_token_in_the_list(names: list[str], token: str | None, refused: str) -> None:
    assert read_subprotocols(names) == WebSocketToken(None if token is None else Secret(token), refused)


@given(st.text(min_size=1))
def test_every_token_that_is_text_arrives(token: str) -> None:
    raw = token.encode("utf-8", "ignore")
    found = read_subprotocols([protocol(raw), "x"])
    assert found == WebSocketToken(Secret(raw) if raw else None)


@given(st.lists(st.one_of(st.text(), st.text().map(lambda text: BEARER_PREFIX + text))))
def test_no_list_ever_fails_or_offers_both_a_token_and_a_refusal(names: list[str]) -> None:
    found = read_subprotocols(names)
    assert found.token is None or not found.refused


@given(st.lists(st.one_of(st.text(), st.text().map(lambda text: BEARER_PREFIX + text))))
def test_what_is_left_holds_no_token_and_keeps_its_order(names: list[str]) -> None:
    left = without_token(names)
    assert not any(name.startswith(BEARER_PREFIX) for name in left)
    assert list(left) == [name for name in names if not name.startswith(BEARER_PREFIX)]


def test_the_token_does_not_print() -> None:
    assert "abcdef" not in repr(read_subprotocols([protocol("abcdef"), "x"]))
