"""Settings of the shared keys, and their checks."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.trust.sharedkeys.servertoken import SharedKeysSettings

TOKEN = "0123456789abcdef"
REFUSED = {
    "two tokens": ({"server_token_file": "/t", "server_token": TOKEN}, "server-token-file: give the file or"),
    "another place": ({"shared_keys": "memory"}, "shared-keys: give store or files"),
    "a server without TLS": ({"server": "http://a:6443"}, "server: the scheme must be https"),
    "a text that is no token": ({"server_token": "short"}, "server-token: a server token is one line"),
}


@pytest.mark.parametrize(("values", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}"):
        SharedKeysSettings.read(values)


def test_a_short_token_of_k3s_is_accepted_where_the_operator_says_so() -> None:
    settings = SharedKeysSettings.read({"server_token": "short", "allow_short_server_token": True})
    assert settings.server_token is not None
    assert settings.server_token.reveal() == b"short"
    with pytest.raises(ConfigError, match="--allow-short-server-token accepts a shorter one"):
        SharedKeysSettings.read({"server_token": "short"})
    with pytest.raises(ConfigError, match="without spaces"):
        SharedKeysSettings.read({"server_token": "two words", "allow_short_server_token": True})


def test_the_token_is_not_printed() -> None:
    settings = SharedKeysSettings.read({"server_token": TOKEN})
    assert settings.server_token is not None
    assert settings.server_token.reveal() == TOKEN.encode()
    assert TOKEN not in repr(settings)


def test_the_url_of_a_server_has_no_slash_at_its_end() -> None:
    assert SharedKeysSettings.read({"server": "https://10.0.0.11:6443/"}).server == "https://10.0.0.11:6443"
