"""Join through a simulated supervisor: its requests in order, its files, and memberships that go on or have ended."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mooring.agent import leave, registration
from mooring.agent.k3s.files import GivenToken
from mooring.agent.k3s.membership import AgentPlan, SupervisedMember, join
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.steps import JoinError, Progress
from mooring.client.kubeconfigfiles import load
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509.names import alternative_names
from mooring.secret import Secret
from mooring.trust.discovery.fetch import Polling
from mooring.trust.k3s import identity
from mooring.trust.k3s.exchanges import BY_ROOTS, WANTED
from tests.support.manualclock import HurriedClock
from tests.support.peer import http_peer
from tests.support.ports import free_port
from tests.support.supervisorpeer import BOOTSTRAP, PASSWORD, Answer, Asked, SupervisorPeer, supervisor_peer
from tests.support.testca import ThrowawayCA

ONCE = Polling(attempts=1)
NODE = "system:node:worker"
TRUST = ["GET /cacerts -"] * 3
READS = [f"GET {path} " for path in (identity.CONFIG, identity.CLIENT_CA, identity.SERVER_CA)]
REQUESTS = [f"POST {one.path} " for one in WANTED]


@pytest.fixture
def peer() -> Iterator[SupervisorPeer]:
    with supervisor_peer() as peer:
        yield peer


def plan(peer: SupervisorPeer, root: Path, text: str | None = None, **more: object) -> AgentPlan:
    settings = K3sJoinSettings(
        server=(peer.url,), node_name="worker", root=str(root), node_ip=("192.0.2.7",), register_node=registration.NONE
    )
    given = AgentPlan(settings=settings, token=GivenToken(Secret(text) if text else None), polling=ONCE)
    own = {name: more.pop(name) for name in ("token", "polling") if name in more}
    return replace(given, settings=replace(settings, **more), **own)  # type: ignore[arg-type]  # fields by name


def joined(plan: AgentPlan, report: list[Progress] | None = None) -> SupervisedMember:
    told = report if report is not None else []
    return asyncio.run(join(plan, HurriedClock(), told.append))


def refused(plan: AgentPlan) -> str:
    with pytest.raises(JoinError) as caught:
        joined(plan)
    return str(caught.value)


def fingerprints(member: SupervisedMember) -> dict[str, str]:
    found = {name: files.read_pair() for name, files in member.files.pairs.items()}
    return {name: public_key_fingerprint(pair.key) for name, pair in found.items() if pair is not None}


def test_a_join_sends_the_requests_of_a_k3s_agent_in_its_order(peer: SupervisorPeer, tmp_path: Path) -> None:
    joined(plan(peer, tmp_path, peer.token))
    credential = [*(f"{one}basic" for one in (*READS, *REQUESTS[:2])), *(f"{one}{NODE}" for one in REQUESTS[2:])]
    assert peer.lines == [*TRUST[1:], *credential, f"GET {identity.APISERVERS} {NODE}", f"GET {identity.READYZ} {NODE}"]


def test_the_node_is_named_with_its_password_and_addresses_where_k3s_does_so(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    joined(plan(peer, tmp_path, peer.token))
    password = (tmp_path / "etc/rancher/node/password").read_text().strip()
    assert len(bytes.fromhex(password)) == 16
    posted = [one for one in peer.asked if one.method == "POST"]
    assert [(one.node_name, one.node_password, one.node_ip) for one in posted] == [
        ("worker", password, "192.0.2.7"),
        ("worker", password, "192.0.2.7"),
        ("", "", ""),
        ("", "", ""),
    ]


@pytest.mark.parametrize("kept", ["A1", "a" * 240, "_"])
def test_a_kept_id_that_no_name_can_have_is_refused_before_anything_is_asked(
    peer: SupervisorPeer, tmp_path: Path, kept: str
) -> None:
    file = tmp_path / "etc/rancher/node/id"
    file.parent.mkdir(parents=True)
    file.write_text(kept)
    assert f"{file} does not hold an id of 8 digits" in refused(plan(peer, tmp_path, peer.token, with_node_id=True))
    assert peer.asked == []


def test_the_files_are_those_of_a_k3s_agent_and_only_for_their_owner(peer: SupervisorPeer, tmp_path: Path) -> None:
    member = joined(plan(peer, tmp_path, peer.token, with_node_id=True), [])
    agent = tmp_path / "var/lib/rancher/k3s/agent"
    found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    names = ["serving-kubelet", "client-kubelet", "client-kube-proxy", "client-k3s-controller"]
    assert set(found) == {
        "etc/rancher/node/password",
        "etc/rancher/node/id",
        *(f"var/lib/rancher/k3s/agent/{name}.{end}" for name in names for end in ("crt", "key")),
        *(f"var/lib/rancher/k3s/agent/{name}.kubeconfig" for name in ("kubelet", "kubeproxy", "k3scontroller")),
        *(f"var/lib/rancher/k3s/agent/{name}-ca.crt" for name in ("client", "server")),
        "var/lib/rancher/k3s/agent/etc/mooring-agent.json",
    }
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}
    assert modes.pop("etc/rancher/node/id") == 0o644
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(agent.stat().st_mode) == 0o700
    assert member.node_name == f"worker-{found['etc/rancher/node/id'].read_text().strip()}"
    assert member.files.exposures() == []


def test_kubeconfigs_name_the_load_balancer_and_files(peer: SupervisorPeer, tmp_path: Path) -> None:
    given = plan(peer, tmp_path, peer.token)
    balancer = f"https://127.0.0.1:{free_port()}"
    asyncio.run(join(given, HurriedClock(), lambda progress: None, (), balancer))
    agent = given.files().directory
    for name, pair in (
        ("kubelet", "client-kubelet"),
        ("kubeproxy", "client-kube-proxy"),
        ("k3scontroller", "client-k3s-controller"),
    ):
        selected = load(str(agent / f"{name}.kubeconfig"))
        assert selected.cluster.server == balancer
        assert selected.cluster.ca_file == str(agent / "server-ca.crt")
        assert selected.user.certificate_file == str(agent / f"{pair}.crt")
        assert selected.user.key_file == str(agent / f"{pair}.key")


def test_kubeconfigs_name_no_load_balancer_behind_which_a_server_does_not_verify(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    """A certificate of the server's own, without 127.0.0.1, verifies at its name alone."""
    given, said = plan(peer, tmp_path, peer.token), list[Progress]()
    with http_peer(pair=peer.ca.server("api.test")) as balancer:
        member = asyncio.run(join(given, HurriedClock(), said.append, local_url=balancer.url))
    cluster = load(str(member.files.kubeconfig)).cluster
    assert (cluster.server, cluster.ca_file) == (peer.url, str(member.files.server_ca))
    assert any("name the server itself, not the load balancer" in one.message for one in said)
    asyncio.run(join(given, HurriedClock(), said.append, local_url=peer.url.replace("127.0.0.1", "localhost")))
    assert load(str(member.files.kubeconfig)).cluster.server == peer.url.replace("127.0.0.1", "localhost")


