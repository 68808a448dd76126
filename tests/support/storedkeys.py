"""All keys and values of an etcd, read by etcdctl."""

from __future__ import annotations

import base64
import json
import os
import subprocess


def stored_keys(store: str) -> dict[str, bytes]:
    """Return the value of each key of the etcd at the URL `store`."""
    command = ("etcdctl", "--endpoints", store, "get", "", "--prefix", "-w", "json")
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, env={**os.environ, "ETCDCTL_API": "3"})
    decoded = json.loads(done.stdout).get("kvs", ())
    return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]) for kv in decoded}
