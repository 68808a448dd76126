"""kopf, unmodified: an operator framework that lists, watches, patches, and holds objects by finalizers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import NotFoundError
from tests.support.liveserver import LiveServer

SPACE = "kopf"
LABELS = {"operated": "yes"}
OPERATOR = """
import kopf


@kopf.on.create("v1", "configmaps", labels={"operated": "yes"})
def created(patch, **_):
    patch.metadata.annotations["operator/created"] = "yes"


@kopf.on.update("v1", "configmaps", field="data.color", labels={"operated": "yes"})
def changed(new, patch, **_):
    patch.metadata.annotations["operator/color"] = new


@kopf.on.delete("v1", "configmaps", labels={"operated": "yes"})
def deleted(name, **_):
    print("deleted", name, flush=True)
"""
SECONDS = 30.0


def _until(passes: Callable[[], bool], operator: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not passes():
        assert operator.poll() is None, f"kopf ended with {operator.returncode}"
        assert time.monotonic() < deadline, "the operator did not act in time"
        time.sleep(0.05)


@pytest.mark.shows("an operator: create, update and delete handlers with finalizers")
def test_an_operator_acts_on_what_happens(server: LiveServer, tmp_path: Path) -> None:
    script, log = tmp_path / "operator.py", tmp_path / "kopf.log"
    script.write_text(OPERATOR)

    async def setup(cluster: ClusterClient) -> None:
        await cluster.create("namespaces", {"metadata": {"name": SPACE}})
        metadata = {"name": "one", "namespace": SPACE, "labels": LABELS}
        await cluster.create("configmaps", {"metadata": metadata, "data": {"color": "red"}})

    async def read(cluster: ClusterClient) -> Obj | None:
        try:
            return await cluster.get("configmaps", "one", SPACE)
        except NotFoundError:
            return None

    def annotated(name: str, value: str) -> bool:
        found = server.run(read)
        return found is not None and found["metadata"].get("annotations", {}).get(name) == value

    server.run(setup)
    command = [sys.executable, "-m", "kopf", "run", str(script), "--namespace", SPACE, "--standalone"]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig), "PYTHONWARNINGS": "ignore"}
    with log.open("w") as output:
        operator = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        _until(lambda: annotated("operator/created", "yes"), operator)
        found = server.run(read)
        assert found is not None
        assert found["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
        server.run(lambda cluster: cluster.patch("configmaps", "one", {"data": {"color": "blue"}}, SPACE))
        _until(lambda: annotated("operator/color", "blue"), operator)
        server.run(lambda cluster: cluster.delete("configmaps", "one", SPACE))
        _until(lambda: server.run(read) is None, operator)
        assert "deleted one" in log.read_text()
    finally:
        operator.terminate()
        operator.wait(20)
