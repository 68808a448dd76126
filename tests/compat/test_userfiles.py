"""Tokens and passwords of files, and passwords of a Keystone, sent by every kubectl to a server process."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.kubectl import Kubectl, Program
from tests.support.keystonepeer import simulated
from tests.support.liveserver import LiveServer, start_server


@dataclass
class Served:
    server: LiveServer
    tokens: Path
    passwords: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("users")
    tokens, passwords = directory / "tokens.csv", directory / "passwords.csv"
    hashing = [sys.executable, "-m", "mooring", "auth", "hash-password"]
    hashed = (
        subprocess.run(hashing, input=b"hunter2\n", capture_output=True, check=True, timeout=60).stdout.decode().strip()
    )
    tokens.write_text('tok-1,jane,42,"dev,ops"\nroot-token,root,0,system:masters\n')
    passwords.write_text(f"{hashed},jane,42,dev\nplain-pw,joe,43,system:masters\n")
    for path in (tokens, passwords):
        path.chmod(0o600)
    with simulated(directory) as keystone:
        server = start_server(
            directory / "data", "--token-auth-file", str(tokens), "--basic-auth-file", str(passwords),
            "--experimental-keystone-url", keystone.url, "--experimental-keystone-ca-file", str(keystone.ca_file),
        )  # fmt: skip
        yield Served(server, tokens, passwords)
        server.stop()


@pytest.fixture
def kubectl(program: Program, served: Served, tmp_path: Path) -> Kubectl:
    return Kubectl(program, tmp_path / "kubeconfig", tmp_path)


def user(kubectl: Kubectl, served: Served, **credentials: str) -> None:
    """Write these credentials as the user of the kubeconfig."""
    server = {"server": served.server.url, "certificate-authority-data": _ca(served)}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": credentials}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    kubectl.kubeconfig.write_text(json.dumps(config))


def _ca(served: Served) -> str:
    text = served.server.kubeconfig.read_text()
    return text.split("certificate-authority-data:")[1].split()[0].strip('"')


def name(kubectl: Kubectl) -> str:
    """Return the user name from kubectl's message of a forbidden request."""
    return kubectl.fails("get", "secrets").partition('User "')[2].partition('"')[0]


@pytest.mark.parametrize(
    ("credentials", "known_as"),
    [
        pytest.param({"token": "tok-1"}, "jane", id="a token"),
        pytest.param({"username": "jane", "password": "hunter2"}, "jane", id="a password that is hashed"),
        pytest.param(
            {"username": "jane@people", "password": "other"}, "jane@people", id="a password that Keystone knows"
        ),
    ],
)
def test_kubectl_has_its_user_name_and_no_rights(
    kubectl: Kubectl, served: Served, credentials: dict[str, str], known_as: str
) -> None:
    user(kubectl, served, **credentials)
    assert "gitVersion" in kubectl.ok("get", "--raw", "/version")
    assert name(kubectl) == known_as


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param({"token": "root-token"}, id="a token"),
        pytest.param({"username": "joe", "password": "plain-pw"}, id="a plain password"),
    ],
)
def test_kubectl_has_the_groups_of_the_file(kubectl: Kubectl, served: Served, credentials: dict[str, str]) -> None:
    user(kubectl, served, **credentials)
    assert "kube-public" in kubectl.ok("get", "namespaces")


def test_kubectls_flags_are_as_good_as_its_kubeconfig(kubectl: Kubectl, served: Served) -> None:
    user(kubectl, served)
    assert "kube-public" in kubectl.ok("--username=joe", "--password=plain-pw", "get", "namespaces")


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param({"token": "tok-3"}, id="an unknown token"),
        pytest.param({"username": "jane", "password": "wr0ng"}, id="a wrong password"),
    ],
)
def test_kubectl_is_refused(kubectl: Kubectl, served: Served, credentials: dict[str, str]) -> None:
    user(kubectl, served, **credentials)
    said = kubectl.fails("get", "--raw", "/version")
    assert "Unauthorized" in said or "must be logged in" in said


def test_a_file_that_changes_is_in_force_without_a_restart(served: Served) -> None:
    context = ssl.create_default_context(cafile=str(served.server.data_dir / "pki/ca.crt"))

    def status(token: str) -> int:
        request = urllib.request.Request(f"{served.server.url}/version", headers={"authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert status("tok-late") == 401
    served.tokens.write_text(served.tokens.read_text() + "tok-late,late,99\n")
    deadline = time.monotonic() + 30
    while status("tok-late") != 200:
        assert time.monotonic() < deadline, served.server.log
        time.sleep(0.2)
    assert f"{served.tokens} was changed and " in served.server.log
    for secret in ("tok-1", "tok-late", "root-token", "hunter2", "plain-pw", "wr0ng"):
        assert secret not in served.server.log
