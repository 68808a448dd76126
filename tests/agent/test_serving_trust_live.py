"""Join of servers whose certificate is of another CA, with several addresses, and changes of both."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.agent import clusterfiles, steps
from mooring.agent.daemon import run
from mooring.agent.join import Joined, join
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Progress
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.http.requests import fetch
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509 import names
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery.errors import EndpointDownError
from mooring.trust.discovery.fetch import Polling, cluster_info_url, read_cluster_info
from mooring.trust.discovery.pins import pins_of
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse, Trust
from mooring.trust.joinconfiguration import JoinPlan
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, select_context, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.sharedstore import shared_store
from tests.support.testca import Pair, ThrowawayCA

ONCE = Polling(attempts=1)
COMPANY = ThrowawayCA("company")
ISSUING = COMPANY.intermediate("company issuing")


# Servers die here, or change their certificate, while clients connect. The HTTP library leaves the socket of a TLS handshake that
# fails or is cancelled half-way to the garbage collector, whose warning would fail a test now and then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def sockets_of_broken_handshakes() -> Iterator[None]:
    """Collect them within the test that left them."""
    yield
    gc.collect()


def serving(issuer: Pair) -> Pair:
    """A serving certificate for this machine's loopback, as a company's CA issues it."""
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    return COMPANY.custom(
        "api.company.test",
        issuer=issuer,
        extensions=[
            (x509.SubjectAlternativeName(hosts), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ],
    )


def plan(token: BootstrapToken, name: str, *endpoints: str, ca: bytes) -> JoinPlan:
    pins = tuple(str(pin) for pin in pins_of(ca))
    return join_plan(name, endpoints, Secret(token.reveal()), pins=pins)


def joined(
    wanted: JoinPlan, root: Path, told: list[str] | None = None, on_step: Callable[[str], None] = lambda step: None
) -> Joined:
    def report(progress: Progress) -> None:
        (told if told is not None else []).append(progress.message)
        if progress.seconds is not None:
            on_step(progress.step)

    options = join_options(root=root, polling=ONCE, certificate_timeout=30.0)
    return asyncio.run(join(wanted, options, report=report))


def servers(state: NodeState) -> list[str]:
    return [one.server for one in state.read_clusters()]


def works(state: NodeState) -> bool:
    """Return True when the member's kubeconfig reaches its own Node."""

    async def read() -> Obj:
        config = load(str(state.kubeconfig))
        async with connect(config) as client:
            return await client.get("nodes", name_of(state))

    return bool(asyncio.run(read()))


def name_of(state: NodeState) -> str:
    pair = state.client.read_pair()
    assert pair is not None
    return names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX)


# ── a serving certificate of another CA ──────────────────────────────────────────────────────────────────────────


@dataclass
class Company:
    """Server with a certificate of the company's CA, and its files."""

    server: LiveServer
    root: Path


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    directory = tmp_path_factory.mktemp("company")
    pair, root = serving(ISSUING), directory / "root.crt"
    certificate, key = pair.write(directory, "serving")
    certificate.write_bytes(pair.certificate_pem + ISSUING.certificate_pem)
    root.write_bytes(COMPANY.certificate_pem)
    flags = ("--tls-cert-file", str(certificate), "--tls-private-key-file", str(key), "--root-ca-file", str(root))
    port = free_port()
    server = start_server(directory / "data", *flags, *endpoints(port, 1), port=port)
    yield Company(server, root)
    server.stop()


def test_a_join_keeps_both_cas_apart(company: Company, tmp_path: Path) -> None:
    server, state = company.server, NodeState(tmp_path)
    wanted = plan(server.create_token(), "apart", server.endpoint, ca=COMPANY.certificate_pem)
    assert joined(wanted, tmp_path).request_name
    assert servers(state) == [server.url, "https://127.0.0.1:1"]
    assert {one.ca_pem for one in state.read_clusters()} == {COMPANY.certificate_pem}
    assert state.read_ca() == server.ca_pem
    assert works(state)

    told: list[str] = []
    assert joined(wanted, tmp_path, told).already_member
    assert "nothing to write: the files are up to date" in told


