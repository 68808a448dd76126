"""The page on making certificates by hand: every block runs unchanged, and a server and its clients use the files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.kubectl import Kubectl, programs
from tests.support.liveserver import start_server

PAGE = Path(__file__).parents[2] / "docs/authentication/certificates-by-hand.md"
EASYRSA = Path("/usr/share/easy-rsa/easyrsa")
SECONDS = 120


def block(title: str) -> str:
    """Return the commands below a heading."""
    _, found, rest = PAGE.read_text().partition(f"\n## {title}\n")
    assert found
    match = re.search(r"^```(?:sh|bash)\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def run(commands: str, directory: Path) -> str:
    """Return the output of the commands; the first that fails fails the test."""
    script = f'mooring() {{ "{sys.executable}" -m mooring "$@"; }}\n{commands}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WAYS = [
    pytest.param("With Mooring", id="mooring"),
    pytest.param(
        "With openssl", id="openssl",
        marks=pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
    ),
    pytest.param(
        "With easy-rsa", id="easy-rsa", marks=pytest.mark.skipif(not EASYRSA.exists(), reason="easy-rsa is not installed")
    ),
]  # fmt: skip


@pytest.mark.client
@pytest.mark.parametrize("way", WAYS)
def test_the_commands_of_the_page_make_what_a_server_and_its_clients_use(way: str, tmp_path: Path) -> None:
    printed = run(block(way), tmp_path)
    if way == "With openssl":
        assert "server.crt: OK\njane.crt: OK\n" in printed
    server = start_server(
        tmp_path / "data",
        "--client-ca-file", f"{tmp_path}/ca.crt",
        "--tls-cert-file", f"{tmp_path}/server.crt",
        "--tls-private-key-file", f"{tmp_path}/server.key",
    )  # fmt: skip
    try:
        _, curl, ask = block("Use them").splitlines()
        here = server.url.replace("127.0.0.1", "localhost")
        answer = run(curl.replace("https://localhost:6443", here), tmp_path)
        assert '"APIVersions"' in answer
        if programs() and programs()[-1].release >= (1, 27):  # the first with `auth whoami`
            kubectl = Kubectl(programs()[-1], tmp_path / "empty", tmp_path)
            kubectl.kubeconfig.touch()
            _, *arguments = ask.replace("https://localhost:6443", here).split()
            who = kubectl.ok(*(str(tmp_path / one) if one.endswith((".crt", ".key")) else one for one in arguments))
            assert re.search(r"^Username +jane$", who, re.MULTILINE)
            assert "[developers system:authenticated]" in who
    finally:
        server.stop()
