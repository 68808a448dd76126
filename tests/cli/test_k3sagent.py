"""Flags of `mooring agent --server`: which way of joining they choose, the token's sources, and what other users can see of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import daemon
from mooring.agent.k3s import process
from mooring.agent.k3s.membership import AgentPlan
from mooring.agent.settings import AgentSettings
from tests.support.commandline import CommandLine, mooring
from tests.support.ports import free_port

__all__ = ["mooring"]
URL = "https://192.0.2.10:6443"
TOKEN = "K10::node:not-so-secret"


@pytest.fixture
def planned(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AgentPlan]:
    """Return the function that runs the command and returns the plan that the agent would get."""
    for name in ("URL", "TOKEN", "TOKEN_FILE", "NODE_NAME", "CONFIG_FILE", "DATA_DIR", "LB_SERVER_PORT"):
        monkeypatch.delenv(f"K3S_{name}", raising=False)
    plans: list[AgentPlan] = []

    async def run(plan: AgentPlan, **more: Any) -> None:
        plans.append(plan)

    monkeypatch.setattr(process, "run", run)

    def plan(*arguments: str) -> AgentPlan:
        mooring.done("agent", *arguments)
        return plans.pop()

    return plan


def token_of(plan: AgentPlan) -> str:
    found = plan.token.read()
    return found.credential.reveal().decode() if found is not None else ""


def test_a_server_chooses_the_k3s_way(planned: Callable[..., AgentPlan], tmp_path: Path) -> None:
    plan = planned(
        "--server", f"{URL}/", "--server", "https://192.0.2.11:6443", "--token", TOKEN, "--node-name", "worker", "--node-ip",
        "192.0.2.7,2001:db8::7", "--with-node-id", "--root", str(tmp_path), "--data-dir", "/data", "--discovery-timeout", "1m",
        "--register-node", "none", "--lb-server-port", "7444", "--keep-token-file",
    )  # fmt: skip
    assert plan.settings.server == (URL, "https://192.0.2.11:6443")
    assert (plan.settings.node_name, plan.settings.node_ip, plan.settings.with_node_id) == (
        "worker",
        ("192.0.2.7", "2001:db8::7"),
        True,
    )
    assert (plan.settings.root, plan.settings.data_dir, plan.polling.total) == (str(tmp_path), "/data", 60.0)
    assert (plan.settings.register_node, plan.settings.lb_server_port, plan.token.keeps_files) == ("none", 7444, True)
    assert (plan.token.environment_files, plan.token.default_files) == (
        (),
        (tmp_path / "etc/systemd/system/k3s-agent.service.env",),
    )
    assert token_of(plan) == "node:not-so-secret"


def test_without_the_load_balancer(planned: Callable[..., AgentPlan]) -> None:
    assert planned("--server", URL, "--disable-apiserver-lb").settings.disable_apiserver_lb


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        pytest.param((), None, id="off unless it is asked for"),
        pytest.param(("--load-balancer-port", "7444"), 7444, id="a port"),
        pytest.param(("--load-balancer-port", "0"), 0, id="a free port"),
    ],
)
def test_a_machine_that_joins_as_kubeadm_does_may_have_a_load_balancer(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[str, ...], port: int | None
) -> None:
    monkeypatch.delenv("K3S_URL", raising=False)
    ports: list[int | None] = []

    async def run(plan: object, options: object, *, more: AgentSettings, **_: Any) -> None:
        ports.append(more.load_balancer_port)

    monkeypatch.setattr(daemon, "run", run)
    mooring.done("agent", "--root", str(tmp_path), *flags)
    assert ports == [port]


def test_each_way_of_joining_has_its_own_flag_of_the_load_balancer(mooring: CommandLine, tmp_path: Path) -> None:
    assert "belong to two ways" in mooring("agent", "--server", URL, "--load-balancer-port", "7444").err
    assert "needs --server" in mooring("agent", "--root", str(tmp_path), "--lb-server-port", "7444").err


def test_the_environment_of_a_k3s_user_is_enough(
    planned: Callable[..., AgentPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"K3S_URL": URL, "K3S_TOKEN": TOKEN, "K3S_NODE_NAME": "worker"}.items():
        monkeypatch.setenv(name, value)
    plan = planned()
    assert (plan.settings.server, plan.settings.node_name, token_of(plan)) == ((URL,), "worker", "node:not-so-secret")
    assert "K3S_TOKEN" not in os.environ, "children of the agent do not get it"


@pytest.mark.parametrize(
    ("arguments", "environment", "found"),
    [
        pytest.param(
            ("--token", "K10::node:flag"), {"K3S_TOKEN": "K10::node:env"}, "node:flag", id="flag, then K3S_TOKEN"
        ),
        pytest.param(("--token-file", "FILE"), {"K3S_TOKEN": "K10::node:env"}, "node:file", id="file, then K3S_TOKEN"),
        pytest.param(
            (),
            {"K3S_TOKEN": "K10::node:env", "K3S_TOKEN_FILE": "FILE"},
            "node:file",
            id="then K3S_TOKEN_FILE, as in k3s",
        ),
        pytest.param(
            ("--token", "K10::node:flag"), {"K3S_TOKEN_FILE": "FILE"}, "node:flag", id="a flag, then K3S_TOKEN_FILE"
        ),
        pytest.param((), {"K3S_TOKEN_FILE": "FILE"}, "node:file", id="K3S_TOKEN_FILE alone"),
        pytest.param((), {"MOORING_TOKEN": "K10::node:own"}, "node:own", id="MOORING_TOKEN"),
        pytest.param(("--token", ""), {"K3S_TOKEN": "K10::node:env"}, "node:env", id="an empty flag, then K3S_TOKEN"),
        pytest.param(("--token-file", ""), {"K3S_TOKEN_FILE": "FILE"}, "node:file", id="an empty flag, then the file"),
        pytest.param(
            (), {"MOORING_TOKEN": "K10::node:own", "K3S_TOKEN": "K10::node:env"}, "node:env", id="K3S_TOKEN first"
        ),
        pytest.param((), {}, "", id="none: a member needs none"),
    ],
)
def test_sources_of_the_token(
    planned: Callable[..., AgentPlan],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    found: str,
) -> None:
    file = tmp_path / "token"
    file.write_text("K10::node:file\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("FILE", str(file)))
    assert token_of(planned("--server", URL, *(one.replace("FILE", str(file)) for one in arguments))) == found


def test_a_name_is_written_in_lower_case_and_a_line_says_so(
    planned: Callable[..., AgentPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """k3s, `pkg/agent/config`: the node name of a flag or a variable in lower case."""
    monkeypatch.setenv("K3S_NODE_NAME", "RPiNode2")
    assert planned("--server", URL).settings.node_name == "rpinode2"


def test_which_of_two_variables_gave_the_token_is_a_line(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """k3s, `pkg/cli/agent/agent.go`: a token file replaces the token."""

    async def run(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setenv("K3S_TOKEN", "K10::node:stale")
    monkeypatch.setenv("K3S_TOKEN_FILE", str(tmp_path / "token"))
    told = mooring("agent", "--server", URL).err
    assert (
        told
        == f"Warning: K3S_TOKEN and K3S_TOKEN_FILE are both set: the token in {tmp_path}/token is used, as by k3s\n"
    )


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ("K10::node:other", "Warning: MOORING_TOKEN and K3S_TOKEN hold two tokens: that in K3S_TOKEN is used\n"),
        ("K10::node:env", ""),
    ],
    ids=["another token", "the same token"],
)
def test_two_variables_with_two_tokens_are_a_line(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, own: str, told: str
) -> None:
    async def run(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setenv("K3S_TOKEN", "K10::node:env")
    monkeypatch.setenv("MOORING_TOKEN", own)
    assert mooring("agent", "--server", URL).err == told


def test_an_empty_token_file_holds_no_token(planned: Callable[..., AgentPlan], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    assert token_of(planned("--server", URL, "--token-file", str(tmp_path / "token"))) == ""
    assert token_of(planned("--server", URL, "--token-file", str(tmp_path / "missing"))) == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("--server", "http://192.0.2.10:6443"), "--server: the scheme must be https", id="no https"),
        pytest.param(("--server", "192.0.2.10:6443"), "--server: the scheme must be https", id="no URL"),
        pytest.param(
            ("--server", "https://u:12/hunter2@192.0.2.10"), "user name or a password", id="one that has a slash"
        ),
        pytest.param(("--server", "https://u:p@192.0.2.10"), "user name or a password", id="a password in the URL"),
        pytest.param(("--server", URL, "--token", "K10x"), "--token: invalid token format", id="a token that is none"),
        pytest.param(
            ("--server", URL, "--token", "${TOKEN}"),
            "--token: it has a placeholder of the form ${NAME}",
            id="a template",
        ),
        pytest.param(("--server", URL, "--token", TOKEN, "--token-file", "x"), "cannot both be given", id="two tokens"),
        pytest.param(("--server", URL, "--node-ip", "a"), '--node-ip: "a" is not an IP address', id="no address"),
        pytest.param(("--server", URL, "--node-name", "A_b"), '--node-name "A_b" is invalid', id="no name of a node"),
        pytest.param(
            ("--server", URL, "--node-name", "A_b"), "--node-name a-b", id="no name of a node: the one to give"
        ),
        pytest.param(
            ("--server", URL, "--node-name", "a" * 64),
            "the label kubernetes.io/hostname of a Node takes 63",
            id="too long",
        ),
        pytest.param(
            ("--server", URL, "--with-node-id", "--node-name", "a" * 55),
            "takes 54 beside the 9 of",
            id="with its id too long",
        ),
        pytest.param(
            ("--server", URL, "--register-node", "none", "--node-name", "a" * 236),
            "it has 236 characters, and 235 are possible",
            id="too long for the Secret of its password",
        ),
        pytest.param(
            ("--server", URL, "192.0.2.10"), "ADDRESS and --server belong to two ways", id="an address as well"
        ),
        pytest.param(("--server", URL, "-v", "5"), "-v takes no number: -v and -vv make", id="a log level of k3s"),
        pytest.param(("-v", "5"), "-v takes no number: -v and -vv make", id="a log level, and the server elsewhere"),
        pytest.param(("--server", URL, "--discovery-file", "x"), "--discovery-file and --server", id="kubeadm's flags"),
        pytest.param(
            ("--server", URL, "--serving-certificates"), "--serving-certificates and --server", id="the agent's flags"
        ),
        pytest.param(("--token-file", "x"), "--token-file needs --server", id="a flag of the k3s way alone"),
        pytest.param(("--with-node-id", "192.0.2.10"), "--with-node-id needs --server", id="with an address"),
        pytest.param(tuple(["--server", URL] * 17), "at most 16 servers", id="too many servers"),
    ],
)
def test_a_wrong_command_line_is_one_line(mooring: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    outcome = mooring("agent", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert "not-so-secret" not in outcome.all


@pytest.mark.parametrize(
    ("content", "place"),
    [
        pytest.param(f"K3S_TOKEN={TOKEN} # rack 7\n", ", line 1,", id="text behind the value"),
        pytest.param(f"a: 1\ntoken: >-\n  {TOKEN}\n", ", line 3,", id="a block"),
        pytest.param(f"Environment=K3S_TOKEN={TOKEN}\nExecStart=/m --token {TOKEN}\n", ", lines 1, 2,", id="a unit"),
        pytest.param(f"K3S_TOKEN={TOKEN[:14]}\\\n{TOKEN[14:]}\n", ", on several lines,", id="a line that goes on"),
        pytest.param("secret=not-so-secret\n", ", line 1,", id="its password alone"),
    ],
)
def test_a_token_that_stays_in_a_file_is_reported_with_its_line(
    planned: Callable[..., AgentPlan], tmp_path: Path, content: str, place: str
) -> None:
    file = tmp_path / "agent.env"
    file.write_text(content)
    token = planned("--server", URL, "--token", TOKEN, "--token-env-file", str(file)).token
    problem = f"the token is still on disk: {file}{place} in a form that is not rewritten; remove it there"
    assert token.forget() == ([], [problem])
    assert file.read_text() == content


@pytest.mark.parametrize("content", [f"K3S_TOKEN={TOKEN}\n", "token: 'not-so-secret'\n", f"t: {TOKEN} # rack 7\n"])
def test_a_token_that_is_removed_is_no_problem(planned: Callable[..., AgentPlan], tmp_path: Path, content: str) -> None:
    file = tmp_path / "agent.env"
    file.write_text(content)
    token = planned("--server", URL, "--token", TOKEN, "--token-env-file", str(file)).token
    assert token.forget() == ([file], [])
    assert "not-so-secret" not in file.read_text()


def test_a_file_that_was_named_for_the_removal_and_is_not_there_is_reported(
    planned: Callable[..., AgentPlan], tmp_path: Path
) -> None:
    missing, link, directory = (tmp_path / name for name in ("missing.env", "link", "directory"))
    link.symlink_to("nowhere")
    directory.mkdir()
    named = [word for path in (missing, link, directory) for word in ("--token-env-file", str(path))]
    changed, problems = planned("--server", URL, "--token", TOKEN, *named).token.forget()
    assert changed == []
    assert [problem.partition(" cannot")[0] for problem in problems] == [
        f"no token was removed from a file: {path}" for path in (missing, link, directory)
    ]


def test_the_file_of_the_installer_may_be_missing(planned: Callable[..., AgentPlan], tmp_path: Path) -> None:
    assert planned("--server", URL, "--token", TOKEN, "--root", str(tmp_path)).token.forget() == ([], [])


def test_k3s_url_does_not_change_the_other_way(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3S_URL", URL)
    assert "discovery by token" in mooring("agent", "192.0.2.10", "--token", "abcdef.0123456789abcdef").err


def test_an_error_about_the_token_says_why_it_is_missing(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, closed = ("--root", str(tmp_path)), f"https://127.0.0.1:{free_port()}"
    assert "; the value after --token is empty" in mooring("agent", "--server", closed, "--token", "", *root).err
    kubeconfig = tmp_path / "etc" / "kubernetes" / "kubelet.conf"
    kubeconfig.parent.mkdir(parents=True)
    kubeconfig.touch()
    monkeypatch.setenv("K3S_URL", closed)
    error = mooring("agent", *root).err
    assert f"this machine joined kubeadm's way ({kubeconfig} is there), and K3S_URL chooses k3s's: unset it" in error


def test_other_users_do_not_see_the_token_of_a_running_agent(tmp_path: Path) -> None:
    token = "K10::node:visible-to-nobody"
    program = subprocess.Popen(
        [
            sys.executable, "-m", "mooring", "agent", "--server", f"https://127.0.0.1:{free_port()}", "--token", token, "--root",
            str(tmp_path), "--disable-apiserver-lb",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert program.stderr is not None
        assert program.stderr.readline().startswith("[existing] no valid certificate yet")
        shown = Path(f"/proc/{program.pid}/cmdline").read_bytes()
        assert b"agent --server" in shown
        assert b"visible-to-nobody" not in shown
        assert b"visible-to-nobody" not in Path(f"/proc/{program.pid}/environ").read_bytes()
    finally:
        program.terminate()
        program.wait(30)
        assert program.stderr is not None
        program.stderr.close()
    assert program.returncode == 0


def test_adopt_is_of_one_run_and_never_of_a_unit(
    planned: Callable[..., AgentPlan], mooring: CommandLine, tmp_path: Path
) -> None:
    words = ("--server", URL, "--node-name", "worker", "--root", str(tmp_path))
    assert [planned(*words, *more).adopts for more in ((), ("--adopt",))] == [False, True]
    assert mooring("agent", "unit", "--adopt").code == 2
