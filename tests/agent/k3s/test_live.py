"""Join the k3s way to a whole Mooring server: members, restarts without a token, deleted Nodes, and renewals."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import leave, member
from mooring.agent.disk import write
from mooring.agent.k3s.files import AgentFiles, GivenToken
from mooring.agent.k3s.membership import AgentPlan, SupervisedMember, join, obtain
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.pairfiles import Pair
from mooring.agent.steps import JoinError
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import STRATEGIC, ClusterClient, connect
from mooring.client.http.requests import ignore
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import NotFoundError, UnauthorizedError
from mooring.pki.keys import public_key_der
from mooring.pki.x509.names import alternative_names
from mooring.secret import Secret
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from mooring.trust.discovery.fetch import Polling
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.exchanges import KUBELET, WANTED
from mooring.trust.k3s.token import format_token
from mooring.trust.serverlist import new_list
from tests.support import forkserver, reissue
from tests.support.liveserver import LiveServer, start_server
from tests.support.manualclock import HurriedClock
from tests.support.polling import eventually
from tests.support.ports import free_port

GROUP = "system:bootstrappers:k3s:default-node-token"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = start_server(tmp_path_factory.mktemp("k3s") / "server", "--k3s-supervisor")
    yield server
    server.stop()


def server_token(server: LiveServer) -> str:
    return (server.data_dir / "server/token").read_text().strip()


def bootstrap_token(server: LiveServer) -> tuple[str, str]:
    """Create a bootstrap token. Return its id, and the token in k3s's form."""
    token = server.create_token(groups=(GROUP,), signed=False)
    return token.id, format_token(ca_hash(server.ca_pem), token).reveal().decode()


def plan(server: LiveServer, root: Path, name: str, text: str = "") -> AgentPlan:
    token = GivenToken(Secret(text) if text else None)
    settings = K3sJoinSettings(server=(server.url,), node_name=name, root=str(root))
    return AgentPlan(settings=settings, token=token, polling=Polling(interval=0.5, total=20.0))


def joined(plan: AgentPlan) -> SupervisedMember:
    return asyncio.run(join(plan, SystemClock(), lambda progress: None))


def refused(plan: AgentPlan) -> str:
    with pytest.raises(JoinError) as caught:
        asyncio.run(join(plan, HurriedClock(), lambda progress: None))
    return str(caught.value)


