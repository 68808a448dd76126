"""init, up, server, join and agent as real processes, and where their secrets appear."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from mooring.agent.certificaterequest import node_request
from mooring.agent.join import Joined, JoinOptions
from mooring.agent.state import NodeState
from mooring.agent.steps import Progress, Report
from mooring.trust.discovery.pins import pins_of
from mooring.trust.joinconfiguration import JoinPlan
from mooring.trust.kubeconfig import cluster_info_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support import forkserver
from tests.support.commandline import CommandLine, Outcome, mooring, process
from tests.support.liveserver import LiveServer, live_server, running_server, start_server
from tests.support.peer import ReceivedRequest, Reply, http_peer
from tests.support.ports import free_port
from tests.support.testca import LOOPBACK, ThrowawayCA

__all__ = ["live_server", "mooring"]
SECRET = "k3m8x1c5v0b6n4z2"
TOKEN = f"first1.{SECRET}"
LOCAL = ("--bind-address", "127.0.0.1", "--secure-port", "0")
WAIT = 30.0


class Running:
    """Running command with its streams in files."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = forkserver.Process(["-m", "mooring", *arguments], stdout=out, stderr=err)

    def until(self, text: str) -> str:
        """Wait until the output contains `text`, and return the output."""
        deadline = time.monotonic() + WAIT
        while True:
            said = self.out.read_text() + self.err.read_text()
            if text in said:
                return said
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def stop(self) -> Outcome:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT)
        return Outcome(code, self.out.read_text(), self.err.read_text())


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[Running]:
    directory.mkdir()
    started = Running(directory, *arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


def server_of(data: Path) -> str:
    config = yaml.safe_load((data / "admin.conf").read_text())
    server: str = config["clusters"][0]["cluster"]["server"]
    return server


def test_init_makes_everything_once(tmp_path: Path, mooring: CommandLine) -> None:
    data = tmp_path / "data"
    flags = ("init", "--data-dir", str(data), "--bind-address", "127.0.0.1", "--secure-port", "16443")
    first = mooring.done(*flags, "--control-plane-endpoint", "cp.example:7443,127.0.0.1")
    ca = (data / "pki/ca.crt").read_bytes()
    pin = pins_of(ca)[0]
    assert "  pki/ca.crt\n" in first
    assert "  admin.conf\n" in first
    assert re.search(
        rf"\n  mooring join cp\.example:7443 127\.0\.0\.1:16443 --token [a-z0-9]{{6}}\.[a-z0-9]{{16}} "
        rf"--discovery-token-ca-cert-hash {pin}\n",
        first,
    )
    assert "\n  kubeadm join cp.example:7443 --token " in first
    second = mooring.done(*flags, "--control-plane-endpoint", "cp.example:7443,127.0.0.1")
    assert f"The keys and certificates in {data} are kept as they are.\n" in second
    assert (
        "No token was made. To let a machine join, make one:\n"
        f"  mooring token create --print-join-command --kubeconfig {data}/admin.conf\n" in second
    )
    assert " join " not in second
    assert (data / "pki/ca.crt").read_bytes() == ca


def test_the_line_that_init_prints_serves_with_the_same_flags(
    tmp_path: Path, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a place").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOORING_AGENT_TOKEN", f"agents-{SECRET}")
    monkeypatch.setenv("MOORING_NODE_MONITOR_GRACE_PERIOD", "50s")
    port = str(free_port())
    flags = ("--data-dir", "a place/data", "--bind-address=127.0.0.1", "--secure-port", port, "--k3s-supervisor")
    output = mooring.done("init", *flags, "--storage", "sqlite:a place/x.db", "--token", "")
    line, secret, *_ = output.partition("To serve, with the same flags:\n")[2].split("\n")
    assert shlex.split(line) == [
        "mooring", "server", "--data-dir", f"{tmp_path}/a place/data", "--storage", f"sqlite:{tmp_path}/a place/x.db",
        "--k3s-supervisor=true", "--bind-address", "127.0.0.1", "--secure-port", port,
        "--node-monitor-grace-period", "50s",
    ]  # fmt: skip
    assert secret == (
        "--agent-token is a secret and not repeated: set MOORING_AGENT_TOKEN, or name its file with --agent-token-file."
    )
    assert SECRET not in output
    assert f"\n  export KUBECONFIG='{tmp_path}/a place/data/admin.conf'\n" in output
    monkeypatch.undo()
    with running(tmp_path / "server", *shlex.split(line)[1:]) as server:
        server.until(f"serving on 127.0.0.1:{port}")
        assert server.stop().code == 0


def test_init_without_a_token_and_with_a_withheld_one(tmp_path: Path, mooring: CommandLine) -> None:
    flags = ("init", "--data-dir", str(tmp_path / "data"), "--bind-address", "127.0.0.1")
    assert "No token was made." in mooring.done(*flags, "--token", "")
    output = mooring.done(*flags, "--token", TOKEN, "--token-ttl", "0", "--skip-token-print")
    assert "--token <value withheld> --discovery-token-ca-cert-hash" in output
    assert "under any name, from any network, until it is deleted)" in output
    assert " agent --server " not in output
    assert SECRET not in output


def test_a_supervisor_is_told_with_the_hash_that_its_ca_has(tmp_path: Path, mooring: CommandLine) -> None:
    data = tmp_path / "data"
    flags = (
        "init",
        "--data-dir",
        str(data),
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        "16443",
        "--k3s-supervisor",
    )
    output = mooring.done(*flags, "--token", TOKEN, "--control-plane-endpoint", "cp.example:7443,127.0.0.1")
    whole = f"K10{hashlib.sha256((data / 'pki/ca.crt').read_bytes()).hexdigest()}::{TOKEN}"
    servers = "--server https://cp.example:7443 --server https://127.0.0.1:16443"
    assert f"or, k3s's way:\n  mooring agent {servers} --token {whole}\n" in output


def test_a_lost_ca_key_is_told_and_nothing_is_overwritten(tmp_path: Path, mooring: CommandLine) -> None:
    data = tmp_path / "data"
    mooring.done("init", "--data-dir", str(data), "--bind-address", "127.0.0.1")
    (data / "pki/ca.key").unlink()
    outcome = mooring("init", "--data-dir", str(data), "--bind-address", "127.0.0.1")
    assert outcome.code == 1
    assert outcome.err.startswith("Error: ca.key of the cluster of the CA sha256:")
    assert f"is missing in {data}/pki, and no other key can replace it" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (data / "pki/ca.key").exists()


def test_up_prints_a_line_that_joins_and_no_secret_elsewhere(tmp_path: Path, mooring: CommandLine) -> None:
    data, root = tmp_path / "data", tmp_path / "node"
    with running(tmp_path / "up", "up", "--data-dir", str(data), *LOCAL, "--token", TOKEN, "-vv",
                 "--audit-log-path", str(tmp_path / "audit.log")) as up:  # fmt: skip
        said = up.until("kubectl get nodes,csr")
        line = re.search(r"\n  mooring (join .*)\n", said)
        assert line is not None
        joined = process(*line[1].split(), "--root", str(root), "--node-name", "n1", "--discovery-timeout", "10s")
        assert joined.code == 0, joined.err
        again = process(*line[1].split(), "--root", str(root), "--node-name", "n1", "-o", "json")
        with running(tmp_path / "agent", "agent", "--root", str(root), "--node-name", "n1") as agent:
            agent.until("member n1 of")
            assert agent.stop().code == 0
        others = [
            mooring("token", "list", "--redact", "--kubeconfig", str(data / "admin.conf")).all,
            mooring("csr", "list", "-o", "json", "--kubeconfig", str(data / "admin.conf")).all,
            mooring("token", "delete", TOKEN, "--kubeconfig", str(data / "admin.conf")).all,
        ]
        stopped = up.stop()
    assert stopped.code == 0
    assert "Traceback" not in stopped.err
    assert "This machine is a member now: node n1 of " + server_of(data) in joined.out
    assert re.search(r"^\[wait\] approved and signed \(\d+ ms\)$", joined.out, re.MULTILINE)
    document = json.loads(again.out)
    assert document["joined"]
    assert document["alreadyMember"]
    assert stopped.out.count(SECRET) == 2  # the two join lines, and nowhere else:
    key = (root / "var/lib/kubelet/pki/kubelet-client-current.pem").read_text().splitlines()[-2]
    quiet = [stopped.err, joined.all, again.all, (tmp_path / "audit.log").read_text(), *others]
    quiet += [(tmp_path / "agent" / name).read_text() for name in ("out", "err")]
    for text in quiet:
        assert SECRET not in text
        assert "PRIVATE KEY" not in text
        assert key not in text


def test_a_second_up_makes_no_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for start, expected in (("first", "mooring join 127.0.0.1:"), ("second", "No token was made.")):
        with running(tmp_path / start, "up", "--data-dir", str(data), *LOCAL) as up:
            assert expected in up.until("kubectl get nodes,csr")
            assert up.stop().code == 0


def test_a_port_that_is_taken_is_told(live_server: LiveServer, tmp_path: Path) -> None:
    outcome = process(
        "server",
        "--data-dir",
        str(tmp_path / "data"),
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        str(live_server.port),
    )
    assert outcome.code == 1
    assert outcome.err.startswith(f"Error: cannot listen on 127.0.0.1:{live_server.port}: ")
    assert outcome.err.endswith("stop what uses the port or choose another with --secure-port\n")


def test_a_join_that_fails_says_where_in_json_too(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    flags = (
        "join", live_server.endpoint, "--token", TOKEN, "--discovery-token-ca-cert-hash", live_server.pin,
        "--root", str(tmp_path), "--discovery-timeout", "1ms",
    )  # fmt: skip
    text, document = mooring(*flags), mooring(*flags, "-o", "json")
    assert text.code == document.code == 1
    assert text.err == document.err
    assert text.err.startswith("Error: join failed at step discovery: ")
    assert 'no signature for token id "first1"' in text.err
    shown = json.loads(document.out)
    assert not shown["joined"]
    assert shown["error"]["step"] == "discovery"
    assert SECRET not in text.all + document.all


def test_a_join_under_a_name_that_the_token_does_not_allow_fails_at_once(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    token = mooring.done(
        "token", "create", "--node-name", "worker-*", "--kubeconfig", str(live_server.kubeconfig)
    ).strip()  # fmt: skip
    outcome = mooring(
        "join", live_server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", live_server.pin,
        "--node-name", "master-1", "--root", str(tmp_path),
    )  # fmt: skip
    assert outcome.code == 1
    assert 'is only for nodes named "worker-*"' in outcome.err
    assert "asking again" not in outcome.err
    assert "system:node-bootstrapper" not in outcome.err


def test_a_join_from_a_network_that_the_token_does_not_allow_fails_at_once_and_can_be_explained(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    admin = ("--kubeconfig", str(live_server.kubeconfig))
    token = mooring.done("token", "create", "--allow-cidr", "192.0.2.0/24", *admin).strip()
    outcome = mooring(
        "join", live_server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", live_server.pin,
        "--node-name", "elsewhere", "--root", str(tmp_path),
    )  # fmt: skip
    assert outcome.code == 1
    assert "it is not for the network of this machine" in outcome.err
    assert "asking again" not in outcome.err
    audit_id = outcome.err.strip().rpartition("mooring auth explain ")[2]
    assert "network-not-allowed" in mooring.done("auth", "explain", audit_id, *admin)


def test_a_join_without_a_token_after_the_deletion_of_the_node_fails_at_once_and_can_be_explained(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    admin, root = ("--kubeconfig", str(live_server.kubeconfig)), ("--root", str(tmp_path))
    token = mooring.done("token", "create", *admin).strip()
    mooring.done(
        "join", live_server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", live_server.pin,
        "--node-name", "gone-again", *root,
    )  # fmt: skip
    live_server.run(lambda client: client.delete("nodes", "gone-again"))
    outcome = mooring("join", *root)
    assert outcome.code == 1
    assert outcome.err.startswith("Error: join failed at step existing: the server rejects the certificate of ")
    assert "the Node was deleted" in outcome.err
    assert "mooring join ADDRESS --token TOKEN" in outcome.err
    assert "--client-ca-file" not in outcome.err
    assert "asking again" not in outcome.all
    audit_id = outcome.err.partition("mooring auth explain ")[2].partition(";")[0]
    assert "client-certificate" in mooring.done("auth", "explain", audit_id, *admin)


def test_bootstrap_tokens_that_are_turned_off_are_not_made(tmp_path: Path, mooring: CommandLine) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--enable-bootstrap-token-auth=false")
    refused = mooring("init", *flags, "--token", "abcdef.0123456789abcdef")
    assert refused.code == 2
    assert "enable-bootstrap-token-auth is false" in refused.err
    assert "Bootstrap tokens are turned off" in mooring.done("init", *flags)


def test_a_token_is_not_said_to_let_machines_in_where_none_is_accepted(tmp_path: Path, mooring: CommandLine) -> None:
    with running_server(tmp_path, "--enable-bootstrap-token-auth=false") as server:
        for flags in ([], ["--limited"], ["abcdef.0123456789abcdef"]):
            made = mooring("token", "create", *flags, "--kubeconfig", str(server.kubeconfig))
            text = f"Warning: token {made.out[:6]} lets no machine in: the server accepts no bootstrap token, because enable-"
            assert made.code == 0, made.err
            assert text in made.err
            assert "lets in" not in made.err


def test_a_dry_run_writes_nothing(live_server: LiveServer, mooring: CommandLine, tmp_path: Path) -> None:
    token = live_server.create_token().reveal()
    root = tmp_path / "node"
    output = mooring.done(
        "join", live_server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", live_server.pin,
        "--root", str(root), "--node-name", "dry", "--dry-run",
    )  # fmt: skip
    assert output.endswith("Nothing was written: this was a dry run.\n")
    assert f"[files] would write {root}/etc/kubernetes/kubelet.conf\n" in output
    assert not root.exists()


@pytest.mark.parametrize("given", ["", "192.0.2.7", "192.0.2.7,2001:db8::7"])
def test_discovery_alone_names_the_flags_of_a_kubelet(
    given: str, live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    """The addresses that were given were dropped: the kubelet registered others."""
    more = ("--node-ip", given) if given else ()
    out = mooring.done(
        "join", live_server.endpoint, "--token", live_server.create_token().reveal(), "--node-name", "flagged",
        "--discovery-token-ca-cert-hash", str(live_server.pin), "--root", str(tmp_path), "--discover-only", *more,
    )  # fmt: skip
    line = next(line for line in out.splitlines() if "--hostname-override=flagged" in line)
    assert [flag for flag in line.split() if flag.startswith("--node-ip")] == ([f"--node-ip={given}"] if given else [])


def test_a_discovery_document_may_come_from_standard_input(live_server: LiveServer, tmp_path: Path) -> None:
    config = yaml.safe_load(live_server.kubeconfig.read_text())
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": config["clusters"][0]["cluster"]}],
    }
    token = live_server.create_token().reveal()
    outcome = process(
        "join", "--discovery-file", "-", "--root", str(tmp_path), "--node-name", "stdin-node",
        stdin=json.dumps(document), MOORING_TOKEN=token,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert token not in outcome.all


def test_a_server_without_anonymous_access_is_joined_by_a_document_with_the_token(
    tmp_path: Path, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    anonymous = tmp_path / "authentication.yaml"
    # The harness reads /readyz.
    anonymous.write_text(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
        "anonymous: {enabled: true, conditions: [{path: /readyz}]}\n"
    )
    server = start_server(tmp_path / "data", "--authentication-config", str(anonymous))
    try:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        token = server.create_token()
        joining = ("--root", str(tmp_path / "root"), "--node-name", "one")
        outcome = mooring("join", server.endpoint, "--token", token.reveal(), *joining, "--discovery-timeout", "1s",
                          "--discovery-token-ca-cert-hash", server.pin)  # fmt: skip
        assert (outcome.code, "mooring kubeconfig discovery" in outcome.err) == (1, True), outcome.err
        file = tmp_path / "cluster.conf"
        made = mooring("kubeconfig", "discovery", token.id, "--out", str(file))
        assert made.code == 0
        assert f"Wrote {file}: a discovery document with token {token.id}\n" in made.err
        assert f"Token {token.id} lets in any number of machines" in made.err
        assert file.stat().st_mode & 0o777 == 0o600
        assert mooring.done("kubeconfig", "discovery", token.reveal()) == file.read_text(), "a whole token is its id"
        assert mooring("join", "--discovery-file", str(file), *joining).code == 2, "credentials are not accepted"
        mooring.done("join", "--discovery-file", str(file), "--allow-discovery-credentials", *joining)
        assert "one" in mooring.done("node", "list")
        known = NodeState(tmp_path / "root").read_cluster_id()
        other = tmp_path / "other.conf"
        other.write_text(file.read_text().replace(known, known[::-1]))
        outcome = mooring("join", "--discovery-file", str(other), "--allow-discovery-credentials", *joining)
        assert (outcome.code, f"its id is {known[::-1]}, and the known one is {known}" in outcome.err) == (1, True), (
            outcome.err
        )
        # Without cluster-info the document names the administrator's cluster, whose id is not known then.
        server.run(lambda client: client.delete("configmaps", "cluster-info", "kube-public"))
        document = yaml.safe_load(file.read_text())
        (extension,) = document["clusters"][0]["cluster"].pop("extensions")
        assert (extension["name"], extension["extension"]) == ("mooring.dev/cluster-id", {"id": known})
        assert yaml.safe_load(mooring.done("kubeconfig", "discovery", token.id)) == document
        server.run(lambda client: client.delete("nodes", "one"))
        outcome = mooring("leave", "--yes", "--root", str(tmp_path / "root"))
        assert (outcome.code, "does not say of which cluster it is" in outcome.err) == (1, True), outcome.err
    finally:
        server.stop()


OTHER_SECRET = 'the bootstrap token "docum1" has another secret than the one given; give its id alone'


@pytest.mark.parametrize(
    ("flags", "given", "problem"),
    [
        pytest.param(
            ("--usages", "signing"),
            "docum1",
            "lets no machine in: Token docum1 signs cluster-info and lets no machine in, until",
            id="only signs",
        ),
        pytest.param(None, "docum1", 'there is no bootstrap token "docum1"; see mooring token list', id="is unknown"),
        pytest.param((), "docum1.0123456789abcdeg", OTHER_SECRET, id="has another secret"),
        pytest.param(
            (), f"K10{'0' * 64}::docum1.0123456789abcdeg", OTHER_SECRET, id="has another secret, in the whole form"
        ),
    ],
)
def test_no_discovery_document_is_made_with_a_token_that(
    live_server: LiveServer,
    mooring: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...] | None,
    given: str,
    problem: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    if flags is not None:
        mooring.done("token", "create", "docum1.0123456789abcdef", *flags)
    outcome = mooring("kubeconfig", "discovery", given)
    assert (outcome.code, outcome.out) == (1, "")
    assert problem in outcome.err
    assert "0123456789abcde" not in outcome.err
    if flags is not None:
        mooring.done("token", "delete", "docum1")


def test_a_discovery_url_may_redirect_to_https(live_server: LiveServer, tmp_path: Path) -> None:
    ca = ThrowawayCA()
    roots = tmp_path / "roots.pem"
    roots.write_bytes(ca.certificate_pem)
    document = format_kubeconfig(cluster_info_kubeconfig(live_server.url, live_server.ca_pem)).encode()
    token = live_server.create_token().reveal()
    moved: dict[str, str] = {}

    def answer(asked: ReceivedRequest) -> Reply:
        return Reply(302, b"", {"Location": moved[asked.path]}) if asked.path in moved else Reply(200, document)

    with http_peer(answer, ca.server(*LOOPBACK)) as host, http_peer(pair=None) as plain:
        moved |= {"/latest": f"{host.url}/cluster.conf?signature=hush", "/plain": f"http{plain.url[5:]}/cluster.conf"}
        joining = ("--token", token, "--root", str(tmp_path / "root"), "--node-name", "moved")
        outcome = process("join", "--discovery-file", f"{host.url}/plain", *joining, SSL_CERT_FILE=str(roots))
        assert outcome.code == 1
        refusal = "302: a redirect that is not followed: the scheme must be https; give the URL of the document"
        assert refusal in outcome.err
        assert plain.requests == []
        outcome = process("join", "--discovery-file", f"{host.url}/latest", *joining, SSL_CERT_FILE=str(roots))
        assert outcome.code == 0, outcome.err
        assert f"Redirected to {host.url}/cluster.conf\n" in outcome.out
        assert "hush" not in outcome.all


def test_a_join_with_an_unknown_token_says_how_long_it_goes_on(live_server: LiveServer, tmp_path: Path) -> None:
    flags = ("--token", "unknwn.0123456789abcdef", "--discovery-token-unsafe-skip-ca-verification")
    with running(tmp_path / "join", "join", live_server.endpoint, *flags, "--root", str(tmp_path / "node")) as join:
        join.until("`mooring token create`; trying again for up to 30s more")
    outcome = process(
        "join", live_server.endpoint, *flags, "--root", str(tmp_path / "node"), "--discovery-timeout", "3s"
    )
    assert outcome.code == 1
    assert outcome.err.startswith("Error: join failed at step discovery: verifying cluster-info")
    assert "trying again" not in outcome.all


def test_an_agent_that_is_no_member_asks_for_flags(mooring: CommandLine, tmp_path: Path) -> None:
    outcome = mooring("agent", "--root", str(tmp_path))
    assert outcome.code == 1
    assert "this machine is not a member of a cluster: give the flags of `mooring join` as well" in outcome.err


def test_an_interrupted_join_ends_quietly_with_130(tmp_path: Path) -> None:
    flags = ("--token", TOKEN, "--discovery-token-unsafe-skip-ca-verification", "--root", str(tmp_path / "node"))
    with running(tmp_path / "join", "join", f"127.0.0.1:{free_port()}", *flags) as join:
        join.until("nothing answers there")
        join.process.send_signal(signal.SIGINT)
        assert join.process.wait(WAIT) == 130
        assert join.err.read_text().strip() == ""
        assert SECRET not in join.out.read_text()


def test_an_interrupted_wait_names_the_request_and_how_to_go_on(manual_approval: LiveServer, tmp_path: Path) -> None:
    token = manual_approval.create_token(groups=("system:bootstrappers:manual",)).reveal()
    flags = (
        manual_approval.endpoint, "--token", token, "--discovery-token-ca-cert-hash", manual_approval.pin,
        "--root", str(tmp_path / "node"), "--node-name", "interrupted",
    )  # fmt: skip
    state = NodeState(tmp_path / "node")
    with running(tmp_path / "join", "join", *flags) as join:
        join.until("approve it with `mooring csr approve node-csr-")
        join.process.send_signal(signal.SIGINT)
        assert join.process.wait(WAIT) == 130
    out = join.out.read_text()
    key = state.read_pending_key()
    assert key is not None
    name = node_request(key, "interrupted").name
    assert (
        f"interrupted; the request {name} is still pending: approve it with `mooring csr approve {name}` or "
        f"`kubectl certificate approve {name}`, then join again: it goes on with the same request" in out
    )
    assert state.bootstrap.exists()
    assert process("csr", "approve", name, "--kubeconfig", str(manual_approval.kubeconfig)).code == 0
    assert process("join", *flags).code == 0
    assert not state.bootstrap.exists()


def test_an_interrupted_join_prints_its_document(monkeypatch: pytest.MonkeyPatch, mooring: CommandLine) -> None:
    async def interrupted(plan: JoinPlan, options: JoinOptions, *, report: Report) -> Joined:
        report(Progress("wait", "interrupted; the request x is still pending"))
        raise KeyboardInterrupt

    monkeypatch.setattr("mooring.cli.join.join.join_cluster", interrupted)
    pin = "sha256:" + "0" * 64
    outcome = mooring("join", "h:1", "--token", TOKEN, "--discovery-token-ca-cert-hash", pin, "-o", "json")
    assert outcome.code == 130
    assert json.loads(outcome.out)["error"] == {"step": "wait", "message": "interrupted"}
