"""A machine joins with openssl and curl alone, by the script beside this file, and trusts no other server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mooring.trust.bootstraptoken.token import BootstrapToken
from tests.support.liveserver import LiveServer

WHAT = "join: trust cluster-info by token, ask for a certificate, use it"
pytestmark = [
    pytest.mark.shows(WHAT),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("curl")), reason="openssl or curl is not installed"
    ),
]
SCRIPT = Path(__file__).with_name("openssl_join.sh")


@pytest.fixture
def token(server: LiveServer) -> BootstrapToken:
    return server.once(LiveServer.create_token)


def _join(server: LiveServer, token: str, pin: str, node: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, server.url, token, pin, node, folder], capture_output=True, text=True, timeout=60)


def test_the_protocol_can_be_followed_by_hand(server: LiveServer, token: BootstrapToken, tmp_path: Path) -> None:
    done = _join(server, token.reveal(), server.pin, "by-hand", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "subject=CN=system:node:by-hand,O=system:nodes",
        "8. use it",
        "the server knows us as system:node:by-hand",
        "registered node by-hand",
    ]
    assert (tmp_path / "ca.crt").read_bytes() == server.ca_pem


@pytest.mark.parametrize(
    ("secret", "pin", "said"),
    [
        pytest.param("0" * 16, "", "the signature of cluster-info is not made with this token", id="a wrong secret"),
        pytest.param("", "sha256:" + "0" * 64, "the certificate authority is sha256:", id="a wrong pin"),
    ],
)
def test_nothing_is_sent_to_a_server_that_is_not_the_cluster(
    server: LiveServer, token: BootstrapToken, tmp_path: Path, secret: str, pin: str, said: str
) -> None:
    text = f"{token.id}.{secret}" if secret else token.reveal()
    done = _join(server, text, pin or server.pin, "never", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert not (tmp_path / "client.key").exists()


def test_a_token_without_a_signature_ends_the_script_with_a_message(server: LiveServer, tmp_path: Path) -> None:
    done = _join(server, "zzzzzz." + "0" * 16, server.pin, "never", tmp_path)
    assert (done.returncode, done.stderr) == (1, "cluster-info has no signature for the token id zzzzzz\n")
