"""The table of authenticators: order, names, and the authenticators that settings turn on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring import authn
from mooring.authn.credentials import NOTHING, Authenticator
from mooring.authn.host import Running
from mooring.authn.table import NAMES, PROVIDERS, SUBJECTS, build
from mooring.controlplane.configuration import SUBJECTS as SERVER_SUBJECTS
from tests.support.authnhost import AuthnHost, configured
from tests.support.testca import ThrowawayCA
from tests.support.tokenwebhook import kubeconfig

FOLDER = Path(authn.__file__).parent
ALWAYS_ON = ["client-certificate", "legacy-service-account", "service-account", "bootstrap-token", "join-rule"]


class Guest:
    """A custom authenticator."""

    def __init__(self, options: object) -> None:
        pass

    def authenticate(self, offered: object) -> None:
        pass


def everything(directory: Path) -> dict[str, Any]:
    """Settings that turn on every row."""
    files = {"users.csv": b"secret,jane,1\n", "ca.crt": ThrowawayCA().certificate_pem}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return {
        "requestheader_client_ca_file": str(directory / "ca.crt"),
        "requestheader_username_headers": ("X-Remote-User",),
        "token_auth_file": str(directory / "users.csv"),
        "basic_auth_file": str(directory / "users.csv"),
        "oidc_issuer_url": "https://idp.example",
        "oidc_client_id": "kubernetes",
        "authentication_token_webhook_config_file": str(
            kubeconfig(directory / "hook", {"server": "https://hook.example"}, {})
        ),
        "keystone_url": "https://keystone.example",
        "storage": "memory:",
        "k3s_supervisor": True,
        "server_token": "0123456789abcdef",
        "authenticators": [
            {"name": "guest", "class": f"{__name__}:Guest"},
            {"name": "second", "class": f"{__name__}:Guest"},
        ],
    }


def built(**values: Any) -> list[Authenticator]:
    config = configured(**values)
    return [one for running in build(config, AuthnHost(config).host) for one in running.authenticators]


def test_everything_is_built_in_order_under_its_name(tmp_path: Path) -> None:
    names = [authenticator.name for authenticator in built(**everything(tmp_path))]
    assert names == [name for row in PROVIDERS for name in (("guest", "second") if row.name == "own" else (row.name,))]
    assert names == [
        "request-header",
        "client-certificate",
        "node-recovery",
        "token-file",
        "legacy-service-account",
        "service-account",
        "bootstrap-token",
        "join-rule",
        "user-token",
        "oidc",
        "webhook",
        "k3s-token",
        "password-file",
        "keystone",
        "guest",
        "second",
        "anonymous",
    ]


def test_only_anonymous_is_a_fallback(tmp_path: Path) -> None:
    names = [authenticator.name for authenticator in built(**everything(tmp_path)) if authenticator.judges == NOTHING]
    assert names == ["anonymous"]


def test_settings_turn_rows_on() -> None:
    turned_off = {"anonymous_auth": False, "login_ttl": timedelta(0), "node_recovery": "off"}
    assert [authenticator.name for authenticator in built(**turned_off)] == ALWAYS_ON


def test_bootstrap_tokens_may_be_turned_off() -> None:
    assert "bootstrap-token" in {authenticator.name for authenticator in built()}
    assert "bootstrap-token" not in {authenticator.name for authenticator in built(enable_bootstrap_token_auth=False)}


def test_anonymous_access_is_off_where_every_request_is_allowed() -> None:
    assert "anonymous" in {authenticator.name for authenticator in built()}
    assert "anonymous" not in {authenticator.name for authenticator in built(authorization_mode="AlwaysAllow")}


@pytest.mark.parametrize("row", PROVIDERS, ids=lambda row: row.name)
def test_a_row_names_a_function_of_a_runtime(row: Any) -> None:
    module, _, function = row.runtime.partition(":")
    assert module.startswith("mooring.server.authentication.")
    assert function.startswith("build")
    assert callable(row.load())


def test_flags_follow_from_the_rows() -> None:
    assert set(SUBJECTS) <= set(SERVER_SUBJECTS)


def test_an_authenticator_without_background_work_starts_and_closes() -> None:
    running = Running(authenticators=())
    running.start()
    assert asyncio.run(closed(running)) is None


async def closed(running: Running) -> None:
    await running.close()


def test_names_are_used_once() -> None:
    assert len(NAMES) == len(PROVIDERS)


@pytest.mark.parametrize(
    ("given", "warned"), [({}, False), ({"anonymous_auth": False}, False), ({"anonymous_auth": True}, True)]
)
def test_anonymous_access_that_was_asked_for_is_not_turned_off_without_a_word(
    given: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = built(authorization_mode="AlwaysAllow", **given)
    assert "anonymous" not in {authenticator.name for authenticator in found}
    assert ("anonymous-auth: anonymous access is off" in caplog.text) is warned
