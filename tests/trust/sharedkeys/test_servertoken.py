"""Server tokens: which texts are one, and which are refused, with what reason."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.trust.sharedkeys.servertoken import (
    ANY_LENGTH,
    MAX_SECRET,
    MIN_SECRET,
    generate_token,
    is_short,
    parse_token,
)

SECRET = "0123456789abcdef0123456789abcdef"
HASH = "a" * 64

ACCEPTED = {
    "the secret alone": SECRET,
    "the secret with a line end": f"{SECRET}\n",
    "the whole form of k3s": f"K10{HASH}::server:{SECRET}",
    "the form without a hash": f"K10::server:{SECRET}",
    "the form without a hash and a user": f"K10:::{SECRET}",
    "the form with the password of no user": f"K10{HASH}:::{SECRET}",
    "the form without the separator": f"K10server:{SECRET}",
}
REFUSED = {
    "an empty file": ("", "token must not be empty: a server token is one line of 16 to 512"),
    "a short secret": ("short", "a server token is one line of 16 to 512"),
    "a secret that is too long": ("x" * (MAX_SECRET + 1), "a server token is one line of 16 to 512"),
    "two lines": (f"{SECRET}\n{SECRET}", "^a token is one line: remove the line break, and what is not the token$"),
    "a quoted token": (
        f'"K10{HASH}::server:{SECRET}"',
        "^a whole token begins with K10: remove a quotation mark before it$",
    ),
    "bytes that are no text": (b"\xff" * 20, "a server token is one line of 16 to 512"),
    "a bootstrap token": ("abcdef.0123456789abcdef", "this is a bootstrap token"),
    "a bootstrap token in the form of k3s": (f"K10{HASH}::abcdef.0123456789abcdef", "this is a bootstrap token"),
    "a bootstrap token in the form without a hash": ("K10::abcdef.0123456789abcdef", "this is a bootstrap token"),
    "the token of an agent": (f"K10{HASH}::node:{SECRET}", "this is the token of an agent"),
    "the token of another user": (f"K10{HASH}::jane:{SECRET}", "must end with ::server:<password>"),
    "a form without a user": (
        f"K10{HASH}::{SECRET}",
        "invalid token format: .*; a server token that begins with K10 is read",
    ),
    "a password that begins like the whole form": (
        f"K10-{SECRET}",
        "invalid token format: .*; a server token that begins",
    ),
    "a hash that is too short": (
        f"K10abc::server:{SECRET}",
        "invalid token CA hash length: .* 64 digits of the hash or none",
    ),
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(text: str) -> None:
    assert parse_token(text.encode()).reveal() == SECRET.encode()


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str | bytes, reason: str) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ConfigError, match=reason) as raised:
        parse_token(data)
    assert SECRET not in str(raised.value)


def test_a_password_may_hold_what_separates_the_form() -> None:
    assert parse_token(b"one:two::three:four:five").reveal() == b"one:two::three:four:five"
    assert parse_token(b"K10::server:one:two::three:four").reveal() == b"one:two::three:four"


def test_generated_tokens_are_accepted() -> None:
    token = generate_token(lambda size: bytes(range(size)))
    assert token.reveal() == b"000102030405060708090a0b0c0d0e0f"
    assert parse_token(token.reveal()) == token


@pytest.mark.parametrize(("text", "short"), [("a" * (MIN_SECRET - 1), True), ("a" * MIN_SECRET, False)])
def test_a_short_token_is_accepted_where_the_caller_says_so(text: str, short: bool) -> None:
    token = parse_token(text.encode(), ANY_LENGTH)
    assert token.reveal() == text.encode()
    assert is_short(token) is short
    if short:
        with pytest.raises(ConfigError, match="--allow-short-server-token accepts a shorter one"):
            parse_token(text.encode())
