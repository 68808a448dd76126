"""Secrets on a command line: what other users of the machine see of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mooring.cli.main import SECRET_OPTIONS, program, without_secrets
from mooring.controlplane.configuration import SUBJECTS
from mooring.trust.k3s.agentfile import k3s_keys, refused_flag
from tests.support.ports import free_port

HIDDEN = "(redacted)"
TOKEN = "abcdef.0123456789abcdeg"
OF_K3S = frozenset(f"--{key}" for key in k3s_keys().secret - k3s_keys().server if refused_flag(f"--{key}"))
"""Flags of k3s agent that the agent refuses, and that others could read until it has ended."""
WORDS = ("token", "password", "secret", "credential", "certificate_key", "notify_url")
"""Parts of names of options that may take a secret."""
NO_SECRETS = {
    "--allow-short-server-token": "yes or no",
    "--authentication-token-webhook-cache-ttl": "a duration",
    "--authentication-token-webhook-version": "a version",
    "--discovery-token-ca-cert-hash": "a public hash",
    "--enable-bootstrap-token-auth": "yes or no",
    "--format": "the name of a form",
    "--k3s-node-password-fail-open": "yes or no",
    "--service-account-extend-token-expiration": "yes or no",
    "--service-account-max-token-expiration": "a duration",
    "--token-ttl": "a duration",
}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param(["server", "--bind-address", "::1"], ["server", "--bind-address", "::1"], id="no secret"),
        pytest.param(
            ["server", "--server-token", "a b", "-v"], ["server", "--server-token", HIDDEN, "-v"], id="two words"
        ),
        pytest.param(
            ["server", "--server-token=ab", "-v"], ["server", f"--server-token={HIDDEN}", "-v"], id="one word"
        ),
        pytest.param(["server", "-t", "ab", "-v"], ["server", "-t", HIDDEN, "-v"], id="a short option"),
        pytest.param(["server", "-tab", "-v"], ["server", f"-t{HIDDEN}", "-v"], id="a short option in one word"),
        pytest.param(["agent", "-vt", "ab", "-v"], ["agent", "-vt", HIDDEN, "-v"], id="behind a switch"),
        pytest.param(["agent", "-vvtab", "x"], ["agent", f"-vvt{HIDDEN}", "x"], id="behind switches in one word"),
        pytest.param(["agent", "-vv", "-"], ["agent", "-vv", "-"], id="switches alone"),
        pytest.param(["agent", "--vpn-auth=joinKey=ab"], ["agent", f"--vpn-auth={HIDDEN}"], id="a flag of k3s"),
        pytest.param(["server", "--token", "-t", "x"], ["server", "--token", HIDDEN, "x"], id="a value like an option"),
        pytest.param(["server", "--token"], ["server", "--token"], id="an option without its value"),
        pytest.param(["token", "delete", TOKEN], ["token", "delete", f"abcdef.{HIDDEN}"], id="an argument"),
        pytest.param(["up", "--token-ttl", "1h"], ["up", "--token-ttl", "1h"], id="an option with a similar name"),
    ],
)
def test_a_command_line_without_its_secrets(given: list[str], shown: list[str]) -> None:
    assert without_secrets(given) == shown


def options(command: click.Command) -> Iterator[click.Option]:
    yield from (one for one in command.params if isinstance(one, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found)


def test_every_option_that_takes_a_secret_is_known() -> None:
    """Options that take a file, or nothing, show no secret."""
    may = {
        name
        for option in options(program())
        if not option.is_flag and any(word in str(option.name) for word in WORDS)
        for name in (*option.opts, *option.secondary_opts)
        if not name.endswith("-file") and name not in NO_SECRETS
    }
    assert may | OF_K3S == SECRET_OPTIONS
    declared = {f"--{one.name}" for subject in SUBJECTS for one in subject.declared() if one.secret and one.flag}
    assert declared <= SECRET_OPTIONS


def test_a_running_command_shows_its_flags_and_no_secret(tmp_path: Path) -> None:
    """Nothing listens at the address, so that the agent asks again until it is stopped."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mooring", "agent", address, "--token", TOKEN, "--root", str(tmp_path)]
    trust = "--discovery-token-unsafe-skip-ca-verification"
    with subprocess.Popen([*command, trust], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("[existing]")
            shown = Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0")
            assert shown == f"mooring agent {address} --token {HIDDEN} --root {tmp_path} {trust}"
        finally:
            process.terminate()
