"""A real server with an audit policy, and a real kubectl that impersonates a user.

Source: docs/protocol/impersonation.md, docs/protocol/audit.md.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compat.kubectl import Program, programs
from tests.support.auditlog import request_records
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(not programs(), reason="no kubectl is installed on this machine"),
]

POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create]
  resources: [{resources: [configmaps, secrets]}]
- level: Metadata
  resources: [{group: authentication.k8s.io}]
- level: None
"""


@contextmanager
def running(data: Path, *flags: str) -> Iterator[None]:
    """Run `mooring up`; the block begins when it has printed the join command."""
    command = [sys.executable, "-m", "mooring", "up", "--data-dir", str(data), "--bind-address", "127.0.0.1"]
    port = str(free_port())
    process = subprocess.Popen([*command, "--secure-port", port, *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any("join" in line for line in process.stdout), "the server ended before it was ready"
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def kubectl(program: Program, data: Path, *arguments: str) -> str:
    environment = {"HOME": str(data), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [program.path, "--kubeconfig", data / "admin.conf", *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_policy_and_impersonation_with_every_part(tmp_path: Path) -> None:
    program, data = programs()[-1], tmp_path / "data"
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    acting: tuple[str, ...] = ("--as=jane", "--as-group=dev", "--as-group=ops", "--as-uid=42")
    if program.release >= (1, 34):
        acting = (*acting, "--as-user-extra=example.com/scope=all")
    with running(data, "--audit-policy-file", str(policy)):
        kubectl(program, data, "create", "configmap", "shown", "--from-literal=k=told")
        kubectl(program, data, "create", "secret", "generic", "hidden", "--from-literal=k=untold")
        who: dict[str, Any] = json.loads(kubectl(program, data, "auth", "whoami", "-o", "json", *acting))
    user = who["status"]["userInfo"]
    assert (user["username"], user["uid"]) == ("jane", "42")
    assert user["groups"] == ["dev", "ops", "system:authenticated"]
    if program.release >= (1, 34):
        assert user["extra"] == {"example.com/scope": ["all"]}

    text = (data / "audit.log").read_text()
    shown, hidden, asked = request_records(data / "audit.log")
    assert shown["requestObject"]["data"] == shown["responseObject"]["data"] == {"k": "told"}
    assert (hidden["level"], hidden["objectRef"]["name"]) == ("Metadata", "hidden")
    assert "dW50b2xk" not in text
    assert "untold" not in text
    assert asked["impersonatedUser"]["username"] == "jane"
    assert asked["authenticationMetadata"] == {"impersonationConstraint": "impersonate:user-info"}


def test_two_servers_with_one_audit_log_keep_a_log_each(tmp_path: Path) -> None:
    flags = ("--audit-log-path", str(tmp_path / "audit.log"))
    with running(tmp_path / "one", *flags), running(tmp_path / "other", *flags):
        kubectl(programs()[-1], tmp_path / "other", "get", "namespaces")
    logs = sorted(path.name for path in tmp_path.glob("audit*"))
    assert len(logs) == 2
    assert logs[1] == "audit.log"