def test_without_a_load_balancer_kubeconfigs_name_the_server(peer: SupervisorPeer, tmp_path: Path) -> None:
    given = plan(peer, tmp_path, peer.bootstrap_token)
    joined(given)
    assert load(str(given.files().directory / "kubelet.kubeconfig")).cluster.server == peer.url


def test_a_bootstrap_token_is_a_bearer_token(peer: SupervisorPeer, tmp_path: Path) -> None:
    joined(plan(peer, tmp_path, peer.bootstrap_token))
    assert peer.lines[2] == f"GET {identity.CONFIG} bearer"
    assert peer.asked[2].authorization == f"Bearer {BOOTSTRAP}"


# ── members ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_member_starts_again_without_a_token_and_asks_for_no_certificate(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    first = fingerprints(joined(plan(peer, tmp_path, peer.token)))
    peer.asked.clear()
    peer.tokens.clear()
    assert fingerprints(joined(plan(peer, tmp_path))) == first
    assert peer.lines == [
        f"GET /api/v1/nodes/worker {NODE}",
        *(f"{one}{NODE}" for one in READS),
        f"GET {identity.APISERVERS} {NODE}",
        f"GET {identity.READYZ} {NODE}",
    ]


def test_a_member_with_a_token_uses_its_certificate_alone(peer: SupervisorPeer, tmp_path: Path) -> None:
    given = plan(peer, tmp_path, peer.token)
    joined(given)
    peer.asked.clear()
    joined(given)
    assert {one.authorization for one in peer.asked} == {""}


def test_without_a_certificate_a_token_is_needed(peer: SupervisorPeer, tmp_path: Path) -> None:
    assert refused(plan(peer, tmp_path)) == (
        "join failed at step existing: --token is required: this machine has no valid client-kubelet certificate; give "
        "--token-file, --token or K3S_TOKEN"
    )
    assert peer.lines == []


