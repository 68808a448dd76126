"""`mooring certs check` against a server with a machine and a user, and for a user with few rights."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from tests.scenarios.test_renewal import DUE, agent, is_renewed, joined
from tests.support import reissue
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually

__all__ = ["live_server", "mooring"]


@pytest.fixture
def jane(live_server: LiveServer, mooring: CommandLine, tmp_path: Path) -> Path:
    """Return the kubeconfig of a user without rights."""
    path = tmp_path / "jane.conf"
    mooring.done("kubeconfig", "user", "jane", "--out", str(path), "--kubeconfig", str(live_server.kubeconfig))
    return path


def test_everything_that_ends_is_there(
    live_server: LiveServer, mooring: CommandLine, jane: Path, tmp_path: Path
) -> None:
    node = f"n-{secrets.token_hex(4)}"
    joined(live_server, node, tmp_path / "root")
    admin = ("--kubeconfig", str(live_server.kubeconfig))
    done = mooring("certs", "check", "--within", "4000d", *admin)
    assert (done.code, done.err) == (1, "")
    found = {tuple(part.strip() for part in row.split("   ") if part)[:2] for row in done.out.splitlines()[1:]}
    name = next(where for what, where in found if what == "CA of the cluster").partition(":")[0]
    assert found >= {
        ("client certificate", f"node {node}"),
        ("client certificate", "user jane"),
        ("CA of the cluster", f"{name}:{live_server.data_dir}/pki/ca.crt"),
        ("last CA that verifies clients", f"{name}/client-ca"),
        ("client certificate of admin.conf", f"{name}:{live_server.data_dir}/admin.conf"),
        ("client certificate of super-admin.conf", f"{name}:{live_server.data_dir}/super-admin.conf"),
        ("serving certificate", f"{name}:{live_server.data_dir}/pki/apiserver.crt"),
    }
    soon = json.loads(mooring("certs", "check", "--within", "2h", "-o", "json", *admin).out)["items"]
    assert f"node {node}" in {one["where"] for one in soon}, "the tests join for an hour"


def test_a_user_with_few_rights_is_told_what_was_not_checked(
    live_server: LiveServer, mooring: CommandLine, jane: Path
) -> None:
    denied = mooring("certs", "check", "--kubeconfig", str(jane))
    assert denied.code == 1
    assert 'User "jane" cannot list resource' in denied.err
    status: Obj = {
        "metadata": {"name": "few-status"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mooring:status"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    }
    live_server.run(lambda client: client.create("clusterrolebindings", status))
    servers = mooring("certs", "check", "--within", "4000d", "--kubeconfig", str(jane))
    assert (servers.code, "CA of the cluster" in servers.out) == (1, True), servers.all
    assert 'not checked: certificates of machines: certificaterevocations.mooring.dev is forbidden: User "jane"' in (
        servers.err
    )
    live_server.run(lambda client: client.delete("clusterrolebindings", "few-status"))
    rules = [{"apiGroups": ["mooring.dev"], "resources": ["*"], "verbs": ["list"]}]
    role = {"metadata": {"name": "few"}, "rules": rules}
    binding: Obj = {
        "metadata": {"name": "few"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "few"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    }
    live_server.run(lambda client: client.create("clusterroles", role))
    live_server.run(lambda client: client.create("clusterrolebindings", binding))
    some = mooring("certs", "check", "--within", "1m", "--kubeconfig", str(jane))
    assert some.code == 1
    assert f"not checked: the certificates of {live_server.url}: not readable for this user" in some.err
    assert "not checked: whether machines are members: Nodes are not readable for this user" in some.err
    live_server.run(lambda client: client.create("clusterrolebindings", status))
    assert "certificates of https" not in mooring("certs", "check", "--kubeconfig", str(jane)).err


def test_every_kind_is_listed_in_80_columns(
    live_server: LiveServer, mooring: CommandLine, jane: Path, tmp_path: Path
) -> None:
    node = f"worker-{secrets.token_hex(3)}"
    state = joined(live_server, node, tmp_path / "root")
    admin = ("--kubeconfig", str(live_server.kubeconfig))
    lines = mooring.done("certs", "list", *admin).splitlines()
    assert max(len(line) for line in lines if len(line.split()[0]) <= len("super-admin.conf")) <= 80
    found = {tuple(line.split()[:2]) for line in lines[1:]}
    assert found >= {
        (node, "client"),
        ("jane", "user"),
        ("ca.crt", "ca"),
        ("client-ca", "ca"),
        ("apiserver.crt", "server"),
        ("admin.conf", "server"),
    }
    (machine,) = json.loads(mooring.done("certs", "list", "--node", node, "-o", "json", *admin))["items"]
    assert (len(machine["token"]), machine["from"], machine["kind"]) == (6, "127.0.0.1", "client")
    assert "renewed" not in machine
    old = reissue.place(live_server, state, *DUE)
    with agent(tmp_path / "root", "--serving-certificates"):
        eventually(lambda: is_renewed(state, old), live_server)
        eventually(state.serving.read_pair, live_server)
    before, after, serving = json.loads(mooring.done("certs", "list", "--node", node, "-o", "json", *admin))["items"]
    assert (before["renewed"], bool(before["renewedAt"]), "renewed" in after) == (True, True, False)
    assert (serving["kind"], serving["user"], serving["state"]) == ("serving", f"system:node:{node}", "valid")
    users = json.loads(mooring.done("certs", "list", "--kind", "user", "-o", "json", *admin))["items"]
    assert "jane" in {one["user"] for one in users}
    shown = mooring.done("certs", "show", users[0]["serialNumber"], *admin)
    assert "Kind:           user" in shown


def test_a_file_that_its_server_cannot_read_is_named_and_one_that_was_removed_is_not(
    mooring: CommandLine, tmp_path: Path
) -> None:
    server = start_server(tmp_path / "data", "--audit-log-path", "")
    kubeconfig = ("--kubeconfig", str(server.kubeconfig))
    try:
        (server.data_dir / "super-admin.conf").write_text("{")
        done = mooring("certs", "check", "--within", "1d", *kubeconfig)
        assert done.code == 1
        assert "not checked: the client certificate of super-admin.conf of " in done.err
        (server.data_dir / "super-admin.conf").unlink()
        done = mooring("certs", "check", "--within", "1d", *kubeconfig)
        assert (done.code, done.err) == (0, "")
    finally:
        server.stop()
