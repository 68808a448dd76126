"""The page for users of k3s: every command as it is written, on servers and machines."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from mooring.trust.k3s.token import parse_token
from tests.support.k3sdatastore import write_k3s_server
from tests.support.pagecommands import Machines, blocks
from tests.support.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "from-k3s.md"
SERVER, K3S_SERVER = "10.0.0.11", "10.0.0.12"
FIRST, SECOND, MOVED, THIRD = "10.0.0.21", "10.0.0.22", "10.0.0.23", "10.0.0.24"
PASSWORD = "0123456789abcdef0123456789abcdef"
PROGRAMS = ("bash", "kubectl")
MISSING = ", ".join(name for name in PROGRAMS if shutil.which(name) is None)
_MOORING = f"""#!/bin/sh
case $1 in
agent) shift; exec {sys.executable} -m mooring agent --root "$MACHINE" --lb-server-port 0 "$@" ;;
join) shift; exec {sys.executable} -m mooring join --root "$MACHINE" "$@" ;;
esac
exec {sys.executable} -m mooring "$@"
"""
"""Writes the files of a machine below its directory. Machines that share a network cannot all have port 6444."""
_SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$MACHINES/systemctl"
"""


@pytest.mark.client
@pytest.mark.crash
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_every_command_of_the_page(tmp_path: Path) -> None:
    port = free_port()
    machines = Machines(tmp_path, {6443: port}, {"MOORING_SECURE_PORT": str(port)})
    for name, program in (("mooring", _MOORING), ("systemctl", _SYSTEMCTL)):
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    try:
        _follow(machines, {title.partition(".")[0]: found for title, found in blocks(PAGE).items()})
    finally:
        machines.end_all()


def _on(machines: Machines, block: str, address: str) -> str:
    """Return a block for the machine whose directory is the root of its files."""
    return f"export MACHINE={machines.directory(address)}\n{block}"


def _follow(machines: Machines, page: dict[str, list[str]]) -> None:
    start, show = page["1"]
    machines.start(start, SERVER, "server")
    machines.wait_for("server", "To administrate:")
    assert "or, k3s's way:" in machines.log("server")
    server_token = parse_token(machines.run(show, SERVER).strip())
    assert (server_token.username, server_token.bootstrap) == ("server", None)

    (make,) = page["2"]
    shown = machines.run(make, SERVER)
    token_file = machines.directory(SERVER) / "etc/mooring-token"
    token = parse_token(token_file.read_text().strip())
    assert token.bootstrap is not None
    assert token.ca_hash == server_token.ca_hash
    assert f"\n{token.bootstrap.id} " in shown

    bring, agent = page["3"]
    machines.run(bring, SERVER)
    machines.start(_on(machines, agent, FIRST), FIRST, "agent")
    machines.wait_for("agent", "[node]")
    assert (machines.directory(FIRST) / "etc/mooring-token").read_text().strip() == ""

    bring, join, see = page["4"]
    machines.run(bring, SERVER)
    machines.run(_on(machines, join, SECOND), SECOND)
    seen = machines.run(see, SERVER)
    assert seen.count("rack-7-1") >= 2
    assert seen.count("rack-7-2") >= 2

    (rotate,) = page["5"]
    assert "The server token was replaced." in machines.run(rotate, SERVER)
    after = parse_token(machines.run(show, SERVER).strip())
    assert after.ca_hash == server_token.ca_hash
    assert after.password != server_token.password

    _move(machines, page, agent)
    machines.end("server")
    _keep_keys(machines, page, agent)


def _move(machines: Machines, page: dict[str, list[str]], agent: str) -> None:
    """Take a machine with the files of a k3s agent into the cluster."""
    directory = machines.directory(MOVED)
    former, password = directory / "var/lib/rancher/k3s/agent", directory / "etc/rancher/node/password"
    for folder in (former, password.parent):
        folder.mkdir(parents=True)
    (former / "server-ca.crt").write_text("of the former cluster")
    password.write_text(PASSWORD)
    machines.run(page["3"][0].replace(FIRST, MOVED), SERVER)

    (leave,) = page["Move machines from a k3s cluster"]
    machines.run(leave, MOVED)
    assert (machines.root / "systemctl").read_text() == "disable --now k3s-agent\n"
    machines.start(_on(machines, agent.replace("rack-7-1", "rack-7-3"), MOVED), MOVED, "moved")
    machines.wait_for("moved", "[node]")
    assert password.read_text().strip() == PASSWORD
    assert (former.with_suffix(".before") / "server-ca.crt").read_text() == "of the former cluster"


def _keep_keys(machines: Machines, page: dict[str, list[str]], agent: str) -> None:
    """Start a server with the keys of a k3s cluster, and join a machine with the token of that cluster."""
    k3s = machines.directory(K3S_SERVER) / "var/lib/rancher/k3s/server"
    token = write_k3s_server(k3s, PASSWORD)
    machines.run(page["Keep the keys of a k3s cluster"][0], K3S_SERVER)
    start, show = page["1"]
    machines.start(start.replace(SERVER, K3S_SERVER), K3S_SERVER, "server of k3s")
    machines.wait_for("server of k3s", "To administrate:")
    assert machines.run(show, K3S_SERVER).strip().endswith(f"::server:{PASSWORD}")

    file = machines.directory(THIRD) / "etc/mooring-token"
    file.parent.mkdir(parents=True)
    file.write_text(token)
    joining = agent.replace(SERVER, K3S_SERVER).replace("rack-7-1", "rack-8-1")
    machines.start(_on(machines, joining, THIRD), THIRD, "agent of k3s")
    machines.wait_for("agent of k3s", "[node]")