def test_a_deleted_node_is_refused_without_a_token_and_joins_anew_with_one(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    first = fingerprints(joined(plan(peer, tmp_path, peer.token)))
    peer.deleted_nodes.add("worker")
    error = refused(plan(peer, tmp_path))
    assert "the server rejects the certificate of system:node:worker" in error
    assert "give a valid token to join again" in error
    peer.passwords.clear()  # the Secret of the node's password is deleted with the Node
    assert "it does not accept the token" in refused(plan(peer, tmp_path, "abcdef.aaaaaaaaaaaaaaaa"))
    peer.issued.clear()
    again = joined(plan(peer, tmp_path, peer.bootstrap_token))
    assert len(peer.issued) == len(WANTED)
    assert not set(fingerprints(again).values()) & set(first.values()), "the keys are new"


def test_a_certificate_that_only_the_supervisor_refuses_gives_way_to_the_token(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    first = fingerprints(joined(plan(peer, tmp_path, peer.token)))

    def supervisor_alone_refuses(asked: Asked) -> Answer | None:
        return (401, b"") if asked.user and asked.path == identity.CONFIG else None

    peer.override = supervisor_alone_refuses
    assert "it does not accept the certificate of this machine" in refused(plan(peer, tmp_path))
    peer.asked.clear()
    again = fingerprints(joined(plan(peer, tmp_path, peer.token)))
    assert peer.lines[1:3] == [f"GET {identity.CONFIG} {NODE}", f"GET {identity.CONFIG} basic"]
    assert not set(again.values()) & set(first.values())


def test_the_certificate_of_another_name_is_not_used(peer: SupervisorPeer, tmp_path: Path) -> None:
    joined(plan(peer, tmp_path, peer.token))
    said = refused(plan(peer, tmp_path, node_name="other"))
    assert (
        '--token is required: this machine joined as "worker", not "other": give --node-name worker, or run mooring leave first'
        in said
    )
    peer.asked.clear()
    joined(plan(peer, tmp_path, peer.token, node_name="other"))
    assert peer.lines[0] == f"GET {identity.CONFIG} basic"


def test_only_what_is_missing_is_asked_for(peer: SupervisorPeer, tmp_path: Path) -> None:
    given = plan(peer, tmp_path, peer.token)
    member = joined(given)
    member.files.pairs["client-kube-proxy"].current.unlink()
    peer.asked.clear()
    joined(given)
    assert [one for one in peer.lines if one.startswith("POST")] == [f"POST {identity.CLIENT_KUBE_PROXY} {NODE}"]


@pytest.mark.parametrize("setting", ["node_ip", "node_external_ip"])
def test_a_serving_certificate_without_an_address_that_is_given_now_is_asked_for_again(
    peer: SupervisorPeer, tmp_path: Path, setting: str
) -> None:
    """A dual-stack machine of before has one address in it; k3s asks for all certificates at each start."""
    joined(plan(peer, tmp_path, peer.token))
    given = plan(peer, tmp_path, peer.token, **{setting: ("192.0.2.7", "2001:db8::7")})
    for asked in ([f"POST {identity.SERVING_KUBELET} {NODE}"], []):
        peer.asked.clear()
        pair = joined(given).files.pairs["serving-kubelet"].read_pair()
        assert [one for one in peer.lines if one.startswith("POST")] == asked
        assert pair is not None
        assert [str(one) for one in alternative_names(pair.leaf.extensions).ips][-1] == "2001:db8::7"


def test_an_expired_certificate_needs_the_token(peer: SupervisorPeer, tmp_path: Path) -> None:
    peer.lifetime = timedelta(seconds=-1)
    assert "the certificate is valid from" in refused(plan(peer, tmp_path, peer.token))
    assert "--token is required" in refused(plan(peer, tmp_path))
    peer.lifetime = timedelta(days=1)
    joined(plan(peer, tmp_path, peer.token))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("client-kubelet.crt", b"", "the text holds no CERTIFICATE PEM block"),
        ("client-kubelet.key", b"", "the text holds no private key"),
        ("client-kubelet.key", None, "no such file or directory"),
        ("client-kubelet.key", b"another", "the key is that of another certificate"),
    ],
    ids=["an empty certificate", "an empty key", "no key", "another key"],
)
def test_a_file_of_a_membership_that_cannot_be_used_is_named(
    peer: SupervisorPeer, tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    member = joined(plan(peer, tmp_path, peer.token))
    path = member.files.directory / name
    path.unlink()
    if content is not None:
        path.write_bytes((member.files.directory / "serving-kubelet.key").read_bytes() if content else b"")
    said = refused(plan(peer, tmp_path))
    assert f"--token is required: {path}" in said
    assert reason in said


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_secret_is_sent_to_a_server_with_another_ca_than_the_token_names(tmp_path: Path) -> None:
    with supervisor_peer(ThrowawayCA("somebody else")) as other, supervisor_peer() as right:
        error = refused(plan(other, tmp_path, right.token))
        assert "token CA hash does not match the Cluster CA certificate hash" in error
        assert other.lines == ["GET /cacerts -"]


def test_a_token_without_a_hash_trusts_on_first_use_with_a_warning(peer: SupervisorPeer, tmp_path: Path) -> None:
    told: list[Progress] = []
    joined(plan(peer, tmp_path, PASSWORD), told)
    assert [one.message for one in told if one.kept and "trusted on first use" in one.message]


def test_a_server_that_is_not_the_one_of_the_first_use_is_refused_later(tmp_path: Path) -> None:
    with supervisor_peer() as right, supervisor_peer(ThrowawayCA("another")) as other:
        joined(plan(right, tmp_path, PASSWORD))
        error = refused(plan(other, tmp_path, PASSWORD))
        assert "does not verify under the CA that this machine keeps" in error
        assert other.lines == []


def test_a_replaced_ca_is_trusted_when_the_token_names_it(tmp_path: Path) -> None:
    with supervisor_peer() as before, supervisor_peer(ThrowawayCA("the next")) as after:
        joined(plan(before, tmp_path, before.token))
        joined(plan(after, tmp_path, after.token))
        assert after.posted(identity.CLIENT_KUBELET)


def test_a_server_that_publishes_a_ca_which_does_not_verify_it_changes_nothing(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    member = joined(plan(peer, tmp_path, peer.token))
    other = ThrowawayCA("an operator's mistake")
    peer.override = lambda asked: (200, other.certificate_pem) if asked.path == identity.SERVER_CA else None
    assert "CA cert validation failed" in refused(plan(peer, tmp_path))
    assert member.files.read_server_ca() == peer.ca.certificate_pem


def test_a_member_without_its_ca_does_not_fall_back_to_the_roots_of_the_machine(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    member = joined(plan(peer, tmp_path, peer.token))
    member.files.server_ca.unlink()
    with pytest.raises(ConfigError, match="restore it, or join again with a whole token"):
        assert member.trust == BY_ROOTS


LOST = pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 600, id="blocks of a file system"),
        pytest.param(b"-----BEGIN CERTIFICATE-----\nMIIB", id="cut"),
    ],
)
"""What a loss of power leaves of the CA that a member kept."""