def test_the_pin_of_the_signing_ca_is_none_of_the_server(company: Company, tmp_path: Path) -> None:
    server = company.server
    with pytest.raises(JoinError, match="no CA of the cluster has a pinned public key"):
        joined(plan(server.create_token(), "wrong", server.endpoint, ca=server.ca_pem), tmp_path)


def test_a_token_alone_joins_too(company: Company, tmp_path: Path) -> None:
    given = join_plan(
        "unpinned", (company.server.endpoint,), Secret(company.server.create_token().reveal()),
        discovery_token_unsafe_skip_ca_verification=True,
    )  # fmt: skip
    assert joined(given, tmp_path).request_name
    assert NodeState(tmp_path).read_ca() == company.server.ca_pem


@pytest.mark.parametrize("ca", [COMPANY.certificate_pem, b""], ids=["with the CA in it", "by the machine's roots"])
def test_a_document_joins_too(company: Company, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca: bytes) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(company.root))
    document = tmp_path / "cluster.conf"
    document.write_text(format_kubeconfig(user_kubeconfig(company.server.url, ca, KubeconfigUser("nobody"))))
    token = Secret(company.server.create_token().reveal())
    name = f"document-{len(ca)}"
    given = join_plan(name, token=token, discovery_file=str(document))
    assert joined(given, tmp_path / "root").request_name
    state = NodeState(tmp_path / "root")
    assert state.read_ca() == company.server.ca_pem
    cluster = state.read_cluster()
    assert cluster is not None
    assert cluster.ca_pem == COMPANY.certificate_pem
    assert works(state)


def test_everything_that_verifies_the_server_names_its_ca(company: Company) -> None:
    async def read(client: ClusterClient) -> tuple[Obj, Obj, Obj] | None:
        try:
            return (
                await client.get("configmaps", "cluster-info", "kube-public"),
                await client.get("configmaps", "kube-root-ca.crt", "default"),
                await client.get("configmaps", "extension-apiserver-authentication", "kube-system"),
            )
        except NotFoundError:  # a controller publishes the second one
            return None

    found = eventually(lambda: company.server.run(read), company.server)
    assert found is not None
    info, root, extension = found
    assert parse_kubeconfig(info["data"]["kubeconfig"]).clusters[0].ca_pem == COMPANY.certificate_pem
    assert root["data"]["ca.crt"] == COMPANY.certificate_pem.decode()
    assert extension["data"]["client-ca-file"] == company.server.ca_pem.decode()
    assert (
        select_context(parse_kubeconfig(company.server.kubeconfig.read_bytes())).cluster.ca_pem
        == COMPANY.certificate_pem
    )


def test_kubeadm_finds_one_ca_whichever_entry_it_looks_at(company: Company) -> None:
    """kubeadm takes the server of the entry without a name, and the CA of any entry
    (docs/protocol/discovery-and-join.md#discovery-by-token)."""

    async def read() -> bytes:
        reply = await fetch(
            HttpRequest(Trust(COMPANY.certificate_pem), url=cluster_info_url(company.server.url)), SystemClock()
        )
        assert isinstance(reply, HttpResponse)
        return reply.body

    config = parse_kubeconfig(read_cluster_info("reading", HttpResponse(200, asyncio.run(read())))["kubeconfig"])
    assert [one.name for one in config.clusters] == ["", "127.0.0.1:1"]
    assert {one.ca_pem for one in config.clusters} == {COMPANY.certificate_pem}
    assert (config.users, config.contexts, config.current_context) == ((), (), "")


