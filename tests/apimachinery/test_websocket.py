"""Headers of the WebSocket opening handshake (RFC 6455 section 4).

Source: docs/protocol/authentication.md#bearer-tokens-over-websocket.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.websocket import is_handshake, is_of_another_site, is_valid_origin, subprotocols


@pytest.mark.parametrize(
    ("upgrade", "connection", "wanted"),
    [
        pytest.param("websocket", "Upgrade", True, id="both headers ask for it"),
        pytest.param("WebSocket", "UPGRADE", True, id="without regard to case"),
        pytest.param(
            "websocket", "keep-alive, Upgrade", True, id="upgrade may be one option of several, as Firefox sends it"
        ),
        pytest.param("websocket", "upgrade ,keep-alive", True, id="spaces around an option do not matter"),
        pytest.param("websocket", "\tupgrade", True, id="nor do tabs"),
        pytest.param(
            "websocket", "upgrade\xa0", False, id="a no-break space is part of the option, as for the HTTP parser"
        ),
        pytest.param("", "Upgrade", False, id="no Upgrade header"),
        pytest.param("websocket", "", False, id="no Connection header"),
        pytest.param("websocket", "keep-alive", False, id="a connection that is to be kept"),
        pytest.param("websocket", "no-upgrade", False, id="an option that only contains the word"),
        pytest.param("websocket", "upgrade x", False, id="an option that only begins with the word"),
        pytest.param("h2c", "Upgrade", False, id="another protocol"),
        pytest.param(
            "websocket, h2c", "Upgrade", False, id="a choice of protocols, which kube-apiserver does not take either"
        ),
        pytest.param(" websocket", "Upgrade", False, id="spaces are HTTP's to remove, not ours"),
    ],
)
def test_a_request_for_a_websocket(upgrade: str, connection: str, wanted: bool) -> None:
    assert is_handshake(upgrade, connection) is wanted


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        pytest.param([], (), id="no header names nothing"),
        pytest.param(["a"], ("a",), id="one name"),
        pytest.param(["a, b,c"], ("a", "b", "c"), id="several names in one header"),
        pytest.param(["a", "b"], ("a", "b"), id="several headers are one list (RFC 6455 11.3.4)"),
        pytest.param([" a ,, ,b ", ""], ("a", "b"), id="empty names are none"),
        pytest.param(["a, a"], ("a", "a"), id="a name said twice is there twice"),
        pytest.param(["A.b"], ("A.b",), id="names keep their case"),
    ],
)
def test_the_list_of_subprotocols(headers: list[str], names: tuple[str, ...]) -> None:
    assert subprotocols(headers) == names


@pytest.mark.parametrize(
    ("origin", "fits"),
    [
        pytest.param("https://console.example:8443", True, id="the page of a console"),
        pytest.param("http://localhost", True, id="a page of this machine"),
        pytest.param("moz-extension://8b2c", True, id="an extension of a browser"),
        pytest.param("file:", True, id="a scheme alone is a URI"),
        pytest.param("/dashboard", True, id="an absolute path, which Go's parser takes"),
        pytest.param("", False, id="no origin"),
        pytest.param("null", False, id="a page that hides where it comes from"),
        pytest.param("console.example", False, id="a host alone"),
        pytest.param("1https://x", False, id="a scheme begins with a letter"),
        pytest.param("https://a b", False, id="a space is in no URI"),
        pytest.param("https://a\x7f", False, id="nor is a control character"),
        pytest.param(":", False, id="no scheme"),
    ],
)
def test_an_origin(origin: str, fits: bool) -> None:
    assert is_valid_origin(origin) is fits


@given(st.lists(st.text()))
def test_no_list_holds_an_empty_name_or_a_comma(headers: list[str]) -> None:
    for name in subprotocols(headers):
        assert name == name.strip() != ""
        assert "," not in name


@given(st.text(), st.text())
def test_no_header_text_ever_fails(one: str, other: str) -> None:
    is_handshake(one, other)
    is_handshake("websocket", other)
    is_valid_origin(one)


@pytest.mark.parametrize(
    ("origins", "expected"),
    [([], False), (["https://A:1"], False), (["http://a:1"], True), (["https://a"], True), (["https://a:1"] * 2, True)],
)
def test_a_page_of_another_site(origins: list[str], expected: bool) -> None:
    assert is_of_another_site(origins, "a:1") is expected