def lose_ca(member: SupervisedMember, content: bytes | None) -> None:
    member.files.server_ca.unlink()
    if content is not None:
        member.files.server_ca.write_bytes(content)


@LOST
@pytest.mark.parametrize("token", [None, PASSWORD], ids=["without a token", "with a token that has no hash"])
def test_a_member_that_lost_its_ca_trusts_no_other_server(
    tmp_path: Path, content: bytes | None, token: str | None
) -> None:
    with supervisor_peer() as before:
        member = joined(plan(before, tmp_path, before.token))
    lose_ca(member, content)
    with supervisor_peer() as other:
        said = refused(plan(other, tmp_path, token))
    assert str(member.files.server_ca) in said
    assert "restore the file, or join again with a whole token" in said
    assert other.lines == []


def test_a_member_that_lost_its_ca_and_its_certificate_trusts_nothing_on_first_use(tmp_path: Path) -> None:
    with supervisor_peer() as before:
        member = joined(plan(before, tmp_path, before.token))
    for path in (member.files.server_ca, member.files.client.current):
        path.write_bytes(b"")
    with supervisor_peer() as other:
        assert "restore the file" in refused(plan(other, tmp_path, PASSWORD))
    assert other.lines == []


def test_an_expired_member_that_lost_its_ca_does_not_come_back_to_another_server(tmp_path: Path) -> None:
    with supervisor_peer() as before:
        member = joined(plan(before, tmp_path, before.token))
    lose_ca(member, b"")
    pair = member.files.client.read_pair()
    assert pair is not None
    after = pair.leaf.not_valid_after_utc

    class Later(HurriedClock):
        def now(self) -> datetime:
            return after + timedelta(days=1)

    with supervisor_peer() as other, pytest.raises(MooringError, match="restore the file"):
        asyncio.run(join(plan(other, tmp_path), Later(), lambda progress: None))
    assert other.lines == []