async def user_of(kubeconfig: Path) -> Obj:
    async with connect(load(str(kubeconfig))) as client:
        review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
        answer = await client.post_path("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    user: Obj = answer["status"]["userInfo"]
    return user


async def delete_node(client: ClusterClient, name: str) -> None:
    await client.delete("nodes", name)
    while True:
        try:
            await client.get("nodes", name)
        except NotFoundError:
            return


class Unaccepting(ClusterClient):
    """Client of a server that does not accept the certificate of a node."""

    async def get_path(self, path: str) -> Obj:
        raise UnauthorizedError

    async def create(self, *_: Any, **__: Any) -> Obj:
        raise UnauthorizedError


def test_a_node_certificate_that_is_refused_is_told_with_the_setting_that_is_wrong(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "ClusterClient", Unaccepting)
    told = refused(plan(server, tmp_path, "not-accepted", server_token(server)))
    assert "step node: the server does not accept the certificate of system:node:not-accepted" in told
    assert "--client-ca-file" in told


def test_a_machine_joins_with_the_server_token(server: LiveServer, tmp_path: Path) -> None:
    member = joined(plan(server, tmp_path, "with-server-token", server_token(server)))
    node = server.run(lambda client: client.get("nodes", "with-server-token"))
    assert [one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"] == ["True"]
    found = {
        name: asyncio.run(user_of(member.files.directory / f"{name}.kubeconfig"))["username"]
        for name in ("kubelet", "kubeproxy", "k3scontroller")
    }
    assert found == {
        "kubelet": "system:node:with-server-token",
        "kubeproxy": "system:kube-proxy",
        "k3scontroller": "system:k3s-controller",
    }


def test_a_member_starts_again_after_its_token_was_deleted(server: LiveServer, tmp_path: Path) -> None:
    token_id, text = bootstrap_token(server)
    joined(plan(server, tmp_path, "token-deleted", text))
    server.run(lambda client: client.delete("secrets", secret_name(token_id), NAMESPACE))
    joined(plan(server, tmp_path, "token-deleted"))
    joined(plan(server, tmp_path, "token-deleted", text))
    assert "it does not accept the token" in refused(plan(server, tmp_path / "another", "token-gone", text))


def test_after_the_deletion_of_its_node_a_machine_needs_a_valid_token(server: LiveServer, tmp_path: Path) -> None:
    token_id, text = bootstrap_token(server)
    first = joined(plan(server, tmp_path, "node-deleted", text)).files.client.read_pair()
    server.run(lambda client: client.delete("secrets", secret_name(token_id), NAMESPACE))
    server.run(lambda client: delete_node(client, "node-deleted"))
    assert "give a valid token to join again" in refused(plan(server, tmp_path, "node-deleted"))
    assert "it does not accept the token" in refused(plan(server, tmp_path, "node-deleted", text))
    _, other = bootstrap_token(server)
    again = joined(plan(server, tmp_path, "node-deleted", other)).files.client.read_pair()
    assert first is not None
    assert again is not None
    assert first.certificate_pem != again.certificate_pem


def test_another_machine_does_not_get_the_name(server: LiveServer, tmp_path: Path) -> None:
    joined(plan(server, tmp_path / "one", "taken", server_token(server)))
    error = refused(plan(server, tmp_path / "two", "taken", server_token(server)))
    assert str(tmp_path / "two/etc/rancher/node/password") in error
    assert "--with-node-id" in error


def test_each_certificate_is_renewed_as_the_node(server: LiveServer, tmp_path: Path) -> None:
    member = joined(plan(server, tmp_path, "renewing", server_token(server)))

    async def renew() -> None:
        for wanted in WANTED:
            supervisor = member.supervisor(polling=Polling(attempts=1))
            pair = await obtain(supervisor, member.files, wanted, member.identity, SystemClock(), ignore)
            before = member.files.pair(wanted).read_pair()
            assert before is not None
            assert before.certificate_pem != pair.certificate_pem
            member.files.pair(wanted).replace(pair)

    asyncio.run(renew())
    assert asyncio.run(user_of(member.files.directory / "kubelet.kubeconfig"))["username"] == "system:node:renewing"
    assert KUBELET in WANTED


def test_the_command_joins_beats_and_serves_a_kubelet_through_the_load_balancer(
    server: LiveServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(server_token(server))
    program = forkserver.Process(
        [
            "-m", "mooring", "agent", "--server", server.url, "--token-file", str(file), "--root", str(tmp_path), "--node-name",
            "beating", "--lb-server-port", "0", "-v",
        ],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        eventually(lambda: lease_of(server, "beating") is not None)
        kubeconfig = tmp_path / "var/lib/rancher/k3s/agent/kubelet.kubeconfig"
        assert load(str(kubeconfig)).cluster.server != server.url
        assert asyncio.run(user_of(kubeconfig))["username"] == "system:node:beating"
        assert file.read_text() == ""
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 0
        assert program.stderr is not None
        program.stderr.close()


def test_the_command_joins_with_the_configuration_file_of_k3s(server: LiveServer, tmp_path: Path) -> None:
    number = tmp_path.name[-1]  # a second try is another machine
    name, external, later = f"configured{number}", f"203.0.113.4{number}", f"203.0.113.5{number}"
    internal = (f"192.0.2.4{number}", f"2001:db8::4{number}")
    file = tmp_path / "etc/rancher/k3s/config.yaml"
    text = (
        f"server: {server.url}\ntoken: {server_token(server)} # of rack 7\nnode-name: {name}\nlb-server-port: 0\n"
        f"node-ip: {','.join(internal)}\nnode-external-ip: {external}\nnode-external-dns: configured.example.com\n"
        "node-label: [rack=seven]\nnode-taint: ['dedicated=gpu:NoSchedule']\nkubelet-arg: [max-pods=50]\n"
    )
    drop_in = tmp_path / "etc/rancher/k3s/config.yaml.d/10-row.yaml"
    write_private(file, text)
    write_private(drop_in, "node-label+: [row=two]\n")
    with running_agent(tmp_path) as program:
        eventually(lambda: AgentFiles(tmp_path).record.read().node_uid != "")
    assert "ignored keys that do not concern joining: kubelet-arg" in program.said
    assert file.read_text() == text.replace(server_token(server), '""')
    node = get_node(server, name)
    assert node["metadata"]["labels"].items() >= {"rack": "seven", "row": "two"}.items()
    assert node["spec"]["taints"] == [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]
    assert addresses_of(node) == [
        f"InternalIP {internal[0]}",
        f"InternalIP {internal[1]}",
        f"ExternalIP {external}",
        "ExternalDNS configured.example.com",
        f"Hostname {name}",
    ]
    assert served_addresses(tmp_path) == {*internal, external}

    patch = {"metadata": {"labels": {"rack": "eight"}}, "spec": {"taints": None}}
    server.run(lambda client: client.patch("nodes", name, patch, content_type=STRATEGIC))
    write_private(drop_in, f"node-external-ip: {later}\nnode-label: [other=one]\n")
    with running_agent(tmp_path):
        eventually(lambda: f"ExternalIP {later}" in addresses_of(get_node(server, name)))
    node = get_node(server, name)
    assert node["metadata"]["labels"]["rack"] == "eight", (
        "labels and taints are those of the administrator from then on"
    )
    assert "other" not in node["metadata"]["labels"]
    assert "taints" not in node["spec"]
    assert len(addresses_of(node)) == 5
    assert served_addresses(tmp_path) == {*internal, later}


class _Program:
    said = ""


@contextmanager
def running_agent(root: Path) -> Iterator[_Program]:
    """Run the command without a flag but the root. It must end cleanly. `said` is its standard error afterwards."""
    process = forkserver.Process(["-m", "mooring", "agent", "--root", str(root)], stderr=subprocess.PIPE)
    program = _Program()
    try:
        yield program
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        with process.stderr as stderr:
            program.said = stderr.read()


def write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_text(text)


def get_node(server: LiveServer, name: str) -> Obj:
    return server.run(lambda client: client.get("nodes", name))


def addresses_of(node: Obj) -> list[str]:
    return [f"{one['type']} {one['address']}" for one in node["status"]["addresses"]]


def served_addresses(root: Path) -> set[str]:
    """Return the addresses in the serving certificate of a member, without those of loopback."""
    pair = AgentFiles(root).serving.read_pair()
    assert pair is not None
    return {str(address) for address in alternative_names(pair.leaf.extensions).ips if not address.is_loopback}


def lease_of(server: LiveServer, name: str) -> Obj | None:
    async def read(client: ClusterClient) -> Obj | None:
        try:
            return await client.get("leases", name, "kube-node-lease")
        except NotFoundError:
            return None

    return server.run(read)


def test_a_seed_that_is_down_is_passed_over(server: LiveServer, tmp_path: Path) -> None:
    given = plan(server, tmp_path, "seeds", server_token(server))
    down = f"https://127.0.0.1:{free_port()}"
    given = replace(given, settings=replace(given.settings, server=(down, server.url)))
    joined(given)
    joined(replace(given, token=GivenToken()))


def expire(server: LiveServer, files: AgentFiles) -> Pair:
    """Replace the node's certificate on disk by one of the same key that has expired."""
    pair = files.client.read_pair()
    assert pair is not None
    now = SystemClock().now()
    expired = Pair(
        (reissue.signed(server, pair.leaf, now - timedelta(minutes=2), now - timedelta(seconds=1)),), pair.key
    )
    files.client.current.write_bytes(expired.certificate_pem)
    return expired


@pytest.mark.parametrize("text", ["", "not-the-token"], ids=["without a token", "with a token that is refused"])
def test_a_machine_whose_certificate_expired_comes_back(server: LiveServer, tmp_path: Path, text: str) -> None:
    name = f"came-back-{len(text)}"
    joined(plan(server, tmp_path, name, server_token(server)))
    files = AgentFiles(tmp_path)
    old = expire(server, files)
    hashed = f"K10{ca_hash(server.ca_pem)}::server:{text}" if text else ""
    member = asyncio.run(join(plan(server, tmp_path, name, hashed), SystemClock(), lambda progress: None))
    pair = files.client.read_pair()
    assert pair is not None
    assert pair.valid_at(SystemClock().now())
    assert public_key_der(pair.key) != public_key_der(old.key)
    assert not files.client.pending_key.exists()
    assert member.node_name == name
    assert asyncio.run(user_of(files.directory / "kubelet.kubeconfig"))["username"] == f"system:node:{name}"


def test_a_machine_whose_node_was_deleted_does_not_come_back(server: LiveServer, tmp_path: Path) -> None:
    joined(plan(server, tmp_path, "gone-back", server_token(server)))
    expire(server, AgentFiles(tmp_path))
    server.run(lambda client: delete_node(client, "gone-back"))
    told = refused(plan(server, tmp_path, "gone-back"))
    assert "does not let this machine come back with its expired certificate" in told
    assert "--token-file" in told


def test_a_token_lets_a_machine_join_again_whose_certificate_expired_and_whose_node_was_deleted(
    server: LiveServer, tmp_path: Path
) -> None:
    joined(plan(server, tmp_path, "gone-and-back", server_token(server)))
    files = AgentFiles(tmp_path)
    expire(server, files)
    server.run(lambda client: delete_node(client, "gone-and-back"))
    joined(plan(server, tmp_path, "gone-and-back", server_token(server)))
    assert get_node(server, "gone-and-back")["metadata"]["uid"] == files.record.read().node_uid
    for name in ("kubelet", "kubeproxy", "k3scontroller"):
        assert asyncio.run(user_of(files.directory / f"{name}.kubeconfig"))["username"]


def test_a_machine_leaves_by_the_servers_that_it_has_learned(server: LiveServer, tmp_path: Path) -> None:
    """The kubeconfig of its kubelet names a load balancer, which ends with the agent."""
    _, text = bootstrap_token(server)
    joined(plan(server, tmp_path, "parting", text))
    files = AgentFiles(tmp_path)
    files.write_kubeconfigs(f"https://127.0.0.1:{free_port()}")
    write(files.load_balancer, new_list([server.url], b"").encode())
    found = leave.find(tmp_path, "/var/lib/rancher/k3s")
    assert found is not None
    assert (found.node_name, found.server) == ("parting", server.url)
    assert asyncio.run(leave.end(found, SystemClock())) is True
    leave.remove(found)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
