"""Three servers with data directories of their own on one store: they join with a token, and go on when one is killed.

Rules kept here: the servers share the store and the server token and nothing else. Machines join through a list whose first
address is dead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooring.agent.join import Joined, join
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.settings.storage import StorageSettings
from mooring.storage.drivers import open_storage
from mooring.storage.keyspace import FORMAT_LEVEL, FORMAT_SERVERS
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support import etcd, forkserver
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

PODS = {"one": "198.51.100.1", "two": "198.51.100.2", "three": "198.51.100.3"}
"""Addresses that the servers advertise to Pods. Nothing is sent there."""
SHARED = ("ca.crt", "ca.key", "sa.key", "lineage.key")


class Cluster3:
    """The servers, and the list of addresses that they publish, of which the first is dead."""

    def __init__(self, root: Path, *store: str) -> None:
        self.root = root
        ports = {name: free_port() for name in PODS}
        self.addresses = tuple(f"127.0.0.1:{port}" for port in (free_port(), *ports.values()))
        published = [word for address in self.addresses for word in ("--control-plane-endpoint", address)]
        token = root / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)

        def start(name: str) -> LiveServer:
            flags = (*store, "--server-token-file", str(token), "--advertise-address", PODS[name], *published)
            return start_server(root / name, *flags, port=ports[name])

        with ThreadPoolExecutor() as pool:  # the first ones of a cluster, all at once
            self.servers = dict(zip(PODS, pool.map(start, PODS), strict=True))

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    def named(self, identity: str) -> LiveServer:
        """Return the server of an identity of leader election."""
        return next(one for one in self.servers.values() if f"_{one.process.pid}_" in identity)


def holder(server: LiveServer) -> str:
    async def read(client: ClusterClient) -> str:
        lease = await client.get("leases", "mooring-controllers", "kube-system")
        return str(lease["spec"].get("holderIdentity") or "")

    return server.run(read)


def pod_addresses(server: LiveServer) -> list[str]:
    async def read(client: ClusterClient) -> list[str]:
        found = (await client.list("endpoints", "default", field_selector="metadata.name=kubernetes")).items
        return [
            one["ip"] for endpoints in found for subset in endpoints.get("subsets") or () for one in subset["addresses"]
        ]

    return server.run(read)


def joined(cluster: Cluster3, server: LiveServer, name: str, token: str) -> Joined:
    plan = join_plan(name, cluster.addresses, Secret(token), pins=(server.pin,))
    return asyncio.run(join(plan, join_options(root=cluster.root / name, certificate_timeout=60.0)))


def user_seen(server: LiveServer, user: KubeconfigUser) -> str:
    """Return the name under which a server knows a credential."""

    async def ask() -> str:
        async with ClusterClient(Cluster("", server.url, server.ca_pem), user, SystemClock()) as client:
            review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
            found = await client.post_path("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
            return str(found["status"]["userInfo"]["username"])

    return asyncio.run(ask())


def account_token(server: LiveServer) -> str:
    async def ask(client: ClusterClient) -> str:
        request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}}
        made = await client.create("serviceaccounts", request, "default", name="default", subresource="token")
        return str(made["status"]["token"])

    return server.run(ask)


def rollover_phase(server: LiveServer) -> str:
    async def read(client: ClusterClient) -> str:
        found: Obj = await client.get("certificateauthorityrollovers", "cluster-ca")
        return str((found.get("status") or {}).get("phase"))

    return server.run(read)


@contextmanager
def cluster_on(root: Path, *store: str) -> Iterator[Cluster3]:
    cluster = Cluster3(root, *store)
    try:
        yield cluster
    finally:
        cluster.stop()


def store_of(tmp_path: Path) -> tuple[str, ...]:
    """Return the flags of an etcd; of a file where there is none."""
    if etcd.MISSING:
        return ("--storage", f"sqlite:{tmp_path}/mooring.db")
    return ("--etcd-servers", etcd.shared().endpoints, "--etcd-prefix", etcd.fresh_prefix())


def test_three_servers_are_one_cluster(tmp_path: Path) -> None:
    with cluster_on(tmp_path, *store_of(tmp_path)) as cluster:
        one, two, three = cluster.servers.values()
        for name in SHARED:
            assert len({(server.data_dir / "pki" / name).read_bytes() for server in (one, two, three)}) == 1
        eventually(lambda: sorted(pod_addresses(one)) == sorted(PODS.values()), one)

        # certificates and tokens of each are accepted by all
        token = one.create_token().reveal()
        member = joined(cluster, one, "worker-1", token)
        assert member.server.removeprefix("https://") in cluster.addresses[1:]
        assert {one.server for one in member.clusters} == {f"https://{address}" for address in cluster.addresses}
        assert member.pair is not None
        node = KubeconfigUser("", certificate_pem=member.pair.certificate_pem, key=member.pair.key_pem)
        account = KubeconfigUser("", token=Secret(account_token(two)))
        for server in (one, two, three):
            assert user_seen(server, node) == "system:node:worker-1"
            assert user_seen(server, account) == "system:serviceaccount:default:default"

        # the server that runs the controllers dies
        leader = cluster.named(holder(one))
        leader.kill()
        left = [server for server in (one, two, three) if server is not leader]
        joined(cluster, left[0], "worker-2", token)
        assert cluster.named(holder(left[1])) in left

        # every server follows a rollover of the CA, and the dead one when it is back
        before = left[0].ca_pem
        for words in (["start"], ["advance"], ["advance", "--force"], ["advance", "--force"]):
            conf = ["--kubeconfig", str(left[1].kubeconfig), "--wait", "30s"]
            done = forkserver.run(["-m", "mooring", "ca", "rollover", *words, *conf], env=dict(os.environ))
            assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        eventually(lambda: rollover_phase(left[0]) == "Done", left[0])
        living = sorted(address for name, address in PODS.items() if name != leader.data_dir.name)
        eventually(lambda: sorted(pod_addresses(left[0])) == living, left[0])
        leader.restart()
        eventually(lambda: len({server.ca_pem for server in (one, two, three)}) == 1, leader)
        assert one.ca_pem != before


REFUSED = {
    "a wrong token": (["--server-token-file", "{wrong}"], "this server token does not open them"),
    "no token": ([], "give --server-token-file"),
}


@pytest.mark.parametrize(("flags", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_server_that_is_refused_says_one_line(tmp_path: Path, flags: list[str], reason: str) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("fedcba9876543210fedcba9876543210")
    wrong.chmod(0o600)
    store = ["--storage", f"sqlite:{tmp_path}/mooring.db", "--bind-address", "127.0.0.1"]

    def init(name: str, *more: str) -> tuple[int, str]:
        command = ["-m", "mooring", "init", "--data-dir", str(tmp_path / name), *store, "--token", "", *more]
        done = forkserver.run(command, env=dict(os.environ))
        return done.returncode, done.stderr.decode()

    assert init("one")[0] == 0
    status, errors = init("two", *(word.format(wrong=wrong) for word in flags))
    assert status == 1
    assert reason in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "two/pki").exists()


@pytest.mark.parametrize(
    "driver", ["sqlite", pytest.param("etcd", marks=pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING))]
)
@pytest.mark.parametrize("place", ["one", "two"])
def test_an_older_program_on_a_newer_store_is_refused_with_one_line(tmp_path: Path, driver: str, place: str) -> None:
    """The directory `one` made the store; `two` would be another server of it."""
    prefix = etcd.fresh_prefix() if driver == "etcd" else ""
    url = f"sqlite:{tmp_path}/mooring.db" if driver == "sqlite" else f"etcd:{etcd.shared().endpoints}"
    store = ["--storage", url, *(["--etcd-prefix", prefix] if prefix else [])]
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)

    def init(name: str) -> tuple[int, str]:
        flags = ["--data-dir", str(tmp_path / name), *store, "--token", "", "--server-token-file", str(token)]
        done = forkserver.run(["-m", "mooring", "init", *flags], env=dict(os.environ))
        return done.returncode, done.stderr.decode()

    async def raise_level() -> int:
        settings = StorageSettings(storage=url, etcd_prefix=prefix) if prefix else StorageSettings(storage=url)
        storage = open_storage(settings.storage_url, SystemClock(), settings=settings)
        await storage.open()
        try:
            entry = await storage.get(FORMAT_LEVEL)
            assert entry is not None
            assert (await storage.range(FORMAT_SERVERS)).entries == ()
            return (await storage.update(FORMAT_LEVEL, b'{"level": 99}', expected=entry.revision)).revision
        finally:
            await storage.close()

    assert init("one")[0] == 0
    asyncio.run(raise_level())
    status, errors = init(place)
    assert status == 1
    assert "written by a newer Mooring (format level 99, this program supports 1 to 2); run the newer version" in errors
    assert errors.count("\n") == 1
