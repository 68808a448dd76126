"""Flags about tokens of service accounts become options; each is a value, an environment variable, and a default."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.cli.options.declared import settings_options
from mooring.errors import ConfigError


def read(*arguments: str, **environment: str) -> ServiceAccountSettings:
    found: list[ServiceAccountSettings] = []

    def command(**flags: Any) -> None:
        found.append(ServiceAccountSettings.read(flags))

    decorated = click.command("server")(settings_options(ServiceAccountSettings.declared())(command))
    outcome = CliRunner().invoke(decorated, list(arguments), env=environment)
    if outcome.exception:
        raise outcome.exception
    return found[0]


def test_nothing_said() -> None:
    assert read() == ServiceAccountSettings()


def test_every_flag() -> None:
    assert read(
        "--service-account-issuer", "https://a.example/x,y", "--service-account-issuer", "b",
        "--api-audiences", "one, two", "--api-audiences", "three",
        "--service-account-key-file", "/k,1.pem", "--service-account-key-file", "/k2.pem",
        "--service-account-signing-key-file", "/s.key",
        "--service-account-jwks-uri", "https://keys.example/jwks",
        "--service-account-lookup=false", "--service-account-extend-token-expiration=false",
        "--service-account-max-token-expiration", "48h",
    ) == ServiceAccountSettings(
        service_account_issuer=("https://a.example/x,y", "b"),
        api_audiences=("one", "two", "three"),
        service_account_key_file=("/k,1.pem", "/k2.pem"),
        service_account_signing_key_file="/s.key",
        service_account_jwks_uri="https://keys.example/jwks",
        service_account_lookup=False,
        service_account_extend_token_expiration=False,
        service_account_max_token_expiration=timedelta(hours=48),
    )  # fmt: skip


@pytest.mark.parametrize("said", [("--service-account-lookup",), ("--service-account-lookup", "true")], ids=" ".join)
def test_a_switch_may_stand_alone(said: tuple[str, ...]) -> None:
    assert read(*said).service_account_lookup is True


def test_the_environment_counts_and_the_command_line_wins() -> None:
    said = {"MOORING_SERVICE_ACCOUNT_LOOKUP": "false", "MOORING_SERVICE_ACCOUNT_ISSUER": "a b"}
    assert read(**said).service_account_lookup is False
    assert read(**said).service_account_issuer == ("a", "b")
    assert read("--service-account-lookup=true", "--service-account-issuer", "c", **said).service_account_issuer == (
        "c",
    )


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="service-account-jwks-uri: nothing leads to it"):
        read("--service-account-issuer", "a", "--service-account-jwks-uri", "https://keys.example")
