"""Agent token: what a flag or a file may hold."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.trust.k3s.acceptedtokens import MAX_PASSWORD, parse_agent_token

PASSWORD = "0123456789abcdef"
HASH = "0" * 64


@pytest.mark.parametrize(
    "text", [PASSWORD, f" {PASSWORD}\n", f"K10{HASH}::node:{PASSWORD}", f"K10::node:{PASSWORD}", f"K10:::{PASSWORD}"]
)
def test_the_password_alone_counts(text: str) -> None:
    assert parse_agent_token(text.encode(), "here").reveal() == PASSWORD.encode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "token must not be empty"),
        ("K10secret-secret-secret", "invalid token format"),
        ("K10beef::node:secret-secret-secret", "invalid token CA hash length"),
        ("abcdef.0123456789abcdef", "this is a bootstrap token"),
        (f"K10{HASH}::abcdef.0123456789abcdef", "this is a bootstrap token"),
        (f"K10{HASH}::server:{PASSWORD}", "must end with ::node:<password>"),
        ("too-short-secret"[:15], "16 to 512 printable"),
        ("x" * (MAX_PASSWORD + 1), "16 to 512 printable"),
        ("secret secret secret", "16 to 512 printable"),
        ("sécrétsécrétsécrét", "16 to 512 printable"),
    ],
)
def test_anything_else_is_refused_and_not_repeated(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_agent_token(text.encode(), "agent-token")
    assert str(refused.value).startswith("agent-token: ")
    assert problem in str(refused.value)
    assert not any(part in str(refused.value) for part in (PASSWORD, "secret-secret", "too-short", "secret secret"))
