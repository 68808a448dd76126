"""kubernetes.core of Ansible, unmodified: every state of an object, patches, and a teardown that finds nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from tests.ansible import HOME
from tests.support.liveserver import LiveServer

PLAYBOOK = HOME / "bin/ansible-playbook"
SECONDS = 300
"""Ends a run that hangs: a task starts an interpreter, which reads discovery, and takes two seconds alone."""
IDENTITY = {"api_version": "v1", "kind": "ConfigMap", "name": "settings", "namespace": "default"}
DEFINITION = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "default"},
    "data": {"color": "red"},
}
APPLIED = {**DEFINITION, "metadata": {"name": "applied", "namespace": "default"}}
ABSENT = {"api_version": "apps/v1", "kind": "Deployment", "name": "none", "namespace": "default", "state": "absent"}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "viewers", "namespace": "default"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "viewers"}],
}
TASKS: list[tuple[str, str, Obj, bool]] = [
    ("what is not there is created", "k8s", {"definition": [DEFINITION, BINDING]}, True),
    ("what is there as it should be is left", "k8s", {"definition": DEFINITION}, False),
    (
        "a check changes nothing and says what it would",
        "k8s",
        {"definition": {**DEFINITION, "data": {"color": "blue"}}},
        True,
    ),
    (
        "what is there is patched",
        "k8s",
        {"state": "patched", "definition": {**DEFINITION, "data": {"size": "l"}}},
        True,
    ),
    ("a JSON patch", "k8s_json_patch", {**IDENTITY, "patch": [{"op": "remove", "path": "/data/size"}]}, True),
    ("client-side apply", "k8s", {"apply": True, "definition": APPLIED}, True),
    (
        "server-side apply over it",
        "k8s",
        {"apply": True, "server_side_apply": {"field_manager": "play", "force_conflicts": True}, "definition": APPLIED},
        True,
    ),
    ("one object is read", "k8s_info", IDENTITY, False),
    ("a Deployment that nobody can have is gone", "k8s", ABSENT, False),
    ("an object goes, and the play waits for it", "k8s", {**IDENTITY, "state": "absent", "wait": True}, True),
]
"""Title, module, arguments, and whether the task reports a change."""


def play(kubeconfig: Path) -> str:
    tasks = [
        {
            "name": title,
            f"kubernetes.core.{module}": {"kubeconfig": str(kubeconfig), **arguments},
            **({"check_mode": True} if title.startswith("a check") else {}),
        }
        for title, module, arguments, _ in TASKS
    ]
    whole = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    return json.dumps([whole])


@pytest.mark.skipif(not PLAYBOOK.exists(), reason="Ansible is not installed: run python -m tests.ansible")
@pytest.mark.shows(
    "create -f", "get, every output and selector", "patch, three types", "apply --server-side", "delete",
    "apply -f, creating and changing",
)  # fmt: skip
def test_a_play(server: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(play(server.kubeconfig))
    done = subprocess.run(
        [PLAYBOOK, "-i", "localhost,", "play.yml"],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_PIPELINING": "true",
            "ANSIBLE_PYTHON_INTERPRETER": str(HOME / "bin/python"),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = {
        task["task"]["name"]: task["hosts"]["localhost"] for task in json.loads(done.stdout)["plays"][0]["tasks"]
    }
    assert {title: result["changed"] for title, result in results.items()} == {
        title: changed for title, _, _, changed in TASKS
    }
    (found,) = results["one object is read"]["resources"]
    assert found["data"] == {"color": "red"}