@LOST
def test_a_member_that_lost_its_ca_leaves_through_no_other_server(
    peer: SupervisorPeer, tmp_path: Path, content: bytes | None
) -> None:
    member = joined(plan(peer, tmp_path, peer.token))
    lose_ca(member, content)
    peer.asked.clear()
    found = leave.of_k3s(member.files)
    assert found is not None
    with pytest.raises(ConfigError, match="restore the file"):
        asyncio.run(leave.end(found, HurriedClock()))
    assert peer.lines == []


@LOST
def test_a_whole_token_brings_the_ca_back(peer: SupervisorPeer, tmp_path: Path, content: bytes | None) -> None:
    member = joined(plan(peer, tmp_path, peer.token))
    lose_ca(member, content)
    joined(plan(peer, tmp_path, peer.token))
    assert member.files.read_server_ca() == peer.ca.certificate_pem


@pytest.mark.parametrize("is_lost", [False, True], ids=["with the CA that it kept", "without it"])
def test_where_the_roots_of_the_machine_verified_the_server_they_must_do_so_again(
    peer: SupervisorPeer, tmp_path: Path, is_lost: bool
) -> None:
    member = joined(plan(peer, tmp_path, PASSWORD))
    member.files.record.write("systemRoots", True)
    if is_lost:
        lose_ca(member, b"")
    peer.asked.clear()
    assert "does not verify" in refused(plan(peer, tmp_path, PASSWORD))
    assert peer.lines == []


@pytest.mark.parametrize("is_other", [False, True], ids=["of the cluster as well", "alone"])
def test_kubeconfigs_name_the_cas_that_verify_the_server(
    peer: SupervisorPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    """The roots of the machine verify it, as behind a proxy with a public certificate."""
    roots = tmp_path / "roots.pem"
    roots.write_bytes(peer.ca.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    other = ThrowawayCA("the cluster behind the proxy")
    if is_other:
        peer.override = lambda asked: (200, other.certificate_pem) if asked.path == identity.SERVER_CA else None
    said: list[Progress] = []
    given = plan(peer, tmp_path / "root", PASSWORD)
    balancer = f"https://127.0.0.1:{free_port()}"
    member = asyncio.run(join(given, HurriedClock(), said.append, local_url=balancer))
    assert member.files.record.read().system_roots
    cluster = load(str(member.files.kubeconfig)).cluster
    way = (peer.url, "") if is_other else (balancer, str(member.files.server_ca))
    assert (cluster.server, cluster.ca_file) == way
    assert any("verified by the roots of this machine" in one.message for one in said) == is_other


def test_seeds_are_tried_in_order(peer: SupervisorPeer, tmp_path: Path) -> None:
    down = f"https://127.0.0.1:{free_port()}"
    member = joined(plan(peer, tmp_path, peer.token, server=(down, peer.url)))
    assert member.urls[0] == peer.url


# ── refusals and faults ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rejected_node_password_names_the_file_and_the_flag(peer: SupervisorPeer, tmp_path: Path) -> None:
    peer.passwords["worker"] = "another"
    error = refused(plan(peer, tmp_path, peer.token))
    assert str(tmp_path / "etc/rancher/node/password") in error
    assert "--with-node-id" in error
    assert "unable to verify password for node worker: hash does not match: another machine has this name" in error


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        pytest.param(identity.CONFIG, b"\0" * (3 << 20), "longer than", id="3 MiB"),
        pytest.param(identity.CONFIG, b"[]", "is not the JSON object", id="a configuration that is none"),
        pytest.param(identity.CLIENT_CA, b"no PEM", "is not a bundle of CAs", id="a bundle that is none"),
        pytest.param(identity.CLIENT_KUBELET, b"no PEM", "is not a certificate", id="a certificate that is none"),
    ],
)
def test_a_response_that_cannot_be_used_ends_the_join_with_one_line(
    peer: SupervisorPeer, tmp_path: Path, path: str, body: bytes, said: str
) -> None:
    peer.override = lambda asked: (200, body) if asked.path == path else None
    error = refused(plan(peer, tmp_path, peer.token))
    assert said in error
    assert "\n" not in error
    assert len(error) < 600


def test_a_certificate_of_another_ca_is_refused(peer: SupervisorPeer, tmp_path: Path) -> None:
    other = ThrowawayCA("not the CA of clients")
    peer.override = lambda asked: (200, other.certificate_pem) if asked.path == identity.CLIENT_CA else None
    assert "does not verify under" in refused(plan(peer, tmp_path, peer.token))


