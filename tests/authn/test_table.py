"""The table of authenticators is complete, ordered, and builds what the settings say (law 10)."""

from __future__ import annotations

import importlib
import pkgutil
from datetime import timedelta

import pytest

from mooring import authn
from mooring.authn.authenticator import NOTHING
from mooring.authn.custom.authenticator import ContainedAuthenticator
from mooring.authn.keystone.authenticator import KeystoneAuthenticator
from mooring.authn.oidc.authenticator import OidcAuthenticator
from mooring.authn.passwordfile.authenticator import PasswordFileAuthenticator
from mooring.authn.requestheader.authenticator import HeaderNames
from mooring.authn.table import AUTHENTICATORS, Settings, build
from mooring.authn.tokenfile.authenticator import TokenFileAuthenticator
from mooring.authn.verdictcache import VerdictCache
from mooring.authn.webhook.authenticator import WebhookAuthenticator
from mooring.pki.jwt.keyset import key_set_of
from mooring.pki.keys import generate_key
from mooring.pki.x509.verify import ClientTrust

KEYS = key_set_of([generate_key().public_key()])


async def unasked(offered: object) -> object:
    raise AssertionError("nobody asks")


OWN = ContainedAuthenticator("own", unasked, timedelta(seconds=1), VerdictCache(b"k" * 32, timedelta(0)))
REMEMBERED = VerdictCache(b"k" * 32, timedelta(0))
EVERYTHING = Settings(
    request_header=(ClientTrust([]), HeaderNames(username=("x-remote-user",)), ()),
    client_trust=ClientTrust([]),
    issuers=("https://i",),
    service_account_keys=KEYS,
    bootstrap_tokens=True,
    user_token_keys=KEYS,
    oidc=OidcAuthenticator(),
    webhook=WebhookAuthenticator("v1", (), timedelta(0), b"k" * 32),
    token_file=TokenFileAuthenticator(b"k" * 32),
    password_file=PasswordFileAuthenticator(b"k" * 32, REMEMBERED),
    keystone=KeystoneAuthenticator("Default", REMEMBERED),
    own=(OWN,),
    anonymous=True,
)


def test_everything_is_built_in_order_under_its_name() -> None:
    names = [authenticator.name for authenticator in build(EVERYTHING)]
    assert names == [name for name, _ in AUTHENTICATORS]
    assert names == [
        "request-header",
        "client-certificate",
        "token-file",
        "legacy-service-account",
        "service-account",
        "bootstrap-token",
        "user-token",
        "oidc",
        "webhook",
        "password-file",
        "keystone",
        "own",
        "anonymous",
    ]


def test_several_of_the_operators_own_keep_their_order() -> None:
    second = ContainedAuthenticator("second", unasked, timedelta(seconds=1), VerdictCache(b"k" * 32, timedelta(0)))
    assert build(Settings(anonymous=False, own=(second, OWN))) == (second, OWN)


def test_only_anonymous_is_a_fallback() -> None:
    assert [authenticator.name for authenticator in build(EVERYTHING) if authenticator.judges == NOTHING] == [
        "anonymous"
    ]


def test_every_authenticator_class_of_the_room_is_in_the_table() -> None:
    classes = set()
    for module in pkgutil.walk_packages(authn.__path__, "mooring.authn."):
        found = importlib.import_module(module.name)
        classes |= {
            value
            for value in vars(found).values()
            if isinstance(value, type) and hasattr(value, "authenticate") and not getattr(value, "_is_protocol", False)
        }
    assert {type(authenticator) for authenticator in build(EVERYTHING)} == classes


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(Settings(anonymous=False), id="nothing said"),
        pytest.param(Settings(anonymous=False, issuers=("https://i",)), id="an issuer without keys"),
        pytest.param(Settings(anonymous=False, service_account_keys=KEYS), id="keys without an issuer"),
    ],
)
def test_empty_means_off(settings: Settings) -> None:
    assert build(settings) == ()
