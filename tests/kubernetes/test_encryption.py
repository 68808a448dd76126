"""Encryption at rest beside a real kube-apiserver: each opens the values that the other wrote with the same file."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock
from mooring.storage.encryption.providers import Providers
from mooring.trust.encryption.configuration import parse, parse_group_resource
from tests.support.encryption import CONFIGURED, provider_file
from tests.support.kmsplugin import SimulatedPlugin, serving
from tests.support.kubeapiserver import MISSING, KubeApiServer, running

ETCDCTL = shutil.which("etcdctl")
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "kube-apiserver is here"),
    pytest.mark.skipif(ETCDCTL is None, reason="etcdctl is not installed"),
]
PATHS = {
    "secrets": "/api/v1/namespaces/default/secrets",
    "configmaps": "/api/v1/namespaces/default/configmaps",
    "serviceaccounts": "/api/v1/namespaces/default/serviceaccounts",
    "leases.coordination.k8s.io": "/apis/coordination.k8s.io/v1/namespaces/default/leases",
}
KINDS = {
    "secrets": ("v1", "Secret"),
    "configmaps": ("v1", "ConfigMap"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "leases.coordination.k8s.io": ("coordination.k8s.io/v1", "Lease"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KubeApiServer, bytes]]:
    directory = tmp_path_factory.mktemp("kubernetes")
    with serving(SimulatedPlugin(directory / "kms.sock")) as plugin:
        file = directory / "encryption.json"
        file.write_bytes(provider_file(plugin.endpoint))
        with running(directory, "--encryption-provider-config", str(file)) as server:
            yield server, file.read_bytes()


def etcdctl(server: KubeApiServer, *arguments: str, stdin: bytes = b"") -> bytes:
    command = (str(ETCDCTL), f"--endpoints={server.store}", *arguments)
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=60, check=True, env={**os.environ, "ETCDCTL_API": "3"}
    )
    return done.stdout


def stored(server: KubeApiServer, key: str) -> bytes:
    found = json.loads(etcdctl(server, "get", key, "-w", "json"))
    return base64.b64decode(found["kvs"][0]["value"])


def key_of(resource: str, name: str) -> str:
    return f"/registry/{resource.partition('.')[0]}/default/{name}"


def object_of(resource: str, name: str) -> Obj:
    api_version, kind = KINDS[resource]
    return {
        "kind": kind,
        "apiVersion": api_version,
        "metadata": {"name": name, "namespace": "default", "annotations": {"note": "hello-there"}},
    }


async def created(server: KubeApiServer, resource: str, name: str) -> bytes:
    async with server.client() as client:
        await client.post_path(PATHS[resource], object_of(resource, name))
    return stored(server, key_of(resource, name))


async def shown(server: KubeApiServer, resource: str, name: str) -> Any:
    async with server.client() as client:
        return await client.get_path(f"{PATHS[resource]}/{name}")


@pytest.mark.parametrize("resource", CONFIGURED)
def test_values_of_either_server_open_in_the_other(server: tuple[KubeApiServer, bytes], resource: str) -> None:
    running_server, data = server

    async def body() -> None:
        providers = Providers(parse(data, "f"), SystemClock(), os.urandom)
        await providers.start()
        try:
            one = parse_group_resource(resource)
            value = await created(running_server, resource, "theirs")
            key = key_of(resource, "theirs")
            plain, _ = await providers.open(one, value, key.encode())
            assert value.startswith(CONFIGURED[resource])
            assert b"hello-there" not in value
            assert plain.startswith(b"k8s\x00")
            assert b"hello-there" in plain

            key = key_of(resource, "ours")
            obj = object_of(resource, "ours")
            obj["metadata"] |= {
                "uid": "6b1c6b5c-0000-4000-8000-000000000001",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            etcdctl(running_server, "put", key, stdin=providers.seal(one, json.dumps(obj).encode(), key.encode()))
            assert (await shown(running_server, resource, "ours"))["metadata"]["annotations"] == {"note": "hello-there"}
        finally:
            await providers.stop()

    asyncio.run(body())
