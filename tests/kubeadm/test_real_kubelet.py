"""A real kubelet after `mooring join --discover-only`: it requests its certificate itself, and renews it.

No container runtime is needed: kubelet obtains its certificate before it waits for one. A socket that accepts connections and never
answers stands for the runtime.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.agent.join import join
from mooring.agent.state import NodeState
from mooring.client.cluster import connect
from mooring.client.kubeconfigfiles import load
from mooring.pki.keys import public_key_der
from mooring.secret import Secret
from tests.support import reissue
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, live_server
from tests.support.polling import eventually

__all__ = ["live_server"]
KUBELET = shutil.which("kubelet")
CONFIGURATION = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
rotateCertificates: {rotate}
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix://{socket}
authentication: {{x509: {{clientCAFile: {ca}}}}}
"""


@contextmanager
def kubelet(directory: Path, state: NodeState, name: str, *, rotate: bool) -> Iterator[Path]:
    """Run a kubelet on the files of `mooring join --discover-only`. Yield its log."""
    assert KUBELET is not None
    address = directory / "runtime.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    configuration = directory / "kubelet.yaml"
    configuration.write_text(CONFIGURATION.format(rotate=str(rotate).lower(), socket=address, ca=state.ca))
    log = directory / "kubelet.log"
    with log.open("wb") as output, listening:
        process = subprocess.Popen(
            [
                KUBELET, f"--config={configuration}", f"--bootstrap-kubeconfig={state.bootstrap}",
                f"--kubeconfig={state.kubeconfig}", f"--cert-dir={state.certificates}", f"--hostname-override={name}",
                f"--root-dir={directory / 'kubelet'}",
            ],
            stdout=output, stderr=output,
        )  # fmt: skip
        try:
            yield log
        finally:
            process.kill()
            process.wait()
            address.unlink()


@pytest.mark.client
@pytest.mark.skipif(KUBELET is None, reason="kubelet is not installed")
def test_a_kubelet_takes_over_after_discovery_and_renews(live_server: LiveServer, tmp_path: Path) -> None:
    name = "real-kubelet"
    token = Secret(live_server.create_token().reveal())
    plan = join_plan(name, (live_server.endpoint,), token, pins=(live_server.pin,))
    state = asyncio.run(join(plan, join_options(root=tmp_path / "root", discover_only=True))).files
    assert not state.kubeconfig.exists()

    with kubelet(tmp_path, state, name, rotate=False) as log:
        eventually(lambda: state.client.read_pair() is not None)
        assert "error" not in log.read_text().lower()

    async def user() -> str:
        async with connect(load(str(state.kubeconfig))) as client:
            review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}}
            answer = await client.post_path("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
            return str(answer["status"]["userInfo"]["username"])

    assert asyncio.run(user()) == f"system:node:{name}"
    old = reissue.place(live_server, state, timedelta(minutes=-4), timedelta(seconds=25))

    def key() -> bytes:
        pair = state.client.read_pair()
        return public_key_der(pair.key) if pair is not None else b""

    with kubelet(tmp_path, state, name, rotate=True):
        eventually(lambda: key() not in (b"", public_key_der(old.key)))
    assert asyncio.run(user()) == f"system:node:{name}"
