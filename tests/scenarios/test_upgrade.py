"""The first start on a data directory of an earlier version: what it had goes on, and what is new is there.

Rules kept here: tests/vectors/datadirectories has the directory of a server of commit 3d16da1 (the last one without decisions 0056
and later), and the files of its machines: `machine-1` by kubeadm's way, `machine-2`, which was revoked, `machine-3` by a token of
three joins, and `machine-4` by k3s's way, with certificates of shared users that name no machine. Its CA ends in 2036.
The directory `3d16da1-compromised` is that of a server of this commit after `ca rollover start --compromised` and three `advance`,
stopped at Done. Beside it is the pair of a thief: an administrator that the old key made, with the certificate by which that server
let the new CA vouch for the old one, as each of its clients got it.
"""

from __future__ import annotations

import asyncio
import ssl
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mooring.api.mooring.nodeidentity import keys_of, uses_of
from mooring.api.mooring.uniqueness import CertificateUse, condition_of, finding, newer_uses, with_use
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.pki.keys import load_private_key
from mooring.trust.discovery.editedclusterinfo import published_id
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, start_server
from tests.support.nodenames import Machine

__all__ = ["mooring"]
MADE = Path(__file__).parents[1] / "vectors/datadirectories/3d16da1.tar.xz"
COMPROMISED = MADE.with_name("3d16da1-compromised.tar.xz")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLAGS = ("--k3s-supervisor", "--cluster-signing-duration", "43800h")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server on the directory of the earlier version."""
    with tarfile.open(MADE) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")  # made by this project; absolute links among it
    found = start_server(tmp_path / "data", *FLAGS)
    yield found
    found.stop()


def status(
    server: LiveServer, pair: tuple[Path, Path], method: str, path: str, body: bytes = b"", kind: str = ""
) -> int:
    """Send one request with a client certificate. Return the status."""
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    context.load_cert_chain(*pair)

    async def send() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + (f"Content-Type: {kind}\r\n" if kind else "").encode() + b"\r\n" + body)
        line = await reader.readline()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        return int(line.split()[1])

    return asyncio.run(send())


def machine(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the client certificate of a machine that joined kubeadm's way."""
    (pem,) = (folder / name / "var/lib/kubelet/pki").glob("kubelet-client-2*.pem")
    return pem, pem


def of_k3s(folder: Path, name: str) -> tuple[Path, Path]:
    place = folder / "machine-4/var/lib/rancher/k3s/agent"
    return place / f"{name}.crt", place / f"{name}.key"


async def identity(client: ClusterClient, name: str, uses: int = 0) -> Obj:
    """Return a NodeIdentity once so many certificates are in its record: the server writes uses behind the requests."""
    while len(uses_of(obj := await client.get("nodeidentities", name))) < uses:
        await asyncio.sleep(0.1)
    return obj


async def described(client: ClusterClient) -> str:
    """Return the description of the cluster for kubeadm."""
    data = (await client.get("configmaps", "kubeadm-config", "kube-system"))["data"]
    return str(data["ClusterConfiguration"])


def test_a_directory_of_an_earlier_version_is_served_with_all_that_it_had(
    server: LiveServer, tmp_path: Path, mooring: CommandLine
) -> None:
    assert status(server, machine(tmp_path, "machine-1"), "GET", "/api/v1/nodes/machine-1") == 200
    assert status(server, machine(tmp_path, "machine-2"), "GET", "/api/v1/nodes/machine-2") == 401, "it was revoked"
    assert status(server, machine(tmp_path, "machine-3"), "GET", "/api/v1/nodes/machine-3") == 200
    assert status(server, of_k3s(tmp_path, "client-kubelet"), "GET", "/api/v1/nodes/machine-4") == 200
    assert status(server, of_k3s(tmp_path, "client-kube-proxy"), "GET", "/api/v1/services") == 200

    async def read(client: ClusterClient) -> None:
        assert [node["metadata"]["name"] for node in (await client.list("nodes")).items] == [
            "machine-1",
            "machine-2",
            "machine-3",
            "machine-4",
        ]
        info = await client.get("configmaps", "cluster-info", "kube-public")
        namespace = await client.get("namespaces", "kube-system")
        assert published_id(info) == namespace["metadata"]["uid"], "the earlier version published no id"
        assert "kubernetesVersion: v1.37.1" in await described(client), "the earlier version wrote v1.36.2"
        for role in ("system:node", "system:controller:podcertificaterequestcleaner"):
            rules = (await client.get("clusterroles", role))["rules"]
            assert ["podcertificaterequests"] in [rule["resources"] for rule in rules], "the earlier version had none"

    server.run(read)
    assert "ERROR" not in server.log


