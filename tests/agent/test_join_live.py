"""Join of a real server process: files on disk, and repeated runs."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.agent import certificaterequest, steps
from mooring.agent.join import Joined, join
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Progress
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.pki.keys import generate_key, public_key_der
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import ByFile, JoinPlan
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.token import DEFAULT_GROUPS as K3S_GROUPS
from mooring.trust.k3s.token import format_token
from mooring.trust.kubeconfig import ExecPlugin, Kubeconfig, KubeconfigUser, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support.commandline import process
from tests.support.connectproxy import connect_proxy
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

ONCE = Polling(attempts=1)
EXEC_API = "client.authentication.k8s.io/v1"


def plan_for(server: LiveServer, token: BootstrapToken, name: str, pin: str = "") -> JoinPlan:
    return join_plan(name, (server.endpoint,), Secret(token.reveal()), pins=(pin or server.pin,))


def joined(plan: JoinPlan, root: Path, told: list[Progress] | None = None, **changes: Any) -> Joined:
    chosen: dict[str, Any] = {"polling": ONCE, "certificate_timeout": 30.0} | changes
    options = join_options(root, **chosen)
    return asyncio.run(join(plan, options, report=(told if told is not None else []).append))


def get(server: LiveServer, plural: str, name: str, namespace: str = "") -> Obj:
    async def read(client: ClusterClient) -> Obj:
        return await client.get(plural, name, namespace)

    return server.run(read)


def test_a_machine_that_knows_an_address_a_token_and_a_pin_becomes_a_member(
    live_server: LiveServer, tmp_path: Path
) -> None:
    token = live_server.create_token()
    told: list[Progress] = []
    result = joined(plan_for(live_server, token, "m1"), tmp_path, told)
    assert not result.already_member
    assert [one.step for one in told if one.seconds is not None] == [
        steps.EXISTING, steps.DISCOVERY, steps.EXISTING, steps.NAME, steps.BOOTSTRAP, steps.KEY, steps.REQUEST,
        steps.WAIT, steps.CERTIFICATE, steps.FILES, steps.NODE,
    ]  # fmt: skip
    assert not any(token.secret.reveal().decode() in one.message for one in told)

    state = NodeState(tmp_path)
    assert state.ca.read_bytes() == live_server.ca_pem
    assert state.client.current.is_symlink()
    assert state.client.current.readlink().is_absolute()
    assert not state.pending_key.exists()
    assert not state.bootstrap.exists()
    for path in (state.client.current.resolve(), state.kubeconfig):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.ca.stat().st_mode) == 0o644

    async def as_the_node() -> Obj:
        async with connect(load(str(state.kubeconfig))) as client:
            return await client.get("nodes", "m1")

    node = asyncio.run(as_the_node())
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "m1"
    assert [one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"] == ["True"]


def test_a_token_of_k3s_format_joins_kubeadms_way(live_server: LiveServer, tmp_path: Path) -> None:
    """Its group has the rights that kubeadm's has, and its hash is the pin."""
    token = live_server.create_token(groups=K3S_GROUPS)
    whole = format_token(ca_hash(live_server.ca_pem), token)
    plan = join_plan("k3s-1", (live_server.endpoint,), whole)
    assert not joined(plan, tmp_path).already_member
    assert joined(plan, tmp_path).already_member
    assert get(live_server, "nodes", "k3s-1")["metadata"]["name"] == "k3s-1"

    other = format_token("ab" * 32, token)
    with pytest.raises(
        JoinError, match=f"token CA hash does not match .*: {'ab' * 32} != {ca_hash(live_server.ca_pem)}; "
    ):
        joined(join_plan("k3s-2", (live_server.endpoint,), other), tmp_path / "other")


def test_a_lifetime_that_was_chosen_is_asked_for_and_remembered(live_server: LiveServer, tmp_path: Path) -> None:
    plan = plan_for(live_server, live_server.create_token(), "brief")
    result = joined(plan, tmp_path, expiration_seconds=7200)
    assert result.pair is not None
    left = result.pair.leaf.not_valid_after_utc - SystemClock().now()
    assert timedelta(minutes=110) < left <= timedelta(minutes=120)
    assert get(live_server, "certificatesigningrequests", result.request_name)["spec"]["expirationSeconds"] == 7200
    assert result.files.record.read().expiration_seconds == 7200


