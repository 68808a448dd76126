"""What an operator may say about tokens of service accounts.

Source: docs/protocol/authentication.md#chain, docs/protocol/service-account-tokens.md#keys-and-flags.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.errors import ConfigError

HERE = "https://kubernetes.default.svc.cluster.local"
NEW, OLD = "https://new.example", "https://old.example:6443/path"


def test_nothing_said_is_what_kubeadm_says() -> None:
    assert ServiceAccountSettings.read({}) == ServiceAccountSettings()
    settings = ServiceAccountSettings()
    assert (settings.issuer, settings.service_account_issuer, settings.audiences) == (HERE, (HERE,), (HERE,))
    assert settings.service_account_lookup
    assert settings.service_account_extend_token_expiration
    assert settings.service_account_max_token_expiration == timedelta(days=365)


@pytest.mark.parametrize(
    ("flags", "made"),
    [
        pytest.param(
            {"service_account_issuer": (NEW, OLD)},
            ServiceAccountSettings(service_account_issuer=(NEW, OLD)),
            id="every issuer is an audience, the first signs",
        ),
        pytest.param(
            {"service_account_issuer": (NEW,), "api_audiences": ("api", "mesh")},
            ServiceAccountSettings(service_account_issuer=(NEW,), api_audiences=("api", "mesh")),
            id="audiences that are said take the place of the issuers",
        ),
        pytest.param(
            {"service_account_issuer": ("kubernetes/serviceaccount",)},
            ServiceAccountSettings(service_account_issuer=("kubernetes/serviceaccount",)),
            id="an issuer without a colon may be any text",
        ),
        pytest.param(
            {"service_account_key_file": ("a.pem", "b.pem"), "service_account_signing_key_file": "c.key"},
            ServiceAccountSettings(
                service_account_key_file=("a.pem", "b.pem"), service_account_signing_key_file="c.key"
            ),
            id="several files of keys",
        ),
        pytest.param(
            {"service_account_jwks_uri": "https://keys.example/jwks"},
            ServiceAccountSettings(service_account_jwks_uri="https://keys.example/jwks"),
            id="keys that are fetched elsewhere",
        ),
        pytest.param(
            {"service_account_lookup": False, "service_account_extend_token_expiration": False},
            ServiceAccountSettings(service_account_lookup=False, service_account_extend_token_expiration=False),
            id="what is on by itself can be off",
        ),
        pytest.param(
            {"service_account_max_token_expiration": timedelta(0)},
            ServiceAccountSettings(service_account_max_token_expiration=timedelta(0)),
            id="no longest life",
        ),
        pytest.param(
            {"service_account_max_token_expiration": timedelta(hours=1)},
            ServiceAccountSettings(service_account_max_token_expiration=timedelta(hours=1)),
            id="the shortest longest life",
        ),
        pytest.param(
            {"service_account_max_token_expiration": timedelta(seconds=1 << 32)},
            ServiceAccountSettings(service_account_max_token_expiration=timedelta(seconds=1 << 32)),
            id="the longest longest life",
        ),
    ],
)
def test_flags_become_values(flags: dict[str, Any], made: ServiceAccountSettings) -> None:
    settings = ServiceAccountSettings.read(flags)
    assert settings == made
    assert settings.audiences == (flags.get("api_audiences") or settings.service_account_issuer)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"service_account_issuer": ()}, "service-account-issuer: give an https URL, such as"),
        ({"service_account_issuer": ("",)}, 'service-account-issuer: "" cannot be an issuer; give an https URL'),
        ({"service_account_issuer": (NEW, "a b")}, 'service-account-issuer: "a b" cannot be an issuer'),
        (
            {"service_account_issuer": ("https://u:p@x/a",)},
            "service-account-issuer: every token names its issuer; give a URL without",
        ),
        (
            {"service_account_issuer": ("https://u:12/p@x",)},
            "service-account-issuer: every token names its issuer; give a URL without",
        ),
        (
            {"service_account_issuer": ("127.0.0.1:6443",)},
            'service-account-issuer: "127.0.0.1:6443" cannot be an issuer',
        ),
        ({"service_account_issuer": (NEW, NEW)}, 'service-account-issuer: "https://new.example" is given twice'),
        (
            {"service_account_issuer": [f"https://{n}.example" for n in range(33)]},
            "service-account-issuer: 33 are more than 32",
        ),
        ({"api_audiences": ("a", "a")}, 'api-audiences: "a" is given twice'),
        ({"service_account_key_file": ("",)}, "service-account-key-file: give the name"),
        ({"service_account_key_file": ("a", "a")}, 'service-account-key-file: "a" is given twice'),
        ({"service_account_jwks_uri": "http://keys.example"}, 'service-account-jwks-uri: "http://keys.example" is not'),
        (
            {"service_account_issuer": ("robots",), "service_account_jwks_uri": "https://keys.example"},
            "service-account-jwks-uri: nothing leads to it",
        ),
        (
            {"service_account_max_token_expiration": timedelta(seconds=3599)},
            "service-account-max-token-expiration: give 0 (no limit), or from 1h",
        ),
        (
            {"service_account_max_token_expiration": timedelta(seconds=-3600)},
            "service-account-max-token-expiration: give 0",
        ),
        (
            {"service_account_max_token_expiration": timedelta(seconds=(1 << 32) + 1)},
            "service-account-max-token-expiration: give 0",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceAccountSettings.read(flags)
    assert str(caught.value).startswith(message)