def test_its_members_are_one_machine_each_until_a_copy_is_used(
    server: LiveServer, tmp_path: Path, mooring: CommandLine
) -> None:
    """Records of the earlier version have no status, and do not say which certificate was requested with which."""
    name, pem = "machine-1", machine(tmp_path, "machine-1")[0].read_bytes()
    first, renewed, copy = (
        Machine(server, name, load_private_key(pem), pem),
        Machine(server, name),
        Machine(server, name),
    )
    pairs = {one: machine(tmp_path, one) for one in ("machine-1", "machine-3")}
    pairs["machine-4"] = of_k3s(tmp_path, "client-kubelet")

    async def act(client: ClusterClient) -> None:
        for name, pair in pairs.items():
            before = await identity(client, name)
            assert uses_of(before) == []
            assert [key for key in keys_of(before) if "parent" in key] == []
            assert await asyncio.to_thread(status, server, pair, "GET", f"/api/v1/nodes/{name}") == 200
        for name in pairs:
            assert condition_of(await identity(client, name, 1)) == {}

    server.run(act)
    for command in ("node list", "status", *(f"node show {name}" for name in pairs)):
        done = mooring(*command.split(), "--kubeconfig", str(server.kubeconfig))
        assert "machine" in done.out
        assert "two machines" not in done.all
        assert "Duplicate" not in done.all

    async def steal(client: ClusterClient) -> Obj:
        for machine in (renewed, copy):
            await machine.receive(await machine.request_by(first))
            await machine.own_node()
        return await identity(client, name, 3)

    found = server.run(steal)
    certificate = uses_of(found)[0]["certificate"]
    parents = {key["publicKey"]: key.get("parent") for key in keys_of(found)}
    assert parents == {first.public_key: None, renewed.public_key: certificate, copy.public_key: certificate}
    assert condition_of(found) == {}
    # As the server judges once both are in use for half a minute.
    for used in uses_of(found)[1:]:
        use = CertificateUse(used["certificate"], used["publicKey"], "", "", NOW)
        newer = newer_uses(found, use)
        found = with_use(found, use, newer[-1][0]["certificate"] if newer else "") or found
    judged = finding(found, NOW)
    assert judged is not None
    assert {judged.older.key, judged.newer.key} == {renewed.public_key, copy.public_key}


def test_the_shared_user_of_k3s_gets_its_rights_and_may_change_nothing_without_a_machine(
    server: LiveServer, tmp_path: Path
) -> None:
    controller = of_k3s(tmp_path, "client-k3s-controller")
    assert status(server, controller, "GET", "/api/v1/namespaces/default/endpoints") == 200
    patch = b'{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}}}'
    kind = "application/strategic-merge-patch+json"
    assert status(server, controller, "PATCH", "/api/v1/nodes/machine-4/status", patch, kind) == 403


def test_its_tokens_still_join_machines_and_the_second_start_changes_nothing(
    server: LiveServer, tmp_path: Path, mooring: CommandLine
) -> None:
    def join(name: str, token: str) -> None:
        mooring.done(
            "join", server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", server.pin,
            "--node-name", name, "--root", str(tmp_path / name),
        )  # fmt: skip

    join("machine-5", "abcdef.0123456789abcdef")
    join("machine-6", "limitd.0123456789abcdef")
    before = (server.data_dir / "pki/ca.crt").read_bytes()

    async def edit(client: ClusterClient) -> str:
        text = (await described(client)).replace("v1.37.1", "v1.36.2")
        await client.patch("configmaps", "kubeadm-config", {"data": {"ClusterConfiguration": text}}, "kube-system")
        return text

    edited = server.run(edit)
    server.restart()
    assert (server.data_dir / "pki/ca.crt").read_bytes() == before
    assert server.run(described) == edited, "an administrator wrote it"
    for name in ("machine-1", "machine-5", "machine-6"):
        assert status(server, machine(tmp_path, name), "GET", f"/api/v1/nodes/{name}") == 200
    assert "ERROR" not in server.log


def test_a_key_that_an_earlier_version_replaced_as_compromised_makes_no_administrator(tmp_path: Path) -> None:
    with tarfile.open(COMPROMISED) as archive:
        archive.extractall(tmp_path, filter="data")
    server = start_server(tmp_path / "data")
    try:
        thief = tmp_path / "thief.crt", tmp_path / "thief.key"
        assert status(server, thief, "GET", "/api/v1/namespaces/kube-system/secrets") == 401
        server.run(lambda client: client.list("nodes"))
        assert "replace that, too, with mooring ca rollover start --compromised" in server.log
    finally:
        server.stop()
    assert "retired-ca" in (tmp_path / "data/audit.log").read_text()


def test_what_was_left_half_done_stops_neither_the_start_nor_a_list_nor_a_machine(
    server: LiveServer, tmp_path: Path, mooring: CommandLine
) -> None:
    """A token was deleted whose machines live, a Node waits for a finalizer, and a field of a record was emptied by hand."""

    async def leave(client: ClusterClient) -> None:
        await client.delete("secrets", "bootstrap-token-limitd", "kube-system")
        half: Obj = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "half", "finalizers": ["example.com/x"]}}
        await client.create("nodes", half)
        await client.delete("nodes", "half")
        identity = await client.get("nodeidentities", "machine-1")
        spec = {key: value for key, value in identity["spec"].items() if key != "token"} | {"sourceAddress": ""}
        await client.update("nodeidentities", {**identity, "spec": spec})

    server.run(leave)
    server.restart()
    for name in ("machine-1", "machine-3"):
        assert status(server, machine(tmp_path, name), "GET", f"/api/v1/nodes/{name}") == 200
    for command in ("node list", "token list", "csr list", "certs list", "machine list", "issuance list", "status"):
        printed = mooring.done(*command.split(), "--kubeconfig", str(server.kubeconfig))
        assert "half" in printed or not command.startswith("node")
    assert "ERROR" not in server.log
