"""@kubernetes/client-node, unmodified: typed calls, objects of any kind, patches, watches and informers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests.compat.kubectl import SECONDS
from tests.support.liveserver import LiveServer
from tests.support.packagedprograms import FOLDER, INSTALL

INSTALLED = shutil.which("node") is not None and (FOLDER / "node_modules/@kubernetes/client-node").is_dir()


@pytest.mark.skipif(not INSTALLED, reason=f"@kubernetes/client-node is not installed: {INSTALL}")
@pytest.mark.shows(
    "create -f", "get, every output and selector", "replace", "patch, three types", "delete", "get -w", "create token"
)
def test_the_calls_of_a_program(server: LiveServer) -> None:
    done = subprocess.run(
        ["node", FOLDER / "client.mjs", "client-node"],
        env=os.environ | {"KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "created": {"color": "red"},
        "again": 409,
        "managers": ["Update"],
        "replaced": {"color": "blue"},
        "stale": 409,
        "patched": {"color": "blue", "size": "l"},
        "listed": [{"color": "blue", "size": "l"}],
        "binding": "view",
        "informed": "two",
        "deleted": "one",
        "gone": 404,
        "token": 3,
    }
