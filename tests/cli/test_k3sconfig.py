"""k3s's configuration file for `mooring agent`: which file is read, what wins over it, and files that are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mooring.agent.k3s import process
from mooring.agent.k3s.membership import AgentPlan
from mooring.cli.join import flags
from mooring.client import files
from tests.support.commandline import CommandLine, Outcome, mooring

__all__ = ["mooring"]
URL = "https://192.0.2.10:6443"
OTHER_URL = "https://192.0.2.11:6443"
TOKEN = "K10::node:not-so-secret"
DEFAULT = "etc/rancher/k3s/config.yaml"
VARIABLES = ("URL", "TOKEN", "TOKEN_FILE", "NODE_NAME", "CONFIG_FILE", "DATA_DIR", "LB_SERVER_PORT")


class Agent:
    """The command with a root of its own. `plans` are what the agent would run with."""

    def __init__(self, mooring: CommandLine, root: Path) -> None:
        self.mooring, self.root = mooring, root
        self.plans: list[AgentPlan] = []

    def file(self, text: str, path: str = DEFAULT, mode: int = 0o600) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def run(self, *arguments: str) -> Outcome:
        return self.mooring("agent", "--root", str(self.root), *arguments)

    def plan(self, *arguments: str) -> AgentPlan:
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome.err
        return self.plans.pop()

    def refused(self, *arguments: str) -> str:
        outcome = self.run(*arguments)
        assert outcome.code in (1, 2), outcome.err
        assert outcome.err.count("\n") == 1
        assert not self.plans
        assert "not-so-secret" not in outcome.all
        return outcome.err


@pytest.fixture
def agent(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Agent:
    for name in VARIABLES:
        monkeypatch.delenv(f"K3S_{name}", raising=False)
    agent = Agent(mooring, tmp_path)

    async def run(plan: AgentPlan, **more: Any) -> None:
        agent.plans.append(plan)

    monkeypatch.setattr(process, "run", run)
    return agent


def token_of(plan: AgentPlan) -> str:
    found = plan.token.read()
    return found.credential.reveal().decode() if found is not None else ""


def test_the_default_file_below_the_root_is_enough(agent: Agent) -> None:
    file = agent.file(
        f"server: {URL}\ntoken: {TOKEN}\nnode-name: worker\nwith-node-id: true\nnode-ip: 192.0.2.7\nlb-server-port: 7444\n"
        "node-external-ip: [203.0.113.7, '2001:DB8::7']\nnode-internal-dns: A.internal\nnode-external-dns: a.example.com\n"
        "node-label: [rack=seven]\nnode-taint: ['dedicated=gpu:NoSchedule']\ndata-dir: /data\n"
    )
    plan = agent.plan()
    assert (plan.settings.server, plan.settings.node_name, plan.settings.with_node_id, plan.settings.data_dir) == (
        (URL,),
        "worker",
        True,
        "/data",
    )
    assert (plan.settings.node_ip, plan.settings.node_external_ip) == (("192.0.2.7",), ("203.0.113.7", "2001:db8::7"))
    assert (plan.settings.node_internal_dns, plan.settings.node_external_dns) == (("a.internal",), ("a.example.com",))
    assert (dict(plan.settings.node_label), plan.settings.lb_server_port) == ({"rack": "seven"}, 7444)
    assert plan.settings.node_taint == ({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},)
    assert token_of(plan) == "node:not-so-secret"
    assert plan.token.environment_files[-1] == file, "the token is removed from it after the join"


def test_drop_ins_are_read_by_name(agent: Agent) -> None:
    agent.file(f"server: {URL}\nnode-label: a=b\n")
    agent.file("node-name: two\nnode-label+: c=d\n", f"{DEFAULT}.d/20-two.YML")
    agent.file("node-name: one\n", f"{DEFAULT}.d/10-one.yaml")
    agent.file("node-name: three\n", f"{DEFAULT}.d/30-three.yaml.bak")
    (agent.root / f"{DEFAULT}.d/40-directory.yaml").mkdir()
    plan = agent.plan()
    assert (plan.settings.node_name, dict(plan.settings.node_label)) == ("two", {"a": "b", "c": "d"})


def test_a_drop_in_alone_is_enough(agent: Agent) -> None:
    agent.file(f"server: {URL}\n", f"{DEFAULT}.d/10.yaml")
    agent.file(f"server: {OTHER_URL}\n", "other.yaml.d/10.yaml")
    assert agent.plan().settings.server == (URL,)
    assert agent.plan("--config", str(agent.root / "other.yaml")).settings.server == (OTHER_URL,)


@pytest.mark.parametrize("by", ["--config", "-c", "K3S_CONFIG_FILE"])
def test_a_named_file_takes_the_place_of_the_default_one(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    agent.file(f"server: {URL}\nnode-name: default\n")
    file = agent.file(f"server: {OTHER_URL}\n", "named.yaml")
    if by.startswith("-"):
        plan = agent.plan(by, str(file))
    else:
        monkeypatch.setenv(by, str(file))
        plan = agent.plan()
    assert plan.settings.server == (OTHER_URL,)
    assert plan.settings.node_name != "default"


def test_flags_win_over_the_file_and_the_file_over_the_environment(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.file(
        f"server: {URL}\nnode-name: file\ntoken: K10::node:file\ndata-dir: /file\nlb-server-port: 1\nnode-label: a=b\n"
    )
    for name, value in {
        "URL": OTHER_URL, "NODE_NAME": "env", "TOKEN": "K10::node:env", "DATA_DIR": "/env", "LB_SERVER_PORT": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"K3S_{name}", value)
    plan = agent.plan()
    assert (plan.settings.server, plan.settings.node_name, plan.settings.data_dir, plan.settings.lb_server_port) == (
        (URL,),
        "file",
        "/file",
        1,
    )
    assert (token_of(plan), dict(plan.settings.node_label)) == ("node:file", {"a": "b"})
    plan = agent.plan(
        "-s", OTHER_URL, "-t", "K10::node:flag", "-d", "/flag", "-i", "192.0.2.8", "--node-name", "flag", "--lb-server-port", "3",
        "--node-label", "c=d",
    )  # fmt: skip
    assert (plan.settings.server, plan.settings.node_name, plan.settings.data_dir, plan.settings.lb_server_port) == (
        (OTHER_URL,),
        "flag",
        "/flag",
        3,
    )
    assert (token_of(plan), dict(plan.settings.node_label)) == ("node:flag", {"c": "d"})
    agent.file("")
    monkeypatch.setenv("K3S_TOKEN", "K10::node:env")
    plan = agent.plan()
    assert (plan.settings.server, plan.settings.node_name, plan.settings.data_dir, plan.settings.lb_server_port) == (
        (OTHER_URL,),
        "env",
        "/env",
        2,
    )
    assert token_of(plan) == "node:env"


def test_a_token_of_the_command_line_replaces_both_keys(agent: Agent) -> None:
    given = agent.file("K10::node:given\n", "given")
    agent.file(f"server: {URL}\ntoken: {TOKEN}\n")
    assert token_of(agent.plan("--token-file", str(given))) == "node:given"
    agent.file(f"server: {URL}\ntoken-file: {given}\n")
    assert token_of(agent.plan("--token", TOKEN)) == "node:not-so-secret"
    assert token_of(agent.plan()) == "node:given"
    agent.file(f"server: {URL}\ntoken-file: {given}\ntoken: {TOKEN}\n")
    assert "cannot both be given" in agent.refused()


def test_keys_that_do_not_concern_joining_are_one_warning(agent: Agent) -> None:
    agent.file(
        f"server: {URL}\nkubelet-arg: [not-so-secret]\nsnapshotter: native\ntls-san: a.test\nvpn-auth: not-so-secret\n"
    )
    outcome = agent.run()
    assert outcome.code == 0
    (line,) = [line for line in outcome.err.splitlines() if "ignored keys" in line]
    assert "WARNING" in line
    assert "kubelet-arg, snapshotter, vpn-auth (Mooring's agent runs no kubelet" in line
    assert "tls-san (flags of k3s server)" in line
    assert "not-so-secret" not in outcome.all


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "node-lable: not-so-secret",
            'line 1: "node-lable": unknown key, did you mean "node-label"?',
            id="key",
        ),
        pytest.param("token: [not-so-secret]", 'line 1: "token": give a text', id="type"),
        pytest.param("token: not-so-secret: x: [", "config.yaml: yaml: ", id="no YAML"),
        pytest.param("not-so-secret", "a configuration is keys with values", id="no keys"),
        pytest.param("token: K10not-so-secret", "config.yaml: line 1: --token: invalid token format", id="no token"),
        pytest.param(
            "server: http://192.0.2.10", "config.yaml: line 1: --server: the scheme must be https", id="no https"
        ),
        pytest.param(
            "server: https://u:not-so-secret@192.0.2.10", "user name or a password", id="a password in the URL"
        ),
        pytest.param("node-external-ip: a", '--node-external-ip: "a" is not an IP address', id="no address"),
        pytest.param(
            "node-external-dns: 192.0.2.7", '--node-external-dns: "192.0.2.7" is not a DNS name', id="no name"
        ),
        pytest.param("node-taint: a", "is not a taint", id="no taint"),
        pytest.param("node-name: A_b", '--node-name "A_b" is invalid', id="no name of a node"),
        pytest.param("x: '" + "y" * flags.MAX_BYTES + "'", "is larger than 1048576 bytes", id="too large"),
    ],
)
def test_a_wrong_file_is_one_line(agent: Agent, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setenv("K3S_URL", URL)
    agent.file(f"{text}\n")
    assert said in agent.refused()


def test_a_file_that_cannot_be_read_is_one_line(agent: Agent) -> None:
    assert "missing.yaml cannot be read: no such file" in agent.refused("--config", str(agent.root / "missing.yaml"))
    assert "name a file, not a directory" in agent.refused("--config", str(agent.root))
    assert "--config: a URL is not fetched" in agent.refused("--config", "https://config.test/config.yaml")
    assert "check the path" in agent.refused("--config", str(agent.root / ("x" * 300)))
    agent.file("", "plain.d")
    assert "plain cannot be read" in agent.refused("--config", str(agent.root / "plain"))
    (agent.root / "loop.d").symlink_to(agent.root / "loop.d")
    assert "a symbolic link leads to itself" in agent.refused("--config", str(agent.root / "loop"))


def test_too_many_drop_ins_are_refused(agent: Agent) -> None:
    for number in range(flags.MAX_DROP_INS + 1):
        agent.file("", f"{DEFAULT}.d/{number}.yaml")
    assert "has more than 64 drop-ins" in agent.refused("--server", URL)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        pytest.param(
            f"token: {TOKEN}", 0o644, 'run chmod 600 {path}, because it holds the secret "token"', id="others read"
        ),
        pytest.param(
            f"t: {TOKEN}", 0o640, 'run chmod 600 {path}, because it holds the secret "token"', id="a group reads"
        ),
        pytest.param("vpn-auth: not-so-secret", 0o604, 'because it holds the secret "vpn-auth"', id="another secret"),
        pytest.param("node-name: a", 0o602, "{path} can be written by every user", id="others write"),
        pytest.param("token: ''\nnode-name: a", 0o644, "", id="no secret"),
    ],
)
def test_the_mode_of_a_file(agent: Agent, text: str, mode: int, said: str) -> None:
    path = agent.file(f"server: {URL}\n{text}\n", mode=mode)
    if said:
        assert said.format(path=path) in agent.refused()
    else:
        assert agent.plan().settings.server == (URL,)


@pytest.mark.parametrize(
    ("mode", "is_refused"),
    [
        pytest.param(0o777, True, id="everybody may replace files"),
        pytest.param(0o1777, False, id="each user may replace own ones, as in /tmp"),
        pytest.param(0o775, False, id="a group may"),
    ],
)
@pytest.mark.parametrize("place", ["etc/rancher", "etc/rancher/k3s", f"{DEFAULT}.d"])
def test_the_mode_of_the_directories_above_a_file(agent: Agent, mode: int, is_refused: bool, place: str) -> None:
    agent.file(f"server: {URL}\n")
    agent.file("node-name: a\n", f"{DEFAULT}.d/a.yaml")
    directory = agent.root / place
    directory.chmod(mode)
    if is_refused:
        assert f"could send this machine to another server; run chmod o-w on {directory}" in agent.refused()
    else:
        assert agent.plan().settings.server == (URL,)


def test_a_drop_in_of_another_user_is_refused_where_the_file_is_named(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = agent.file(f"server: {URL}\n")
    drop_in = agent.file("on-renew: [reboot]\n", f"{DEFAULT}.d/a.yaml")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(files, "ROOT", 4712)
    assert f"{drop_in} belongs to another user" in agent.refused("--config", str(path))


def test_a_default_file_of_another_user_is_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    path = agent.file(f"server: {URL}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(files, "ROOT", 4712)
    assert f"{path} belongs to another user; give it to root" in agent.refused()
    assert agent.plan("--config", str(path)).settings.server == (URL,)


def test_kubeadms_way_does_not_depend_on_the_file(agent: Agent) -> None:
    agent.file("not: [YAML", mode=0o666)
    assert "discovery by token" in agent.refused("192.0.2.10", "--token", "abcdef.0123456789abcdef")
    agent.file("", "etc/kubernetes/kubelet.conf")
    assert "config.yaml" not in agent.refused()


def test_a_file_without_a_server_does_not_choose_the_way(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    path = agent.file("token: abcdef.0123456789abcdef\n")
    assert "--config: the file names no server" in agent.refused("--config", str(path))
    monkeypatch.setenv("K3S_URL", URL)
    assert agent.plan("--config", str(path)).settings.server == (URL,)
    assert "discovery by token without --discovery-token-ca-cert-hash" in agent.refused(
        "--config", str(path), "192.0.2.10"
    ), "it may be of the other way"


def test_a_file_of_k3s_without_a_server_stops_no_member_of_the_other_way(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.file("", "etc/kubernetes/kubelet.conf")
    monkeypatch.setenv("K3S_CONFIG_FILE", str(agent.file("node-external-ip: 192.0.2.7\n", "k3s.yaml")))
    assert "--node-external-ip" not in agent.refused()
    assert "--node-external-ip needs --server" in agent.refused("--config", str(agent.root / "k3s.yaml"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ("--kubelet-arg", "not-so-secret"),
            "--kubelet-arg belongs to k3s's runtime, and Mooring's agent runs none",
            id="runtime",
        ),
        pytest.param(
            ("--resolv-conf=not-so-secret",), "--resolv-conf belongs to k3s's runtime", id="with an equals sign"
        ),
        pytest.param(("--vpn-auth", "not-so-secret"), "--vpn-auth belongs to k3s's runtime", id="a secret"),
        pytest.param(("--debug",), "--debug belongs to k3s's log", id="log"),
        pytest.param(("--tls-san", "a.test"), "--tls-san belongs to k3s server", id="server"),
        pytest.param(
            ("--cluster-secret", "not-so-secret"), "--cluster-secret has been replaced by --token", id="replaced"
        ),
        pytest.param(("--node-lable", "a=b"), "No such option", id="a flag that k3s does not know"),
        pytest.param(("--node-label", "a"), '--node-label: "a" is not a label', id="no label"),
        pytest.param(
            ("--node-label", "kubernetes.io/os=x"),
            "kubernetes.io/os: the agent sets this label",
            id="a label of the agent",
        ),
        pytest.param(
            ("--node-label", "node-role.kubernetes.io/worker=true"),
            "no node may set node-role.kubernetes.io/worker itself (NodeRestriction); an administrator may, after the join: "
            "kubectl label node NAME node-role.kubernetes.io/worker=true",
            id="a role",
        ),
        pytest.param(
            ("--node-label", "node-restriction.kubernetes.io/a=b"),
            "no node may set node-restriction.kubernetes.io/a",
            id="a restriction",
        ),
        pytest.param(("--node-taint", "a=b:Never"), "with one of the effects", id="no effect"),
        pytest.param(("--node-internal-dns", "A_b"), '--node-internal-dns: "a_b" is not a DNS name', id="no DNS name"),
        pytest.param(
            ("--node-external-ip", ",".join(f"192.0.2.{n}" for n in range(17))), "at most 16 addresses", id="too many"
        ),
    ],
)
def test_a_wrong_flag_is_one_line(agent: Agent, arguments: tuple[str, ...], said: str) -> None:
    assert said in agent.refused("--server", URL, *arguments)


def test_labels_that_a_node_may_set(agent: Agent) -> None:
    labels = ("rack=seven", "node.kubernetes.io/role=worker", "topology.kubernetes.io/zone=a", "example.com/a=b")
    plan = agent.plan("--server", URL, *(part for label in labels for part in ("--node-label", label)))
    assert [f"{key}={value}" for key, value in plan.settings.node_label] == list(labels)
