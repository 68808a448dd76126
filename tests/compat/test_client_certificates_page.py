"""The page on client certificates: its commands run unchanged, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.kubectl import programs
from tests.support.liveserver import start_server

PAGE = Path(__file__).parents[2] / "docs/authentication/client-certificates.md"
SECONDS = 120
NEWEST = programs()[-1] if programs() else None
pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(NEWEST is None or NEWEST.release < (1, 27), reason="there is no kubectl that has auth whoami"),
]


def blocks() -> list[str]:
    """Return the shell blocks of the page: a certificate from the cluster, a server with its own CA, a user of that CA, its CRL."""
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(commands: str, directory: Path) -> str:
    """Return the output of the commands; the first that fails fails the test."""
    assert NEWEST is not None
    names = f'mooring() {{ "{sys.executable}" -m mooring "$@"; }}\nkubectl() {{ "{NEWEST.path}" "$@"; }}\n'
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {"HOME": str(directory)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", names + commands],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    cluster, serve, user, crl = blocks()
    *prepare, server_line = serve.splitlines()
    run("\n".join(prepare), tmp_path)
    assert server_line == "mooring server --data-dir ./data --client-ca-file $PWD/clients.crt"
    server = start_server(tmp_path / "data", "--client-ca-file", str(tmp_path / "clients.crt"))
    try:
        assert re.search(r"Username +joe\n", run(user, tmp_path))
        assert re.search(
            r"Username +jane\nGroups +\[on-call developers system:authenticated\]\n", run(cluster, tmp_path)
        )
    finally:
        assert server.stop() == 0
    assert "client-ca-file does not hold" not in server.log
    *revoke, server_line = crl.splitlines()
    run("\n".join(revoke), tmp_path)
    assert server_line == f"{serve.splitlines()[-1]} --client-crl-file $PWD/my-ca.crl"
    bundle, revoked = str(tmp_path / "clients.crt"), str(tmp_path / "my-ca.crl")
    server = start_server(tmp_path / "data", "--client-ca-file", bundle, "--client-crl-file", revoked, port=server.port)
    try:
        kubeconfig = "export KUBECONFIG=$PWD/data/admin.conf"
        assert "Unauthorized" in run(f"{kubeconfig}; kubectl --user joe auth whoami 2>&1 || true", tmp_path)
        assert "kubernetes-admin" in run(f"{kubeconfig}; kubectl auth whoami", tmp_path)
    finally:
        assert server.stop() == 0
