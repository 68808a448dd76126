"""Renewals of a running agent: `kill -9` in the middle, hooks, serving certificates, and the certificate in use afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.agent.daemon import TRUSTED_CAS
from mooring.agent.join import join
from mooring.agent.pairfiles import KEPT_FILES, Pair
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.files import TEMPORARY
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.pki.keys import public_key_der, public_key_fingerprint
from mooring.pki.x509 import names
from mooring.secret import Secret
from tests.support import forkserver, reissue
from tests.support.joinplans import join_options, join_plan
from tests.support.killable import DYING
from tests.support.liveserver import LiveServer, live_server
from tests.support.polling import eventually

__all__ = ["live_server"]
DUE = (timedelta(minutes=-4), timedelta(seconds=25))
"""Times of a certificate that is due for renewal: more than 90 % of its lifetime have passed."""


def joined(server: LiveServer, name: str, root: Path) -> NodeState:
    token = Secret(server.create_token().reveal())
    plan = join_plan(name, (server.endpoint,), token, pins=(server.pin,))
    return asyncio.run(join(plan, join_options(root=root, certificate_timeout=60.0, expiration_seconds=3600))).files


@contextmanager
def agent(
    root: Path, *flags: str, program: tuple[str, ...] = ("-m", "mooring")
) -> Iterator[tuple[forkserver.Process, Path]]:
    """Run `mooring agent`. Yield the process and its log."""
    log = root / "agent.log"
    with log.open("ab") as output:
        process = forkserver.Process(
            [*program, "agent", "-v", "--root", str(root), *flags], stdout=output, stderr=output, env=dict(os.environ)
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def current(state: NodeState) -> Pair:
    pair = state.client.read_pair()
    assert pair is not None
    return pair


def is_renewed(state: NodeState, old: Pair) -> bool:
    return public_key_der(current(state).key) != public_key_der(old.key)


def is_done(state: NodeState, old: Pair) -> bool:
    """Return True when the certificate was renewed and its hooks have run."""
    return is_renewed(state, old) and state.record.read().hooks_done["client"] == _digest(current(state))


def requests_of(server: LiveServer, name: str) -> list[Obj]:
    async def ask(client: ClusterClient) -> list[Obj]:
        found = await client.list(certificaterequest.PLURAL)
        return [one for one in found.items if one["spec"]["username"] == f"system:node:{name}"]

    return server.run(ask)


def check_membership(server: LiveServer, state: NodeState, name: str) -> None:
    """Assert that the files are whole and that the server accepts the certificate."""

    async def as_the_node() -> Obj:
        async with connect(load(str(state.kubeconfig))) as client:
            return await client.get("nodes", name)

    assert current(state).valid_at(SystemClock().now())
    assert not state.client.updated.is_symlink()
    assert asyncio.run(as_the_node())["metadata"]["name"] == name


@pytest.mark.crash
def test_killed_between_any_two_changes_of_its_disk_an_agent_still_renews_and_runs_its_hook(
    live_server: LiveServer, tmp_path: Path
) -> None:
    """Kill one run at its first change, the next one change later, until a run completes. An undisturbed run follows each."""
    root = tmp_path / "root"
    state = joined(live_server, "renewing", root)
    told = tmp_path / "told"
    hook = f'echo "$MOORING_KIND" >> {told}'
    with agent(root, "--on-renew", hook):
        eventually(lambda: set(state.record.read().hooks_done) == {"client", "serving", "ca"})
    for n in range(1, 60):
        old = reissue.place(live_server, state, *DUE)
        # More renewals than a machine has in the life of a certificate would wait for a person.
        live_server.run(forget_renewals)
        state.record.write("hooksDone", {**state.record.read().hooks_done, "client": _digest(old)})
        told.write_text("")
        with agent(root, "--on-renew", hook, program=("-c", DYING, str(n))) as (process, log):
            eventually(lambda: process.poll() is not None or is_done(state, old))  # noqa: B023 - called at once
            completed = process.poll() is None
        if not completed:
            assert process.returncode == -signal.SIGKILL, log.read_text()
            check_membership(live_server, state, "renewing")
            with agent(root, "--on-renew", hook):
                eventually(lambda: is_done(state, old))  # noqa: B023 - called at once
        assert "client" in told.read_text()
        check_membership(live_server, state, "renewing")
        if completed:
            break
    else:
        raise AssertionError("a renewal does not change the disk sixty times")
    assert n > 8, "there are more changes than that"
    assert not list(root.rglob(f"*{TEMPORARY}"))
    assert len(list(state.certificates.glob("kubelet-client-2*.pem"))) == KEPT_FILES
    assert all(one["spec"]["expirationSeconds"] == 3600 for one in requests_of(live_server, "renewing"))


async def forget_renewals(admin: ClusterClient) -> None:
    """Leave the newest keys in the record, as after a year."""
    keys = (await admin.get("nodeidentities", "renewing"))["spec"]["keys"]
    await admin.patch("nodeidentities", "renewing", {"spec": {"keys": keys[-3:]}})


def _digest(pair: Pair) -> str:
    return hashlib.sha256(pair.certificate_pem).hexdigest()


def test_an_agent_goes_on_with_the_renewed_certificate_and_keeps_a_serving_one(
    live_server: LiveServer, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    state = joined(live_server, "serving", root)
    with agent(root, "--serving-certificates") as (process, log):
        eventually(lambda: _annotation(live_server, "serving"), live_server)
        pin = _annotation(live_server, "serving")
        assert pin == live_server.pin
        request = eventually(lambda: _serving_request(live_server, "serving"), live_server)
        assert request is not None
        serving = eventually(state.serving.read_pair, live_server)
        assert serving is not None
        found = names.alternative_names(serving.leaf.extensions)
        assert (found.dns, found.ips) == (("serving",), ())  # its address is that of loopback
        old = reissue.place(live_server, state, *DUE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    with agent(root) as (process, log):
        eventually(lambda: is_renewed(state, old), live_server)
        revoke(live_server, old)  # a heartbeat after this is sent with the new certificate
        before = _renewed_at(live_server, "serving")
        eventually(lambda: _renewed_at(live_server, "serving") != before, live_server)
        assert "no heartbeat" not in log.read_text()


def revoke(server: LiveServer, pair: Pair) -> None:
    fingerprint = public_key_fingerprint(pair.key)
    revocation = {
        "apiVersion": "mooring.dev/v1alpha1",
        "kind": "CertificateRevocation",
        "metadata": {"name": f"key-{fingerprint}"},
        "spec": {"publicKey": f"sha256:{fingerprint}"},
    }
    server.run(lambda client: client.create("certificaterevocations", revocation))


def _annotation(server: LiveServer, name: str) -> str:
    node = server.run(lambda client: client.get("nodes", name))
    return str((node["metadata"].get("annotations") or {}).get(TRUSTED_CAS, ""))


def _renewed_at(server: LiveServer, name: str) -> str:
    return str(server.run(lambda client: client.get("leases", name, "kube-node-lease"))["spec"]["renewTime"])


def _serving_request(server: LiveServer, name: str) -> Obj | None:
    found = requests_of(server, name)
    return next((one for one in found if one["spec"]["signerName"] == "kubernetes.io/kubelet-serving"), None)
