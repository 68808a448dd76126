"""Whoever serves a request sees nothing that proves who sent it.

Source: docs/protocol/authentication.md#connections.
"""

from __future__ import annotations

import pytest

from mooring.authn.requestheader import HeaderStripper
from mooring.authn.requestheadersettings import HeaderNames

OURS = HeaderNames(username=("x-who",), uid=("x-which",), groups=("x-team", "x-squad"), extra_prefixes=("x-more-",))


@pytest.mark.parametrize(
    ("name", "configured"),
    [
        pytest.param(b"authorization", None, id="Authorization"),
        pytest.param(b"x-remote-user", None, id="the usual header of a proxy for the user, without a proxy"),
        pytest.param(b"x-remote-uid", None, id="the usual one for the uid"),
        pytest.param(b"x-remote-group", None, id="the usual one for groups"),
        pytest.param(b"x-remote-extra-scopes", None, id="the usual one for extra"),
        pytest.param(b"x-remote-user", OURS, id="the usual header beside a proxy that says it in another"),
        pytest.param(b"x-who", OURS, id="the configured header for the user"),
        pytest.param(b"x-which", OURS, id="the configured header for the uid"),
        pytest.param(b"x-squad", OURS, id="each of the configured headers for groups"),
        pytest.param(b"x-more-scopes", OURS, id="the configured prefix for extra"),
    ],
)
def test_what_proves_something_is_gone(name: bytes, configured: HeaderNames | None) -> None:
    headers = [(b"accept", b"a"), (name, b"one"), (name, b"two"), (b"user-agent", b"kubectl")]
    assert HeaderStripper(configured).left(headers) == [(b"accept", b"a"), (b"user-agent", b"kubectl")]


@pytest.mark.parametrize(
    "name", [b"accept", b"x-remote", b"x-remote-userx", b"impersonate-user", b"audit-id", b"x-who", b"x-more-"]
)
def test_everything_else_is_left(name: bytes) -> None:
    assert HeaderStripper().left([(name, b"a")]) == [(name, b"a")]
