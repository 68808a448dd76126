"""GET /mooring/v1/status: what a server reports of itself, and to whom."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.identity import AUTHENTICATED, NODES
from tests.support.commandline import process
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.serverroom import Server, in_server, open_server
from tests.support.testca import ThrowawayCA

__all__ = ["live_server"]
PATH = "/mooring/v1/status"
AES = {"aescbc": {"keys": [{"name": "k", "secret": base64.b64encode(bytes(range(32))).decode()}]}}


def read(server: LiveServer) -> Obj:
    return server.run(lambda client: client.get_path(PATH))


@in_server
async def test_a_server_reports_of_itself_to_administrators_only(server: Server) -> None:
    assert (await server.get(PATH)).obj["kind"] == "ServerStatus"
    for groups in ((AUTHENTICATED,), (NODES, AUTHENTICATED)):
        headers = [("Impersonate-User", "system:node:n1"), *(("Impersonate-Group", one) for one in groups)]
        assert (await server.get(PATH, headers=headers)).status == 403


def test_a_report_names_files_ends_and_the_store(live_server: LiveServer) -> None:
    found = read(live_server)
    ends = {one["name"]: one for one in found["certificates"]}
    assert set(ends) == {"serving-certificate", "ca", "client-ca", "admin.conf", "super-admin.conf"}
    assert ends["admin.conf"]["file"] == f"{live_server.data_dir}/admin.conf"
    assert {name for name, one in ends.items() if one["isCA"]} == {"ca", "client-ca"}
    assert {name for name, one in ends.items() if one["advice"]} == {"ca", "client-ca"}, "the server renews the others"
    store = found["store"]
    assert (store["kind"], store["problem"], store["alarm"]) == ("sqlite", "", "")
    assert store["revision"] > 1
    assert store["bytes"] > 10_000
    assert found["encryption"] == {"configured": False, "encryptsSecrets": False, "configHash": ""}
    assert (found["snapshots"]["scheduled"], found["snapshots"]["last"]) == (False, None)
    assert "PRIVATE KEY" not in str(found)


@pytest.mark.parametrize(
    ("resources", "providers", "encrypted"),
    [
        (["secrets"], [AES, {"identity": {}}], True),
        (["secrets"], [{"identity": {}}, AES], False),
        (["configmaps"], [AES], False),
        (["*.*"], [AES], True),
    ],
    ids=["by a key", "read by a key, written as they are", "another resource", "every resource"],
)
def test_a_report_says_whether_secrets_are_encrypted(
    resources: list[str], providers: list[Obj], encrypted: bool, tmp_path: Path
) -> None:
    file = tmp_path / "encryption.json"
    rules = [{"resources": resources, "providers": providers}]
    file.write_text(
        json.dumps({"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": rules})
    )
    file.chmod(0o600)

    async def run() -> Obj:
        async with open_server(encryption_provider_config=str(file)) as server:
            found: Obj = (await server.get(PATH)).obj["encryption"]
            return found

    found = asyncio.run(run())
    assert (found["configured"], found["encryptsSecrets"]) == (True, encrypted)


def test_the_ca_of_proxies_and_the_last_snapshot_are_reported(tmp_path: Path) -> None:
    bundle = tmp_path / "proxies.pem"
    bundle.write_bytes(ThrowawayCA().certificate_pem)
    proxy = ("--requestheader-client-ca-file", str(bundle), "--requestheader-username-headers", "X-Remote-User")
    server = start_server(tmp_path / "data", *proxy)
    try:
        (server.data_dir / "super-admin.conf").write_text("{}")
        assert process("snapshot", "save", "--data-dir", str(server.data_dir)).code == 0
        found = read(server)
        ends = {one["name"]: one for one in found["certificates"]}
        assert ends["requestheader-client-ca"]["file"] == str(bundle)
        assert "super-admin.conf" not in ends
        assert found["snapshots"]["last"]["revision"] > 1
        assert found["snapshots"]["last"]["file"].startswith("on-demand-")
    finally:
        server.stop()