def test_busy_servers_are_asked_again(peer: SupervisorPeer, tmp_path: Path) -> None:
    answers = iter([429, 503, 500])
    peer.override = lambda asked: (
        (status, b"") if asked.path == identity.CLIENT_KUBELET and (status := next(answers, 0)) else None
    )
    joined(plan(peer, tmp_path, peer.token, polling=Polling(interval=1.0)))
    posted = [one.path for one in peer.asked if one.method == "POST"]
    assert posted == [identity.SERVING_KUBELET, *[identity.CLIENT_KUBELET] * 4, *(one.path for one in WANTED[2:])]


def test_a_key_that_an_interrupted_run_left_is_used_again(peer: SupervisorPeer, tmp_path: Path) -> None:
    peer.override = lambda asked: (500, b"") if asked.path == identity.CLIENT_KUBELET else None
    given = plan(peer, tmp_path, peer.token)
    refused(given)
    left = given.files().client.next_key.read_bytes()
    peer.override = lambda asked: None
    member = joined(given)
    assert member.files.client.key.read_bytes() == left
    assert len(peer.posted(identity.SERVING_KUBELET)) == 1


# ── the token on the disk ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_token_is_removed_after_the_join_and_other_lines_stay(peer: SupervisorPeer, tmp_path: Path) -> None:
    file, environment, config = (tmp_path / name for name in ("token", "k3s-agent.service.env", "config.yaml"))
    file.write_text(peer.token + "\n")
    environment.write_text(f"K3S_URL='{peer.url}'\nK3S_TOKEN='{peer.token}'\nK3S_NODE_NAME=a\n")
    environment.chmod(0o640)
    config.write_text(f'server: {peer.url}\ntoken: "{peer.token}"\nnode-name: a\n')
    given = plan(peer, tmp_path, token=GivenToken(None, file, (environment, config, tmp_path / "missing")))
    told: list[Progress] = []
    joined(given, told)
    assert [one.message for one in told if one.message.startswith("warning")] == [
        f"warning: no token was removed from a file: {tmp_path}/missing cannot be read: no such file or directory; check the path"
    ]
    assert file.read_text() == ""
    assert environment.read_text() == f"K3S_URL='{peer.url}'\nK3S_TOKEN=\"\"\nK3S_NODE_NAME=a\n"
    assert stat.S_IMODE(environment.stat().st_mode) == 0o640
    assert config.read_text() == f'server: {peer.url}\ntoken: ""\nnode-name: a\n'
    joined(given)


def test_the_token_stays_when_it_is_to_be_kept(peer: SupervisorPeer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(peer.token)
    joined(plan(peer, tmp_path, token=GivenToken(None, file, keeps_files=True)))
    assert file.read_text() == peer.token


def test_a_token_that_cannot_be_removed_is_reported(peer: SupervisorPeer, tmp_path: Path) -> None:
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    file = open_directory / "token"
    file.write_text(peer.token)
    open_directory.chmod(0o777)
    told: list[Progress] = []
    joined(plan(peer, tmp_path, token=GivenToken(None, file)), told)
    assert [one for one in told if one.kept and one.message.startswith("warning: the token is still on disk")]


def test_a_token_file_that_cannot_be_read_is_an_error(peer: SupervisorPeer, tmp_path: Path) -> None:
    error = refused(plan(peer, tmp_path, token=GivenToken(None, tmp_path)))
    assert f"{tmp_path} cannot be read" in error
    (tmp_path / "token").write_text("K10x")
    error = refused(plan(peer, tmp_path, token=GivenToken(None, tmp_path / "token")))
    assert f"the token in {tmp_path}/token cannot be used: invalid token format" in error


def test_a_failed_join_leaves_the_token(peer: SupervisorPeer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(peer.token)
    peer.override = lambda asked: (500, b"") if asked.path == identity.CLIENT_CONTROLLER else None
    refused(plan(peer, tmp_path, token=GivenToken(None, file)))
    assert file.read_text() == peer.token


def test_no_secret_is_told(peer: SupervisorPeer, tmp_path: Path) -> None:
    told: list[Progress] = []
    member = joined(plan(peer, tmp_path, peer.token), told)
    everything = json.dumps([repr(one) for one in told]) + repr(member)
    password = (tmp_path / "etc/rancher/node/password").read_text().strip()
    assert PASSWORD not in everything
    assert password not in everything
