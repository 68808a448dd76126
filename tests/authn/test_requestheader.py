"""An authenticating proxy.

Source: docs/protocol/authentication.md#authenticating-proxy.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.chain import authenticate
from mooring.authn.credentials import Credentials
from mooring.authn.requestheader import RequestHeaderAuthenticator
from mooring.authn.requestheadersettings import HeaderNames
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.authn.x509 import ClientCertificateAuthenticator
from mooring.identity import UserInfo
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.verify import ClientTrust
from tests.support.emptyviews import EMPTY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROXY_CA = self_signed_ca(generate_key(), "front-proxy", NOW, 1)
CLIENT_CA = self_signed_ca(generate_key(), "kubernetes", NOW, 2)
KEY = generate_key()
NAMES = HeaderNames(
    username=("x-remote-user", "x-user"),
    uid=("x-remote-uid",),
    groups=("x-remote-group", "x-group"),
    extra_prefixes=("x-remote-extra-",),
)


def leaf(name: str = "proxy", authority: Authority = PROXY_CA) -> bytes:
    template = profiles.client(KEY.public_key(), NOW, name, (), timedelta(days=1))
    return authority.sign(template, NOW, 3).der


PROXY = leaf()


def offered(*headers: tuple[str, str], peer: bytes | None = PROXY) -> Credentials:
    return Credentials(
        () if peer is None else (peer,),
        headers=lambda name: [value for key, value in headers if key == name],
        header_names=lambda: [name for name, _ in headers],
    )


def judged(credentials: Credentials, allowed: tuple[str, ...] = (), now: datetime = NOW) -> Verdict:
    authenticator = RequestHeaderAuthenticator(ClientTrust([PROXY_CA.certificate]), NAMES, allowed)
    return authenticator.authenticate(credentials, EMPTY, now, ())


USER = ("x-remote-user", "jane")


@pytest.mark.parametrize(
    ("headers", "user"),
    [
        pytest.param((USER,), UserInfo("jane"), id="a user"),
        pytest.param((("x-user", "joe"),), UserInfo("joe"), id="a later header when the first is missing"),
        pytest.param((("x-remote-user", ""), ("x-user", "joe")), UserInfo("joe"), id="or empty"),
        pytest.param((USER, ("x-user", "joe")), UserInfo("jane"), id="the first that is not empty counts"),
        pytest.param((USER, ("x-remote-user", "joe")), UserInfo("jane"), id="and its first value"),
        pytest.param(
            (("x-remote-user", ""), USER, ("x-user", "joe")),
            UserInfo("joe"),
            id="a first value that is empty hides others",
        ),
        pytest.param((USER, ("x-remote-uid", "42")), UserInfo("jane", "42"), id="a uid"),
        pytest.param(
            (USER, ("x-remote-uid", ""), ("x-remote-uid", "42")), UserInfo("jane"), id="a first uid that is empty"
        ),
        pytest.param(
            (USER, ("x-remote-group", ""), ("x-remote-group", "a")), UserInfo("jane", groups=("a",)), id="a first group"
        ),
        pytest.param(
            (USER, ("x-group", "c"), ("x-remote-group", "a"), ("x-remote-group", "b"), ("x-remote-group", "a")),
            UserInfo("jane", groups=("a", "b", "a", "c")),
            id="all values of all group headers",
        ),
        pytest.param((USER, ("x-remote-group", "")), UserInfo("jane"), id="an empty group is none"),
        pytest.param(
            (USER, ("x-remote-group", "a,b")), UserInfo("jane", groups=("a,b",)), id="commas separate nothing"
        ),
        pytest.param(
            (USER, ("x-remote-extra-scopes", "a"), ("x-remote-extra-scopes", "b"), ("x-remote-extra-acme%2fid", "1")),
            UserInfo("jane", extra={"scopes": ("a", "b"), "acme/id": ("1",)}),
            id="extra by key, percent-decoded, all values",
        ),
        pytest.param(
            (USER, ("x-remote-extra-a%f", "1"), ("x-remote-extra-b%zz", "2")),
            UserInfo("jane", extra={"a%f": ("1",), "b%zz": ("2",)}),
            id="a key that does not decode stays as it is",
        ),
        pytest.param((USER, ("x-remote-extra-", "1")), UserInfo("jane"), id="a key that is empty is none"),
    ],
)
def test_what_the_headers_say(headers: tuple[tuple[str, str], ...], user: UserInfo) -> None:
    assert judged(offered(*headers)) == Accepted(user)


@pytest.mark.parametrize(
    ("credentials", "allowed", "verdict"),
    [
        pytest.param(offered(USER, peer=None), (), NotMine(), id="headers without a certificate name nobody"),
        pytest.param(offered(), (), NotMine("no-user-header"), id="a proxy that names nobody"),
        pytest.param(
            offered(USER),
            ("front",),
            Rejected("proxy-name-not-allowed", 'the certificate names "proxy"'),
            id="another name",
        ),
        pytest.param(offered(USER), ("front", "proxy"), Accepted(UserInfo("jane")), id="an allowed name"),
    ],
)
def test_who_may_speak(credentials: Credentials, allowed: tuple[str, ...], verdict: Verdict) -> None:
    assert judged(credentials, allowed) == verdict


def test_a_certificate_of_another_ca_may_not_speak_and_is_judged_as_an_ordinary_one() -> None:
    jane = leaf("alice", CLIENT_CA)
    refused = judged(offered(("x-remote-user", "root"), peer=jane))
    assert isinstance(refused, Rejected)
    assert refused.reason == "unknown-ca"
    chain = (
        RequestHeaderAuthenticator(ClientTrust([PROXY_CA.certificate]), NAMES),
        ClientCertificateAuthenticator(ClientTrust([CLIENT_CA.certificate])),
    )
    outcome = authenticate(offered(("x-remote-user", "root"), peer=jane), chain, EMPTY, NOW, ())
    assert outcome.user is not None
    assert outcome.user.username == "alice"
    assert authenticate(offered(USER), chain, EMPTY, NOW, ()).user == UserInfo("jane", groups=("system:authenticated",))


def test_a_proxy_that_expired_may_not_speak_although_its_connection_is_open() -> None:
    authenticator = RequestHeaderAuthenticator(ClientTrust([PROXY_CA.certificate]), NAMES)
    credentials = offered(USER)
    assert isinstance(authenticator.authenticate(credentials, EMPTY, NOW, ()), Accepted)
    late = authenticator.authenticate(credentials, EMPTY, NOW + timedelta(days=2), ())
    assert isinstance(late, Rejected)
    assert late.reason == "expired"


def test_another_bundle_is_in_force_on_open_connections() -> None:
    authenticator = RequestHeaderAuthenticator(ClientTrust([PROXY_CA.certificate]), NAMES)
    credentials = offered(USER)
    assert isinstance(authenticator.authenticate(credentials, EMPTY, NOW, ()), Accepted)
    authenticator.replace(ClientTrust([CLIENT_CA.certificate]))
    assert isinstance(authenticator.authenticate(credentials, EMPTY, NOW, ()), Rejected)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["x-remote-user", "x-remote-group", "x-remote-extra-%", "x-remote-extra-a"]), st.text()
        )
    )
)
def test_no_header_ever_fails(headers: list[tuple[str, str]]) -> None:
    assert isinstance(judged(offered(*headers)), Accepted | NotMine)


# Go keeps the bytes of a header and compares them: M\xfcller and M\xf6ller are two users at kube-apiserver.
@pytest.mark.parametrize(
    ("headers", "unreadable"),
    [
        pytest.param((("x-remote-user", "M\udcfcller"),), "the user name", id="a user in Latin-1"),
        pytest.param((("x-remote-user", ""), ("x-user", "\udcf6")), "the user name", id="the second user header"),
        pytest.param((USER, ("x-group", "\udcf6")), "a group", id="a group"),
        pytest.param((USER, ("x-remote-uid", "\udcf6")), "the uid", id="a uid"),
        pytest.param((USER, ("x-remote-extra-a", "\udcf6")), "an extra attribute", id="an extra"),
        pytest.param((USER, ("x-remote-extra-a%ff", "1")), "an extra attribute", id="a key of an extra"),
    ],
)
def test_a_proxy_whose_names_are_not_utf8_is_rejected_and_is_not_a_user_itself(
    headers: tuple[tuple[str, str], ...], unreadable: str
) -> None:
    detail = f"{unreadable} in the headers of the proxy is not UTF-8"
    assert judged(offered(*headers)) == Rejected("name-not-utf8", detail, ends_chain=True)
    chain = (
        RequestHeaderAuthenticator(ClientTrust([PROXY_CA.certificate]), NAMES),
        ClientCertificateAuthenticator(ClientTrust([PROXY_CA.certificate])),
    )
    outcome = authenticate(offered(*headers), chain, EMPTY, NOW, ())
    assert (outcome.user, outcome.rejected_reason) == (None, "name-not-utf8")
    assert [step.authenticator for step in outcome.steps] == ["request-header"]


def test_a_second_user_that_is_not_read_may_be_anything() -> None:
    assert judged(offered(USER, ("x-remote-user", "\udcf6"), ("x-user", "\udcf6"))) == Accepted(UserInfo("jane"))
