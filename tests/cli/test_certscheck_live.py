"""`mooring certs check` against a server with a machine and a user, and for a user with few rights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from tests.scenarios.test_renewal import joined
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

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
    joined(live_server, "ending", tmp_path / "root")
    admin = ("--kubeconfig", str(live_server.kubeconfig))
    done = mooring("certs", "check", "--within", "4000d", *admin)
    assert (done.code, done.err) == (1, "")
    found = {tuple(part.strip() for part in row.split("   ") if part)[:2] for row in done.out.splitlines()[1:]}
    name = next(where for what, where in found if what == "serving certificate").partition(":")[0]
    assert found >= {
        ("client certificate", "node ending"),
        ("client certificate", "user jane"),
        ("CA of the cluster", f"{name}:{live_server.data_dir}/pki/ca.crt"),
        ("last CA that verifies clients", name),
        ("client certificate of admin.conf", f"{name}:{live_server.data_dir}/admin.conf"),
        ("client certificate of super-admin.conf", f"{name}:{live_server.data_dir}/super-admin.conf"),
        ("serving certificate", f"{name}:{live_server.data_dir}/pki/apiserver.crt"),
    }
    soon = json.loads(mooring("certs", "check", "--within", "2h", "-o", "json", *admin).out)["items"]
    assert "node ending" in {one["where"] for one in soon}, "the tests join for an hour"


def test_a_user_with_few_rights_is_told_what_was_not_checked(
    live_server: LiveServer, mooring: CommandLine, jane: Path
) -> None:
    denied = mooring("certs", "check", "--kubeconfig", str(jane))
    assert denied.code == 1
    assert 'User "jane" cannot list resource' in denied.err
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
    assert "not checked: the certificates of the server (/mooring/v1/status)" in some.err
    assert "which machines are members (nodes)" in some.err
    status = {
        **binding,
        "metadata": {"name": "few-status"},
        "roleRef": {**binding["roleRef"], "name": "mooring:status"},
    }
    live_server.run(lambda client: client.create("clusterrolebindings", status))
    assert "certificates of the server" not in mooring("certs", "check", "--kubeconfig", str(jane)).err