def test_a_root_of_the_machine_is_found_and_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(ThrowawayCA("of the web").certificate_pem + COMPANY.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    pair = serving(ISSUING)
    certificate, key = pair.write(tmp_path, "serving")
    certificate.write_bytes(pair.certificate_pem + ISSUING.certificate_pem)
    server = start_server(tmp_path / "data", "--tls-cert-file", str(certificate), "--tls-private-key-file", str(key))
    try:
        monkeypatch.delenv("SSL_CERT_FILE")
        wanted = plan(server.create_token(), "web", server.endpoint, ca=COMPANY.certificate_pem)
        assert joined(wanted, tmp_path / "root").request_name
        assert works(NodeState(tmp_path / "root"))
    finally:
        server.stop()


def signing_ca_unpublished(server: LiveServer) -> None:
    """Publish cluster-info without a CA of clients, as kubeadm does, behind a load balancer with a certificate of its own."""

    async def edit(client: ClusterClient) -> None:
        info = await client.get("configmaps", "cluster-info", "kube-public")
        config = parse_kubeconfig(info["data"]["kubeconfig"])
        plain = format_kubeconfig(
            type(config)(clusters=(Cluster("", config.clusters[0].server, config.clusters[0].ca_pem),))
        )
        await client.patch("configmaps", "cluster-info", {"data": {"kubeconfig": plain}}, "kube-public")

    server.run(edit)


def test_a_certificate_of_a_ca_that_is_not_published_is_judged_by_the_server(tmp_path: Path) -> None:
    pair = serving(ISSUING)
    certificate, key = pair.write(tmp_path, "serving")
    certificate.write_bytes(pair.certificate_pem + ISSUING.certificate_pem + COMPANY.certificate_pem)
    server = start_server(tmp_path / "data", "--tls-cert-file", str(certificate), "--tls-private-key-file", str(key))
    try:
        signing_ca_unpublished(server)
        told: list[str] = []
        state = NodeState(tmp_path / "root")
        wanted = plan(server.create_token(), "judged", server.endpoint, ca=COMPANY.certificate_pem)
        assert joined(wanted, tmp_path / "root", told).request_name
        assert any("the server accepts it" in line for line in told)
        assert not state.ca.exists()
        assert works(state)
        assert joined(wanted, tmp_path / "root").already_member
        assert not state.ca.exists()
    finally:
        server.stop()


# ── several addresses ────────────────────────────────────────────────────────────────────────────────────────────


def endpoints(*ports: int) -> tuple[str, ...]:
    return tuple(word for port in ports for word in ("--control-plane-endpoint", f"127.0.0.1:{port}"))


def test_the_address_that_answers_is_used_and_all_are_kept(tmp_path: Path) -> None:
    dead, port = free_port(), free_port()
    server = start_server(tmp_path / "data", *endpoints(dead, port), port=port)
    try:
        admin = parse_kubeconfig(server.kubeconfig.read_bytes())
        assert [one.server for one in admin.clusters] == [f"https://127.0.0.1:{dead}", server.url]
        state = NodeState(tmp_path / "root")
        admin_client = user_kubeconfig(server.url, server.ca_pem, admin.users[0])
        server.kubeconfig.write_text(format_kubeconfig(admin_client))  # the administrator reaches the one that answers
        wanted = plan(server.create_token(), "several", f"127.0.0.1:{dead}", server.endpoint, ca=server.ca_pem)
        assert joined(wanted, tmp_path / "root").server == server.url
        assert servers(state) == [server.url, f"https://127.0.0.1:{dead}"]
        assert works(state)
    finally:
        server.stop()


@pytest.mark.parametrize("step", [steps.DISCOVERY, steps.BOOTSTRAP, steps.REQUEST, steps.FILES])
def test_a_server_that_dies_is_left_for_the_next_until_the_end_of_the_join(tmp_path: Path, step: str) -> None:
    """Two servers of one cluster; the first is killed for good after a step."""
    ports = free_port(), free_port()
    flags = (*shared_store(tmp_path), *endpoints(*ports))
    first, second = (start_server(tmp_path / f"data-{port}", *flags, port=port) for port in ports)
    state = NodeState(tmp_path / "root")
    try:
        wanted = plan(first.create_token(), "survivor", first.endpoint, second.endpoint, ca=first.ca_pem)
        result = joined(wanted, tmp_path / "root", on_step=lambda done: first.kill() if done == step else None)
        assert result.request_name
        assert set(servers(state)) == {first.url, second.url}
        if step != steps.FILES:
            assert servers(state)[0] == second.url
    finally:
        first.stop()
        second.stop()


# ── addresses and CAs that change ────────────────────────────────────────────────────────────────────────────────


def restarted(server: LiveServer, *flags: str) -> None:
    server.flags = flags
    server.restart()


def agent_until(state: NodeState, root: Path, holds: Callable[[], bool]) -> None:
    """Run `mooring agent` without flags until something holds, then end it as a service manager does."""

    async def watch() -> None:
        agent = asyncio.create_task(run(None, join_options(root=root)))
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        await agent

    asyncio.run(watch())


def _follows(state: NodeState, published: set[str]) -> bool:
    return set(servers(state)) == published


@pytest.mark.parametrize("way", ["join", "agent"])
def test_an_address_that_changed_is_followed(tmp_path: Path, way: str) -> None:
    server, root = start_server(tmp_path / "data", "--control-plane-endpoint", "127.0.0.1"), tmp_path / "root"
    state = NodeState(root)
    moved = f"https://localhost:{server.port}"
    try:
        wanted = plan(server.create_token(), "mover", server.endpoint, ca=server.ca_pem)
        joined(wanted, root)
        assert servers(state) == [server.url]
        address = ("--control-plane-endpoint", f"localhost:{server.port}")
        for flags, published in (
            (address, {server.url, moved}),
            ((*address, "--withdraw-endpoint", server.endpoint), {moved}),
        ):
            restarted(server, *flags)
            if way == "join":
                told: list[str] = []
                assert joined(wanted, root, told).server in published
                assert f"wrote {state.kubeconfig}" in told
            else:
                agent_until(state, root, partial(_follows, state, published))
            assert set(servers(state)) == published
            assert works(state)
    finally:
        server.stop()


async def root_of_pods(client: ClusterClient) -> str:
    """kube-root-ca.crt of one namespace, once it has more than one CA."""
    while True:
        found: str = (await client.get("configmaps", "kube-root-ca.crt", "default"))["data"]["ca.crt"]
        if found.count("BEGIN") > 1:
            return found
        await asyncio.sleep(0.05)


def until_published(server: LiveServer, ca_pem: bytes) -> None:
    """Fetch cluster-info without verification until it names these CAs."""

    async def ask() -> None:
        async with asyncio.timeout(30):
            while True:
                reply = await fetch(HttpRequest(UNVERIFIED, url=cluster_info_url(server.url)), SystemClock())
                if isinstance(reply, HttpResponse):
                    text = read_cluster_info("asking", reply)["kubeconfig"]
                    if parse_kubeconfig(text).clusters[0].ca_pem == ca_pem:
                        return
                await asyncio.sleep(0.05)

    asyncio.run(ask())


def test_a_ca_is_changed_under_members_that_joined_with_the_old_one(tmp_path: Path) -> None:
    old, new = ThrowawayCA("old"), ThrowawayCA("new")
    certificate, key = old.server().write(tmp_path, "serving")
    bundle = tmp_path / "root.crt"
    bundle.write_bytes(old.certificate_pem)
    flags = ("--tls-cert-file", str(certificate), "--tls-private-key-file", str(key), "--root-ca-file", str(bundle))
    server, root = start_server(tmp_path / "data", *flags), tmp_path / "root"
    state = NodeState(root)
    try:
        wanted = plan(server.create_token(), "rotated", server.endpoint, ca=old.certificate_pem)
        joined(wanted, root)

        both = old.certificate_pem + new.certificate_pem
        bundle.write_bytes(both)
        until_published(server, both)
        assert server.run(root_of_pods) == both.decode(), "the controller that publishes it has followed"
        agent_until(state, root, lambda: state.read_clusters()[0].ca_pem == both)

        new.server().write(tmp_path, "serving")
        bundle.write_bytes(new.certificate_pem)
        until_published(server, new.certificate_pem)
        assert joined(wanted, root).already_member, "the known CAs verify the server, and the pin is among them"
        assert state.read_clusters()[0].ca_pem == new.certificate_pem
        assert state.read_ca() == server.ca_pem
        assert works(state)
        server.restart()
        assert select_context(parse_kubeconfig(server.kubeconfig.read_bytes())).cluster.ca_pem == new.certificate_pem
    finally:
        server.stop()


def test_a_ca_that_the_old_one_does_not_vouch_for_needs_a_pin(tmp_path: Path) -> None:
    old, new = ThrowawayCA("old"), ThrowawayCA("new")
    certificate, key = old.server().write(tmp_path, "serving")
    bundle = tmp_path / "root.crt"
    bundle.write_bytes(old.certificate_pem)
    flags = ("--tls-cert-file", str(certificate), "--tls-private-key-file", str(key), "--root-ca-file", str(bundle))
    server, root = start_server(tmp_path / "data", *flags), tmp_path / "root"
    state = NodeState(root)
    try:
        token = server.create_token()
        joined(plan(token, "late", server.endpoint, ca=old.certificate_pem), root)
        new.server().write(tmp_path, "serving")
        bundle.write_bytes(new.certificate_pem)
        restarted(server, *flags)

        pair = state.client.read_pair()
        assert pair is not None
        before = state.kubeconfig.read_bytes()
        unpinned = join_plan(
            "late", (server.endpoint,), Secret(token.reveal()), discovery_token_unsafe_skip_ca_verification=True
        )
        with pytest.raises(JoinError, match="a token alone does not vouch for another"):
            joined(unpinned, root)
        assert state.kubeconfig.read_bytes() == before

        assert joined(plan(token, "late", server.endpoint, ca=new.certificate_pem), root).already_member
        assert state.read_clusters()[0].ca_pem == new.certificate_pem
        assert works(state)
    finally:
        server.stop()


def test_what_an_administrator_adds_to_cluster_info_reaches_members_and_outlives_a_restart(tmp_path: Path) -> None:
    server, root = start_server(tmp_path / "data"), tmp_path / "root"
    state, added = NodeState(root), ThrowawayCA("added").certificate_pem
    try:
        wanted = plan(server.create_token(), "edited", server.endpoint, ca=server.ca_pem)
        joined(wanted, root)

        async def edit(client: ClusterClient) -> None:
            info = await client.get("configmaps", "cluster-info", "kube-public")
            config = parse_kubeconfig(info["data"]["kubeconfig"])
            bundle = Cluster("", server.url, config.clusters[0].ca_pem + added)
            text = format_kubeconfig(type(config)(clusters=(bundle,)))
            await client.patch("configmaps", "cluster-info", {"data": {"kubeconfig": text}}, "kube-public")

        server.run(edit)
        server.restart()
        joined(wanted, root)
        assert state.read_clusters()[0].ca_pem == server.ca_pem + added
    finally:
        server.stop()


def test_a_cluster_info_that_cannot_be_read_leaves_the_files_as_they_are(
    live_server: LiveServer, tmp_path: Path
) -> None:
    joined(plan(live_server.create_token(), "unread", live_server.endpoint, ca=live_server.ca_pem), tmp_path)
    state = NodeState(tmp_path)
    state.write_kubeconfig([Cluster("", f"https://127.0.0.1:{free_port()}", live_server.ca_pem)])
    before, pair = state.kubeconfig.read_bytes(), state.client.read_pair()
    assert pair is not None
    with pytest.raises(EndpointDownError):
        asyncio.run(clusterfiles.refresh(state, pair, SystemClock()))
    assert state.kubeconfig.read_bytes() == before
