"""Who sent a request that offered nothing.

Source: docs/protocol/openid-connect.md#anonymous-access, docs/protocol/authentication.md#anonymous-requests.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.authn.anonymous import Anonymous, AnonymousAccess, AnonymousSettings
from mooring.authn.chain import authenticate
from mooring.authn.credentials import Credentials
from mooring.errors import ConfigError
from mooring.identity import ANONYMOUS_USER
from mooring.secret import Secret
from mooring.settings.addresses import parse_networks

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


LOCAL = parse_networks(("10.1.0.0/16", "fd00:1::/64"), "key")


@pytest.mark.parametrize(
    ("source", "path", "reason"),
    [
        pytest.param("10.1.2.3", "/livez", "", id="an address in the first network"),
        pytest.param("::ffff:10.1.2.3", "/livez", "", id="the same, as an IPv6 socket shows it"),
        pytest.param("fd00:1::7", "/livez", "", id="an address in the second"),
        pytest.param("10.2.0.1", "/livez", "network-not-anonymous", id="another network"),
        pytest.param("", "/livez", "network-not-anonymous", id="an unknown address"),
        pytest.param("10.1.2.3", "/api", "path-not-anonymous", id="the network, but another path"),
        pytest.param("10.2.0.1", "/api", "path-not-anonymous", id="neither"),
    ],
)
def test_a_request_is_anonymous_by_path_and_network(source: str, path: str, reason: str) -> None:
    access = AnonymousAccess(True, frozenset({"/livez"}), LOCAL)
    outcome = authenticate(Credentials(path=path, source=source), [Anonymous(access)], {}, NOW, ())
    assert outcome.user == (None if reason else ANONYMOUS_USER)
    assert outcome.rejected_reason == reason


@pytest.mark.parametrize(
    ("networks", "anonymous_auth", "message"),
    [
        (("10.1.0.1/16",), None, "anonymous-allow-cidr: one of the networks is not a network.*; 10.1.0.0/16 is meant"),
        (("::ffff:10.1.0.0/112",), None, "anonymous-allow-cidr: write an IPv4 network as IPv4"),
        (("10.1.0.0/16",) * 65, None, "anonymous-allow-cidr: more than 64 networks"),
        (
            ("10.1.0.0/16",),
            False,
            "anonymous-allow-cidr: no network has anonymous requests while anonymous-auth is false",
        ),
    ],
)
def test_networks_that_cannot_be_meant(networks: tuple[str, ...], anonymous_auth: bool | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AnonymousSettings(
            anonymous_auth=anonymous_auth, anonymous_allow_cidr=parse_networks(networks, "anonymous-allow-cidr")
        )


@pytest.mark.parametrize("given", [[], "", ","], ids=str)
def test_an_empty_list_of_networks_is_an_error_and_no_list_is_every_network(given: object) -> None:
    with pytest.raises(ConfigError, match="anonymous-allow-cidr: it names no network; leave it out for every network"):
        AnonymousSettings.read({"anonymous_allow_cidr": given})
    assert AnonymousSettings.read({}).anonymous_allow_cidr == ()
