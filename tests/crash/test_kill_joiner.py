"""`kill -9` of a joining machine: after each step that it reports, at random moments, and between any two changes on its disk.

Invariants: a second run makes a valid member; a key that was on disk, and so its request, is used again; no file is incomplete; no
temporary file, token or pending key is left.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.agent import certificaterequest, steps
from mooring.agent.join import join
from mooring.agent.state import CA_MODE, NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import connect
from mooring.client.files import TEMPORARY
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509 import names
from mooring.pki.x509.requests import parse_request
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from tests.support import forkserver
from tests.support.joinplans import join_options, join_plan
from tests.support.killable import DYING, seeded
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server"]
RANDOM_KILLS = 12
PATIENCE = 60.0


def arguments(server: LiveServer, token: BootstrapToken, name: str, root: Path) -> tuple[str, ...]:
    return (
        "join", server.endpoint, "--token", token.reveal(), "--discovery-token-ca-cert-hash", server.pin,
        "--node-name", name, "--root", str(root),
    )  # fmt: skip


def started(program: tuple[str, ...], given: tuple[str, ...]) -> forkserver.Process:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return forkserver.Process([*program, *given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_symlink() or path.is_file())


def check_nothing_is_half_written(root: Path) -> None:
    """Assert that every file under its final name is complete and readable by its owner only."""
    state = NodeState(root)
    for path in files(root):
        if path.name.endswith(TEMPORARY) or path.is_symlink():
            continue
        data = path.read_bytes()
        assert data.endswith(b"\n"), path
        assert path.stat().st_mode & 0o777 == (CA_MODE if path == state.ca else 0o600), path
    if state.pending_key.exists():
        assert state.read_pending_key() is not None
    if state.kubeconfig.exists():
        assert state.read_cluster() is not None
    for link in (state.client.current, state.client.updated):
        assert not link.is_symlink() or link.exists(), "a link never leads nowhere"
    for pair in state.certificates.glob("kubelet-client-2*.pem"):
        text = pair.read_text()
        assert text.count("-----BEGIN ") == text.count("-----END ") == 2, "a certificate and its key"


def requests_of(server: LiveServer, name: str) -> list[Obj]:
    """Return all certificate requests for a node."""

    async def ask() -> list[Obj]:
        async with server.client() as client:
            return [
                item
                for item in (await client.list(certificaterequest.PLURAL)).items
                if _common_name(item) == f"system:node:{name}"
            ]

    return asyncio.run(ask())


def _common_name(item: Obj) -> str:
    return names.common_name(parse_request(base64.b64decode(item["spec"]["request"])).subject)


def key_on_disk(root: Path) -> str:
    """Return the fingerprint of the key that a former run left; empty when there is none."""
    state = NodeState(root)
    key = state.read_pending_key()
    if key is None:
        pair = state.client.read_pair()
        key = pair.key if pair is not None else None
    return public_key_fingerprint(key) if key is not None else ""


def check_running_it_again(server: LiveServer, token: BootstrapToken, name: str, root: Path) -> None:
    """Assert that a second run, undisturbed, completes the join."""
    check_nothing_is_half_written(root)
    left = key_on_disk(root)
    asked = len(requests_of(server, name))
    assert asked <= (1 if left else 0), "a request is made only with a key that is on disk"

    given = join_plan(name, (server.endpoint,), Secret(token.reveal()), pins=(server.pin,))
    asyncio.run(join(given, join_options(root=root, certificate_timeout=PATIENCE)))

    state = NodeState(root)
    pair = state.client.read_pair()
    assert pair is not None
    assert pair.valid_at(SystemClock().now())
    if left:
        assert public_key_fingerprint(pair.key) == left
    assert len(requests_of(server, name)) == 1
    check_nothing_is_half_written(root)
    found = {str(path.relative_to(root)) for path in files(root)}
    kept = {path for path in found if path.startswith("var/lib/kubelet/pki/kubelet-client-2")}
    assert kept
    assert found - kept == {
        "etc/kubernetes/pki/ca.crt",
        "etc/kubernetes/kubelet.conf",
        "var/lib/kubelet/pki/kubelet-client-current.pem",
        "var/lib/mooring/agent.json",
    }

    async def as_the_node() -> Obj:
        async with connect(load(str(state.kubeconfig))) as client:
            return await client.get("nodes", name)

    assert asyncio.run(as_the_node())["metadata"]["name"] == name


@pytest.mark.crash
@pytest.mark.parametrize("step", steps.STEPS)
def test_killed_after_each_reported_step(live_server: LiveServer, tmp_path: Path, step: str) -> None:
    token, name = live_server.create_token(), f"told-{step}"
    process = started(("-m", "mooring"), arguments(live_server, token, name, tmp_path))
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            if line.startswith(f"[{step}]"):
                process.kill()
                break
        else:
            raise AssertionError(f"the step {step} was not told")
    process.wait()
    check_running_it_again(live_server, token, name, tmp_path)


@pytest.mark.crash
def test_killed_at_random_moments(live_server: LiveServer, tmp_path: Path) -> None:
    moments = seeded()
    token = live_server.create_token()
    began = time.monotonic()
    whole = started(("-m", "mooring"), arguments(live_server, token, "whole", tmp_path / "whole"))
    whole.communicate(timeout=PATIENCE)
    seconds = time.monotonic() - began
    for n in range(RANDOM_KILLS):
        name, root = f"random-{n}", tmp_path / str(n)
        root.mkdir()
        process = started(("-m", "mooring"), arguments(live_server, token, name, root))
        try:
            process.communicate(timeout=seconds * moments.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        check_running_it_again(live_server, token, name, root)


@pytest.mark.crash
def test_killed_between_any_two_changes_of_its_disk(live_server: LiveServer, tmp_path: Path) -> None:
    """Kill one machine at its first change, the next run one change later, until a run completes; nothing of the others is left."""
    token = live_server.create_token()
    for n in range(1, 100):
        name, root = f"change-{n}", tmp_path / str(n)
        root.mkdir()
        process = started(("-c", DYING, str(n)), arguments(live_server, token, name, root))
        output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, output
            assert n > 20, "there are more changes than that"
            return
        check_running_it_again(live_server, token, name, root)
    raise AssertionError("a join does not change its disk a hundred times")
