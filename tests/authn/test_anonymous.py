"""Who sent a request that offered nothing.

Source: docs/protocol/openid-connect.md#anonymous-access, docs/protocol/authentication.md#anonymous-requests.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.authn.anonymous import Anonymous, AnonymousAccess
from mooring.authn.chain import authenticate
from mooring.authn.credentials import Credentials
from mooring.identity import ANONYMOUS_USER
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOME = AnonymousAccess(True, frozenset({"/livez", "/readyz"}))


@pytest.mark.parametrize(
    ("access", "path", "let_in"),
    [
        pytest.param(AnonymousAccess(True), "/api/v1/pods", True, id="no paths are named: everywhere"),
        pytest.param(SOME, "/livez", True, id="a path that is named"),
        pytest.param(SOME, "/readyz", True, id="another"),
        pytest.param(SOME, "/livez/", False, id="a slash more is another path"),
        pytest.param(SOME, "/livez/ping", False, id="what is below is another path"),
        pytest.param(SOME, "/LIVEZ", False, id="case matters"),
        pytest.param(SOME, "", False, id="no path: a token that is reviewed"),
        pytest.param(SOME, "/api/v1/pods", False, id="a path that is not named"),
    ],
)
def test_who_offers_nothing(access: AnonymousAccess, path: str, let_in: bool) -> None:
    outcome = authenticate(Credentials(path=path), [Anonymous(access)], {}, NOW, ())
    assert outcome.user == (ANONYMOUS_USER if let_in else None)


def test_a_bad_credential_is_never_anonymous() -> None:
    credentials = Credentials(path="/livez", bearer=Secret("nobody's"))
    assert authenticate(credentials, [Anonymous(SOME)], {}, NOW, ()).user is None