def test_both_addresses_of_a_machine_reach_its_node_and_are_remembered(live_server: LiveServer, tmp_path: Path) -> None:
    def addresses() -> list[str]:
        return [one["address"] for one in get(live_server, "nodes", "dual")["status"]["addresses"]]

    plan = plan_for(live_server, live_server.create_token(), "dual")
    joined(plan, tmp_path)
    (single, _) = addresses()
    joined(plan, tmp_path, node_ip=("2001:db8::17", "192.0.2.17"))
    assert addresses() == ["2001:db8::17", "192.0.2.17", "dual"]
    joined(plan, tmp_path)
    assert addresses() == ["2001:db8::17", "192.0.2.17", "dual"]
    joined(plan, tmp_path, node_ip=(single,))
    assert addresses() == [single, "dual"]


def test_discovery_alone_leaves_the_certificate_to_a_kubelet(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    result = joined(plan_for(live_server, token, "bare"), tmp_path, discover_only=True)
    state = result.files
    assert result.pair is None
    assert state.ca.read_bytes() == live_server.ca_pem
    selected = load(str(state.bootstrap))
    assert selected.user.token is not None
    assert selected.user.token.reveal().decode() == token.reveal()
    assert stat.S_IMODE(state.bootstrap.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["bootstrap-kubelet.conf", "ca.crt"]

    joined(plan_for(live_server, token, "bare"), tmp_path)
    again = joined(plan_for(live_server, token, "bare"), tmp_path, discover_only=True)
    assert again.already_member
    assert not state.bootstrap.exists()


def test_discovery_alone_writes_the_way_that_has_responded(live_server: LiveServer, tmp_path: Path) -> None:
    document = tmp_path / "discovery.conf"
    nowhere = replace(load(str(live_server.kubeconfig)).cluster, name="", server="https://127.0.0.1:9", extensions=())
    named = replace(nowhere, name=live_server.endpoint, server=live_server.url, tls_server_name="localhost")
    document.write_text(format_kubeconfig(Kubeconfig((nowhere, named))))
    plan = JoinPlan(ByFile(str(document)), live_server.create_token(), "other-name", False)
    said: list[str] = []
    options = join_options(tmp_path / "root", discover_only=True, polling=Polling(attempts=1))
    result = asyncio.run(join(plan, options, report=lambda progress: said.append(progress.message)))
    assert result.server == live_server.url
    assert load(str(result.files.bootstrap)).cluster == replace(named, name="kubernetes")
    assert any("no tls-server-name or proxy-url" in line for line in said)


def test_a_pin_counts_more_than_a_ca_that_was_written_by_hand(live_server: LiveServer, tmp_path: Path) -> None:
    plan = plan_for(live_server, live_server.create_token(), "by-hand")
    state = joined(plan, tmp_path).files
    (known,) = state.read_clusters()
    state.write_kubeconfig(
        [replace(known, ca_pem=ThrowawayCA().certificate_pem, tls_server_name="localhost")], state.read_base()
    )
    assert joined(plan, tmp_path).already_member
    assert state.read_clusters() == (replace(known, tls_server_name="localhost"),)


def test_joining_again_is_safe_even_when_the_token_is_gone(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    plan = plan_for(live_server, token, "m2")
    first = joined(plan, tmp_path)
    live_server.run(lambda client: client.delete("secrets", f"bootstrap-token-{token.id}", "kube-system"))
    second = joined(plan, tmp_path)
    assert second.already_member
    assert first.pair is not None
    assert second.pair is not None
    assert second.pair.leaf == first.pair.leaf


def test_a_dry_run_writes_nothing_and_asks_for_nothing(live_server: LiveServer, tmp_path: Path) -> None:
    told: list[Progress] = []
    plan = plan_for(live_server, live_server.create_token(), "m3")
    result = joined(plan, tmp_path, told, dry_run=True)
    assert any("kubelet.conf" in line for line in result.planned)
    assert [one.message for one in told if one.kept] == [f"would {line}" for line in result.planned]
    assert list(tmp_path.iterdir()) == []


def document(server: LiveServer, token: BootstrapToken | None = None) -> bytes:
    """A discovery document, with the token as its credentials when given."""
    user = KubeconfigUser("bootstrap", token=Secret(token.reveal()) if token else None)
    return format_kubeconfig(user_kubeconfig(server.url, server.ca_pem, user)).encode()


def test_a_document_and_a_token_join_too(live_server: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "discovery.conf"
    path.write_bytes(document(live_server))
    token = Secret(live_server.create_token().reveal())
    result = joined(join_plan("f1", token=token, discovery_file=str(path)), tmp_path / "root")
    assert result.request_name
    again = join_plan("f1", token=token, discovery_file="-")
    second = joined(again, tmp_path / "root", read_stdin=lambda: document(live_server))
    assert second.already_member


def test_files_that_a_document_names_are_looked_for_beside_it(live_server: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "discovery.conf"
    config = user_kubeconfig(live_server.url, b"", KubeconfigUser("bootstrap"))
    path.write_text(format_kubeconfig(replace(config, clusters=(replace(config.clusters[0], ca_file="ca.crt"),))))
    plan = join_plan("f0", token=Secret(live_server.create_token().reveal()), discovery_file=str(path))
    with pytest.raises(JoinError) as caught:
        joined(plan, tmp_path / "root")
    assert str(caught.value) == (
        f'join failed at step discovery: reading the discovery document (step 1): certificate-authority "{tmp_path}/ca.crt" cannot '
        "be read: No such file or directory; correct the discovery document, or give another"
    )
    (tmp_path / "ca.crt").write_bytes(live_server.ca_pem)
    assert joined(plan, tmp_path / "root").request_name


def test_a_program_that_a_document_names_is_the_one_beside_it(
    live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {"token": live_server.create_token().reveal()}
    credential = json.dumps({"kind": "ExecCredential", "apiVersion": EXEC_API, "status": status})
    for directory, output in (("beside", credential), ("current", "run from the current directory")):
        program = tmp_path / directory / "bin/get-token"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho '{output}'\n")
        program.chmod(0o755)
    path = tmp_path / "beside/discovery.conf"
    user = KubeconfigUser("bootstrap", exec=ExecPlugin("bin/get-token", EXEC_API, interactive_mode="Never"))
    path.write_text(format_kubeconfig(user_kubeconfig(live_server.url, live_server.ca_pem, user)))
    monkeypatch.chdir(tmp_path / "current")
    plan = join_plan("f4", discovery_file=str(path), allow_discovery_credentials=True)
    assert joined(plan, tmp_path / "root").request_name


def test_credentials_of_a_document_ask_only_when_they_were_allowed(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    given = join_plan("f2", discovery_file="-", allow_discovery_credentials=True)
    result = joined(given, tmp_path, read_stdin=lambda: document(live_server, token))
    assert result.request_name
    refused = join_plan("f3", discovery_file="-", token=Secret(token.reveal()))
    with pytest.raises(JoinError) as caught:
        joined(refused, tmp_path / "other", read_stdin=lambda: document(live_server, token))
    assert str(caught.value) == (
        "join failed at step discovery: reading the discovery document (step 1): the discovery document carries client "
        'credentials (user "bootstrap"); remove them from it, or accept them with --allow-discovery-credentials'
    )
    with pytest.raises(JoinError, match=r"the discovery document carries no credentials to ask for a certificate with"):
        joined(given, tmp_path / "third", read_stdin=lambda: document(live_server))


@pytest.mark.parametrize("step", [steps.KEY, steps.REQUEST, steps.WAIT, steps.CERTIFICATE, steps.FILES])
def test_a_join_that_dies_after_a_step_goes_on_with_the_same_key(
    live_server: LiveServer, tmp_path: Path, step: str
) -> None:
    plan = plan_for(live_server, live_server.create_token(), f"dies-after-{step}")

    def die(progress: Progress) -> None:
        if progress.step == step and progress.seconds is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(join(plan, join_options(root=tmp_path, polling=ONCE), report=die))
    state = NodeState(tmp_path)
    pending = state.read_pending_key() or (pair.key if (pair := state.client.read_pair()) else None)
    result = joined(plan, tmp_path)
    assert pending is not None
    assert result.pair is not None
    assert public_key_der(result.pair.key) == public_key_der(pending)
    assert get(live_server, "nodes", plan.node_name)
    assert not state.bootstrap.exists()
    assert not state.pending_key.exists()


def test_a_lost_kubelet_conf_is_written_again(live_server: LiveServer, tmp_path: Path) -> None:
    plan = plan_for(live_server, live_server.create_token(), "lost")
    joined(plan, tmp_path)
    state = NodeState(tmp_path)
    state.kubeconfig.unlink()
    assert joined(plan, tmp_path, dry_run=True).already_member
    assert not state.kubeconfig.exists()
    assert joined(plan, tmp_path).already_member
    assert state.kubeconfig.exists()


def test_a_certificate_of_another_name_is_told(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    joined(plan_for(live_server, token, "first"), tmp_path)
    with pytest.raises(JoinError) as caught:
        joined(plan_for(live_server, token, "second"), tmp_path)
    state = NodeState(tmp_path)
    assert str(caught.value) == (
        f'join failed at step existing: {state.client.current} is a valid certificate of "system:node:first", but this join is '
        f'for "system:node:second"; give --node-name first, or end that membership with mooring leave first'
    )


def test_a_certificate_of_another_cluster_is_told(live_server: LiveServer, tmp_path: Path) -> None:
    state, foreign = NodeState(tmp_path), ThrowawayCA().node("m9")
    state.client.write_pair(Pair((foreign.certificate,), foreign.key), SystemClock().now())
    with pytest.raises(JoinError) as caught:
        joined(plan_for(live_server, live_server.create_token(), "m9"), tmp_path)
    assert str(caught.value) == (
        f"join failed at step existing: {state.client.current} is a valid certificate of another cluster; if this machine shall "
        f"leave that cluster, remove {state.ca}, {state.kubeconfig} and {state.certificates}, then join again"
    )


def test_an_expired_certificate_is_replaced(live_server: LiveServer, tmp_path: Path) -> None:
    state, ca = NodeState(tmp_path), ThrowawayCA()
    made = ca.custom("system:node:late", not_after=SystemClock().now() - timedelta(minutes=1))
    state.client.write_pair(Pair((made.certificate,), made.key), SystemClock().now() - timedelta(days=1))
    assert joined(plan_for(live_server, live_server.create_token(), "late"), tmp_path).request_name


def test_a_request_that_cannot_be_taken_up_is_asked_for_with_a_new_key(live_server: LiveServer, tmp_path: Path) -> None:
    plan = plan_for(live_server, live_server.create_token(), "squatted")
    key, state = generate_key(), NodeState(tmp_path)
    state.write_pending_key(key)
    made = certificaterequest.node_request(key, "squatted")
    theirs = build_request(generate_key(), "system:node:squatter", ("system:nodes",))
    squatted = certificaterequest.NodeRequest(made.name, theirs, made.usages).obj()
    live_server.run(lambda client: client.create(certificaterequest.PLURAL, squatted))
    told: list[Progress] = []
    result = joined(plan, tmp_path, told)
    assert result.request_name not in ("", made.name)
    assert any("cannot be taken up" in one.message and "asking with a new key" in one.message for one in told)


def test_a_machine_with_a_lost_key_gets_its_name_with_a_token_for_it(live_server: LiveServer, tmp_path: Path) -> None:
    first = live_server.create_token()
    asyncio.run(
        join(plan_for(live_server, first, "keyless"), join_options(root=tmp_path / "old", register_node="none"))
    )
    root = tmp_path / "new"
    root.mkdir()
    with pytest.raises(JoinError, match="after kubectl delete nodeidentity/keyless csr/node-csr-"):
        asyncio.run(
            join(
                plan_for(live_server, first, "keyless"),
                join_options(root=root, register_node="none", certificate_timeout=0.5),
            )
        )
    named = live_server.create_token()
    changed = {"metadata": {"annotations": {"mooring.dev/node-name": "keyless"}}}
    live_server.run(lambda client: client.patch("secrets", f"bootstrap-token-{named.id}", changed, "kube-system"))
    told: list[Progress] = []
    asyncio.run(
        join(plan_for(live_server, named, "keyless"), join_options(root=root, register_node="none"), report=told.append)
    )
    assert any(
        "it waits for a person, and was made with another token; asking with a new key" in one.message for one in told
    )


@pytest.mark.parametrize("step", [steps.BOOTSTRAP, steps.REQUEST, steps.FILES])
def test_a_server_that_dies_and_comes_back_does_not_fail_a_join(
    live_server: LiveServer, tmp_path: Path, step: str
) -> None:
    plan = plan_for(live_server, live_server.create_token(), f"patient-{step}")
    restarts: list[threading.Thread] = []

    def kill(progress: Progress) -> None:
        if progress.step == step and progress.seconds is not None:
            live_server.kill()
            restarts.append(threading.Thread(target=live_server.restart))
            restarts[0].start()

    try:
        result = asyncio.run(join(plan, join_options(root=tmp_path, polling=ONCE), report=kill))
    finally:
        for restart in restarts:
            restart.join()
    assert result.request_name
    assert get(live_server, "nodes", plan.node_name)


def test_a_machine_joins_and_stays_fresh_by_a_proxy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the server resolves for the proxy only: a step that connects directly fails."""
    port = free_port()
    with connect_proxy(port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,fd00::/8,*.example.com,.test.")
        server = start_server(tmp_path / "server", "--control-plane-endpoint", f"proxied.test:{port}", port=port)
        try:
            plan = join_plan(
                "m1", (f"proxied.test:{port}",), Secret(server.create_token().reveal()), pins=(server.pin,)
            )
            before = len(proxy.targets)
            assert not joined(plan, tmp_path / "m1").already_member
            assert len(proxy.targets) > before + 2
            assert joined(plan, tmp_path / "m1").already_member
            addresses = get(server, "nodes", "m1")["status"]["addresses"]
            assert {"type": "Hostname", "address": "m1"} in addresses
            assert all(one["address"] for one in addresses)
        finally:
            server.stop()
        assert set(proxy.targets) == {f"proxied.test:{port}"}


def test_the_user_data_of_the_page_joins_a_machine_at_its_first_boot(live_server: LiveServer, tmp_path: Path) -> None:
    """docs/join-a-machine.md#at-the-first-boot-by-cloud-init, without the service, which needs systemd."""
    page = (Path(__file__).parents[2] / "docs/join-a-machine.md").read_text()
    user_data = yaml.safe_load(page.partition("```yaml\n#cloud-config\n")[2].partition("```")[0])
    (file,), (command,) = user_data["write_files"], user_data["runcmd"]
    content = file["content"]
    for documented, own in (
        ("192.0.2.10:6443", live_server.endpoint),
        ("abcdef.0123456789abcdef", live_server.create_token().reveal()),
        ("sha256:ba8c4368cb45807d42cc759512970f8fa0fc4821275b0dfff960d5d91a94f5d8", live_server.pin),
    ):
        assert documented in content
        content = content.replace(documented, own)
    path = tmp_path / file["path"].lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    words = command.removeprefix("mooring ").removesuffix(" --service").split()
    path.chmod(0o644)
    refused = process(*words, "--root", str(tmp_path), "--node-name", "boot")
    assert (refused.code, refused.out) == (1, "")
    assert f'run chmod 600 {path}, because it holds the secret "token"' in refused.err
    path.chmod(int(file["permissions"], 8))
    assert process(*words, "--root", str(tmp_path), "--node-name", "boot").code == 0
    assert get(live_server, "nodes", "boot")["metadata"]["name"] == "boot"
