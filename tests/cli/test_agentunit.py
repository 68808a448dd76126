"""systemd unit of the agent: what it holds, how it quotes, and that systemd accepts it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mooring.agent import leave
from mooring.cli.systemd import _may_enter, hidden_program
from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]
HOOKS = (
    "systemctl try-reload-or-restart nginx",
    """echo "$MOORING_KIND" 'is 100% new' \\; >> /run/told""",
)


def test_the_unit_runs_the_agent_of_a_member_and_writes_only_its_files(mooring: CommandLine) -> None:
    lines = mooring.done("agent", "unit", "--program", "/usr/bin/mooring").splitlines()
    assert "ExecStart=/usr/bin/mooring agent" in lines
    assert "ConditionPathExists=/etc/kubernetes/kubelet.conf" in lines
    assert "ReadWritePaths=-/etc/kubernetes -/var/lib/kubelet/pki -/var/lib/mooring" in lines
    assert "Restart=always" in lines
    # Files that were copied from another machine: only a person can decide.
    assert "RestartPreventExitStatus=78" in lines
    assert "Type=notify" in lines
    assert not any("token" in line.lower() for line in lines)


def test_the_unit_of_a_machine_that_joined_the_k3s_way_names_its_servers_and_files(mooring: CommandLine) -> None:
    servers = [one for url in ("https://192.0.2.10:6443", "https://192.0.2.11:6443") for one in ("--server", url)]
    lines = mooring.done("agent", "unit", "--program", "/usr/bin/mooring", *servers, "--data-dir", "/data").splitlines()
    assert f"ExecStart=/usr/bin/mooring agent {' '.join(servers)} --data-dir /data" in lines
    assert "ConditionPathExists=/data/agent/client-kubelet.crt" in lines
    assert "ReadWritePaths=-/data/agent -/etc/rancher/node" in lines
    assert "belong to two ways" in mooring("agent", "unit", *servers, "--serving-certificates").err
    assert "belong to two ways" in mooring("agent", "unit", *servers, "--load-balancer-port", "7444").err


def test_an_agent_that_leaves_when_it_is_stopped_has_the_time_for_it(mooring: CommandLine) -> None:
    lines = mooring.done("agent", "unit", "--program", "/usr/bin/mooring", "--leave-on-stop").splitlines()
    assert "ExecStart=/usr/bin/mooring agent --leave-on-stop" in lines
    (stop,) = (line.partition("=")[2] for line in lines if line.startswith("TimeoutStopSec="))
    assert int(stop) > 2 * leave.STOP_SECONDS
    assert "TimeoutStopSec" not in mooring.done("agent", "unit")


def test_hooks_are_quoted_and_may_write_anywhere(mooring: CommandLine) -> None:
    flags = [one for hook in HOOKS for one in ("--on-renew", hook)]
    text = mooring.done(
        "agent", "unit", "--program", "/usr/bin/mooring", "--root", "/srv/my node", "--serving-certificates",
        "--register-node", "none", "--node-deletion", "reregisters", "--node-ip", "192.0.2.7,2001:db8::7", *flags,
    )  # fmt: skip
    (command,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert command == (
        "ExecStart=/usr/bin/mooring agent --node-ip 192.0.2.7,2001:db8::7 "
        '--root "/srv/my node" --register-node none --node-deletion reregisters '
        '--serving-certificates --on-renew "systemctl try-reload-or-restart nginx" '
        r"""--on-renew "echo \"$$MOORING_KIND\" 'is 100%% new' \\; >> /run/told" """.rstrip()
    )
    assert "ProtectSystem" not in text


def test_what_no_unit_can_hold_is_refused(mooring: CommandLine) -> None:
    assert "put the command into a script" in mooring("agent", "unit", "--on-renew", "true\nfalse").err
    assert "--program must be an absolute path" in mooring("agent", "unit", "--program", "mooring").err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("hooks", [(), HOOKS], ids=["no hook", "hooks"])
def test_systemd_accepts_the_unit(mooring: CommandLine, tmp_path: Path, hooks: tuple[str, ...]) -> None:
    flags = [one for hook in hooks for one in ("--on-renew", hook)]
    unit = tmp_path / "mooring-agent.service"
    unit.write_text(mooring.done("agent", "unit", "--program", "/bin/true", *flags))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("path", "user", "problem"),
    [
        pytest.param("/tmp/venv/bin/mooring", "root", "PrivateTmp=", id="a temporary directory"),
        pytest.param("{home}/bin/mooring", "mooring", "{home}, into which the user mooring may not look", id="a home"),
        pytest.param("{home}/bin/mooring", "root", "", id="a home, and root"),
        pytest.param("/usr/bin/env", "mooring", "", id="a place for programs"),
        pytest.param("/nonexistent/bin/mooring", "mooring", "", id="another machine"),
    ],
)
def test_a_program_that_a_service_cannot_start(
    path: str, user: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    monkeypatch.setattr("mooring.cli.systemd._PRIVATE", ("/tmp/venv",))
    monkeypatch.setattr(
        "mooring.cli.systemd._may_enter", lambda directory, user: directory.stat() and directory != home
    )
    said = hidden_program(Path(path.format(home=home)), user)
    assert problem.format(home=home) in said
    assert bool(said) == bool(problem)


@pytest.mark.parametrize(
    ("mode", "user", "may"), [(0o700, "absent", False), (0o711, "absent", True), (0o700, "root", True)]
)
def test_the_mode_of_a_directory_decides_who_may_look_into_it(mode: int, user: str, may: bool, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    if os.geteuid() == 0 or user != "root":
        assert _may_enter(tmp_path, user) is may
