"""What flags about authentication mean, and the errors of what contradicts itself.

Source: docs/protocol/authentication.md, docs/protocol/openid-connect.md#flags.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.custom import CustomSettings, parse_entries
from mooring.authn.keystone import KeystoneSettings
from mooring.authn.login import LoginSettings
from mooring.authn.oidc.settings import OidcSettings
from mooring.authn.requestheadersettings import HeaderNames, RequestHeaderSettings
from mooring.authn.table import SUBJECTS
from mooring.authn.webhook import WebhookSettings
from mooring.authn.x509 import ClientCertificateSettings
from mooring.errors import ConfigError
from mooring.settings.declaration import Settings, https_url

OIDC: dict[str, Any] = {"oidc_issuer_url": "https://idp.example.com/realm", "oidc_client_id": "mooring"}
PROXY: dict[str, Any] = {"requestheader_client_ca_file": "/ca", "requestheader_username_headers": ("X-Remote-User",)}


def read(**values: Any) -> dict[type[Settings], Settings]:
    """The settings of every authenticator."""
    return {subject: subject.read(values) for subject in SUBJECTS}


def test_nothing_said_is_the_default_of_every_subject() -> None:
    assert read() == {subject: subject() for subject in SUBJECTS}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        pytest.param(
            {"oidc_client_id": "a"}, "oidc-issuer-url: it is needed with oidc-client-id", id="a client without issuer"
        ),
        pytest.param(
            {"oidc_issuer_url": "https://a"},
            "oidc-client-id: it is needed with oidc-issuer-url",
            id="an issuer without client",
        ),
        pytest.param(
            {"oidc_ca_file": "/ca"}, "oidc-issuer-url: it is needed with oidc-ca-file", id="a CA for no issuer"
        ),
        pytest.param({"oidc_groups_claim": "g"}, "it is needed with oidc-groups-claim", id="groups of no issuer"),
        pytest.param({"oidc_username_claim": "e"}, "it is needed with oidc-username-claim", id="names of no issuer"),
        pytest.param(
            {"oidc_signing_algs": ("ES256",)}, "it is needed with oidc-signing-algs", id="algorithms of no issuer"
        ),
        pytest.param(
            {**OIDC, "oidc_issuer_url": "http://a"}, 'oidc-issuer-url: "http://a" is not an https URL', id="plain http"
        ),
        pytest.param(
            {**OIDC, "oidc_issuer_url": "https://a?x=1"},
            "must have no user, query or fragment",
            id="an issuer with a query",
        ),
        pytest.param(
            {"keystone_url": "https://u:12/word@k"},
            "keystone-url: the URL must have no user, query or fragment; in a path, @ is written as %40",
            id="a password with a slash",
        ),
        pytest.param({**OIDC, "oidc_signing_algs": ("HS256",)}, '"HS256" is not one of RS256', id="a shared secret"),
        pytest.param({**OIDC, "oidc_signing_algs": ()}, "oidc-signing-algs: give at least one", id="no algorithm"),
        pytest.param(
            {**OIDC, "oidc_username_claim": ""}, "oidc-username-claim: give the name", id="no claim for the user"
        ),
        pytest.param({**OIDC, "oidc_required_claim": ("a",)}, '"a" is not claim=value', id="a claim without value"),
        pytest.param({**OIDC, "oidc_required_claim": ("=a",)}, '"=a" is not claim=value', id="a value without claim"),
        pytest.param(
            {**OIDC, "authentication_config": "/f"}, "authentication-config: it cannot be combined", id="flags and file"
        ),
        pytest.param(
            {"authentication_token_webhook_version": "v2"},
            'webhook-version: "v2" is not known',
            id="a version of the future",
        ),
        pytest.param(
            {
                "authentication_token_webhook_config_file": "/f",
                "authentication_token_webhook_cache_ttl": timedelta(hours=2),
            },
            "webhook-cache-ttl: give a duration from 0s to 1h",
            id="hearsay of two hours",
        ),
        pytest.param(
            {"authentication_cache_ttl": timedelta(-1)}, "authentication-cache-ttl: give a duration", id="before now"
        ),
        pytest.param(
            {"login_ttl": timedelta(seconds=5)}, "login-ttl: give a duration from 60s to 24h", id="a login too short"
        ),
        pytest.param(
            {"requestheader_username_headers": ("X-Remote-User",)},
            "requestheader-client-ca-file: it is needed with requestheader-username-headers",
            id="headers without a CA",
        ),
        pytest.param(
            {"requestheader_client_ca_file": "/ca"},
            "requestheader-username-headers: it is needed",
            id="a CA without headers",
        ),
        pytest.param(
            {**PROXY, "requestheader_group_headers": ("X Remote",)},
            '"X Remote" is not the name of a header',
            id="no header",
        ),
        pytest.param(
            {**PROXY, "requestheader_uid_headers": ("Authorization",)}, "carries credentials", id="a header of secrets"
        ),
        pytest.param(
            {"keystone_ca_file": "/ca"}, "keystone-url: it is needed with keystone-ca-file", id="a CA for no Keystone"
        ),
        pytest.param(
            {"keystone_url": "https://k:5000/v2.0/"},
            'keystone-url: "https://k:5000/v2.0/" is of version 2.0, which Keystone has removed; give the URL of version 3',
            id="Keystone's old version",
        ),
        pytest.param(
            {"keystone_url": "https://k", "keystone_user_domain": "a@b"},
            'keystone-user-domain: "a@b" holds an @, behind which users name their domain',
            id="a domain that no user could name",
        ),
        pytest.param({"keystone_url": "https://[::1"}, "is not an https URL", id="half an address"),
        pytest.param({"keystone_url": "ldap://k"}, 'keystone-url: "ldap://k" is not an https URL', id="not a Keystone"),
        pytest.param(
            {"keystone_url": "https://k", "keystone_user_domain": ""},
            "keystone-user-domain: give",
            id="users of no domain",
        ),
    ],
)
def test_what_contradicts_itself_is_told_by_its_flag(flags: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**flags)
    assert told in str(error.value)


def test_flags_become_settings() -> None:
    oidc = OidcSettings.read({**OIDC, "oidc_required_claim": ("hd=example.com", "a=b=c")})
    assert oidc.required_claims == {"hd": "example.com", "a": "b=c"}
    webhook = WebhookSettings.read({"authentication_token_webhook_config_file": "/hook"})
    assert webhook.authentication_token_webhook_version == "v1beta1"
    assert webhook.authentication_token_webhook_cache_ttl == timedelta(minutes=2)
    assert KeystoneSettings.read({"keystone_url": "https://k/v3/"}).keystone_url == "https://k/v3"
    assert not LoginSettings.read({"login_ttl": timedelta(0)}).login_ttl


def test_a_proxy_names_users_in_headers_of_any_case() -> None:
    settings = RequestHeaderSettings.read({**PROXY, "requestheader_uid_headers": ("X-Uid", "x-uid")})
    assert settings.names == HeaderNames(username=("x-remote-user",), uid=("x-uid",))
    assert RequestHeaderSettings().names is None


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        pytest.param(["ldap"], "authenticators[0]: give a mapping", id="a text"),
        pytest.param([{"nmae": "ldap"}], '"nmae" is not known; there are name', id="an unknown key"),
        pytest.param(
            [{"name": "LDAP", "class": "a:B"}], "authenticators[0].name: give a name", id="a name in capitals"
        ),
        pytest.param([{"name": "ldap", "class": "a.B"}], "authenticators[0].class: give module:Class", id="no class"),
        pytest.param(
            [{"name": "ldap", "class": "a:B", "options": []}], "options: give a mapping", id="options in a list"
        ),
        pytest.param(
            [{"name": "ldap", "class": "a:B", "options": {1: 2}}], "options: give a mapping", id="a number as option"
        ),
        pytest.param(
            [{"name": "ldap", "class": "a:B", "deadline": 5}], "deadline: give a duration", id="a bare number"
        ),
        pytest.param(
            [{"name": "ldap", "class": "a:B", "deadline": timedelta(0)}], "deadline: give a duration from", id="no time"
        ),
        pytest.param(
            [{"name": "ldap", "class": "a:B"}] * 2,
            'authenticators[1].name: "ldap" is taken already',
            id="the same name twice",
        ),
        pytest.param([{}] * 17, "17 are more than 16", id="too many"),
    ],
)
def test_authenticators_of_ones_own(listed: list[Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_entries(tuple(listed), "authenticators")
    assert told in str(error.value)


def test_an_authenticator_of_ones_own_keeps_its_options_out_of_sight() -> None:
    entry = {"name": "ldap", "class": "company.ldap:Ldap", "options": {"password": "hunter2"}}
    settings = CustomSettings.read({"authenticators": [entry]})
    (found,) = settings.authenticators
    assert (found.name, found.location, found.options["password"]) == ("ldap", "company.ldap:Ldap", "hunter2")
    assert "hunter2" not in repr(found)
    assert "ldap" not in repr(settings)


@given(st.text())
def test_no_text_is_anything_but_a_url_or_an_error(text: str) -> None:
    with suppress(ConfigError):
        assert https_url(text, "key").startswith("https://")


def test_an_entry_that_is_no_mapping_is_left_to_the_check_of_entries() -> None:
    (authenticators,) = [one for one in CustomSettings.declared() if one.name == "authenticators"]
    assert authenticators.value_type.from_file(["ldap"]) == ("ldap",)


def test_the_file_writes_durations_of_an_entry_as_texts() -> None:
    (authenticators,) = CustomSettings.declared()
    assert authenticators.value_type.from_file([{"name": "a", "deadline": "3s"}]) == (
        {"name": "a", "deadline": timedelta(seconds=3)},
    )
    for value, told in (({}, "give a list of mappings"), ([{"deadline": "soon"}], r"\[0\].deadline: give a duration")):
        with pytest.raises(ValueError, match=told):
            authenticators.value_type.from_file(value)


def test_a_crl_that_is_required_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"^client-crl-strict: it needs client-crl-file$"):
        ClientCertificateSettings.read({"client_crl_strict": True})
    assert ClientCertificateSettings.read({"client_crl_strict": True, "client_crl_file": ("f",)}).client_crl_strict
