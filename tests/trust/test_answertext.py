"""Text of an answer: one line, within bounds, without control characters and without a secret of this machine."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.answertext import MAX_TEXT, answer_text, has_secret, header_secrets

PASSWORD = Secret("secretpassword")
TEXTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", ""),
    "a page of a proxy": (
        b"<html>\r\n<head><title>502 Bad\nGateway &amp; more</title></head>\r\n<body><h1>502 Bad Gateway</h1>"
        + b"x" * 9000,
        "502 Bad Gateway & more",
    ),
    "a page without a title": (b" <!DOCTYPE html><p>no", ""),
    "a page with an open title": (b"<title>" + b"x" * 100_000, "x" * MAX_TEXT),
    "a page with control characters": (b"<TITLE lang=en>a&#27;[0m b\xc2\x9bc</TITLE>", "a[0m b c"),
    "a page with the password": (b"<title>no</title>secretpassword", ""),
    "XML of an object store": (b"<?xml?><Error><Code>AccessDenied</Code></Error>", ""),
    "plain text of k3s": (b"runtime core not ready\n", "runtime core not ready"),
    "a Status": (b'{"kind": "Status", "message": "the reason"}', "the reason"),
    "a Status without a message": (b'{"kind": "Status"}', ""),
    "a Status whose message is null": (b'{"kind": "Status", "message": null}', ""),
    "null": (b"null", "null"),
    "JSON that is no object": (b'["x"]', '["x"]'),
    "JSON that is nested": (b"[" * 100_000, "[" * MAX_TEXT),
    "several lines": (b"two\r\n  lines", "two lines"),
    "escape sequences of a terminal": (b"a\x1b[2Jb\x07c\xc2\x9bd", "a [2Jb c d"),
    "marks that turn the direction of text": ("a\u202eb\u2066c".encode(), "a b c"),
    "control characters in a Status": (b'{"message": "a\\u001b[0m\\nb"}', "a [0m b"),
    "bytes that are not UTF-8": (b"a\xff", "a\N{REPLACEMENT CHARACTER}"),
    "a long text": (b"x" * 100_000, "x" * MAX_TEXT),
    "the password": (b"not secretpassword", ""),
    "the password behind the bound": (b"x" * 100_000 + b"secretpassword", ""),
    "the password, escaped in a Status": (b'{"message": "\\u0073ecretpassword"}', ""),
    "the header of the request": (b"Authorization: Basic " + base64.b64encode(b"node:secretpassword"), ""),
}


@pytest.mark.parametrize(("body", "text"), TEXTS.values(), ids=TEXTS)
def test_text_of_an_answer(body: bytes, text: str) -> None:
    assert answer_text(body, (PASSWORD,), ("node", "server")) == text


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, []),
        (b"Bearer token", [b"token"]),
        (b"Basic " + base64.b64encode(b"jane:pass:word"), [base64.b64encode(b"jane:pass:word"), b"pass:word"]),
        (b"basic " + base64.b64encode(b"jane:"), [base64.b64encode(b"jane:")]),
        (b"Basic x", [b"x"]),
        (b"odd", []),
    ],
)
def test_secrets_of_a_header(value: bytes | None, found: list[bytes]) -> None:
    assert [one.reveal() for one in header_secrets(Secret(value) if value else None)] == found


@pytest.mark.parametrize(
    ("status", "has"),
    [
        pytest.param({"message": "no"}, False, id="none"),
        pytest.param({"message": "it was secretpassword"}, True, id="message"),
        pytest.param({"message": ["secretpassword"]}, True, id="another type"),
        pytest.param({"reason": "secretpassword"}, True, id="reason"),
        pytest.param({"details": {"causes": [None, {"message": "secretpassword"}]}}, True, id="cause"),
        pytest.param({"details": {"causes": "x"}}, False, id="causes of another type"),
        pytest.param({"details": ["x"]}, False, id="details of another type"),
    ],
)
@pytest.mark.parametrize("is_escaped", [False, True])
def test_a_secret_in_a_status(status: dict[str, Any], has: bool, is_escaped: bool) -> None:
    body = json.dumps(status)
    body = body.replace("secret", "\\u0073ecret") if is_escaped else body
    assert has_secret(json.loads(body), body.encode(), [Secret(b"other"), PASSWORD]) is has


def test_a_word_that_is_a_password_too_is_no_secret_in_a_status() -> None:
    status = {"message": 'User "admin" cannot'}
    assert not has_secret(status, json.dumps(status).encode(), [Secret(b"admin")])


@given(st.binary(max_size=2000) | st.text(max_size=1000).map(lambda text: json.dumps({"message": text}).encode()))
def test_any_answer_gives_one_short_printable_line(body: bytes) -> None:
    text = answer_text(body, (PASSWORD,), ("node",))
    assert len(text) <= MAX_TEXT
    assert text.isprintable()
