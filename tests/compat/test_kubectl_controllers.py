"""Unmodified kubectl reads what `mooring controllers manifests` prints, and a Mooring server accepts the rights in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.apimachinery.codec.yaml import encode_yaml
from tests.compat.kubectl import Kubectl, programs
from tests.support.liveserver import LiveServer
from tests.support.standalonecontrollers import NAMESPACE, PLURALS, printed

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(not programs(), reason="no kubectl is installed on this machine"),
]


@pytest.mark.parametrize("where", ["client", "server"])
def test_the_rights_can_be_applied(server: LiveServer, tmp_path: Path, where: str) -> None:
    """Kinds that a Mooring server does not serve are left out, and for a dry run there what needs the new namespace."""
    objects = [obj for obj in printed() if obj["kind"] in PLURALS]
    if where == "server":
        objects = [obj for obj in objects if obj["metadata"].get("namespace") != NAMESPACE]
    text = b"---\n".join(map(encode_yaml, objects)).decode()
    kubectl = Kubectl(programs()[-1], server.kubeconfig, tmp_path)
    lines = kubectl.ok("apply", f"--dry-run={where}", "-f", "-", stdin=text).splitlines()
    assert len(lines) == len(objects)
    assert [line for line in lines if not line.endswith("dry run)")] == []
