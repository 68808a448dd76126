"""Services of systemd: `agent install` and `uninstall`, `join --service`, `server unit`. A recorded systemctl takes the calls."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mooring.cli import systemd as systemctl
from mooring.cli.join import join as join_command
from mooring.cli.systemd import quote
from mooring.trust.joinconfiguration import JoinSettings
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]
UNIT = "mooring-agent.service"
FAKE = """\
#!/bin/sh
echo "$@" >> {calls}
case "$*" in {cases} esac
"""
RUNS = "is-system-running) echo running ;;"
OFFLINE = "is-system-running) echo offline; exit 1 ;; *stop*|*now*|start*|daemon-reload) exit 1 ;;"
"""Answers of systemctl in an image: it enables and disables units, and reaches no systemd."""


class Systemd:
    """A systemctl of the test's own, first in PATH, and a directory for units."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units, self._calls, self._program = folder / "units", folder / "calls", folder / "bin/systemctl"
        self.units.mkdir()
        self._program.parent.mkdir()
        self.answers(RUNS)
        monkeypatch.setenv("PATH", f"{self._program.parent}:/usr/bin:/bin")
        monkeypatch.setattr(systemctl, "UNITS", str(self.units))

    def answers(self, cases: str) -> None:
        self._program.write_text(FAKE.format(calls=self._calls, cases=cases))
        self._program.chmod(0o755)

    @property
    def unit(self) -> Path:
        return self.units / UNIT

    def calls(self) -> list[str]:
        """Return the calls since the last time."""
        found = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.write_text("")
        return found


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    return Systemd(tmp_path, monkeypatch)


@pytest.fixture
def member(tmp_path: Path) -> Path:
    """Return the root of a machine that has joined."""
    kubeconfig = tmp_path / "machine/etc/kubernetes/kubelet.conf"
    kubeconfig.parent.mkdir(parents=True)
    kubeconfig.write_text("{}")
    return tmp_path / "machine"


def install(mooring: CommandLine, systemd: Systemd, root: Path, *more: str) -> str:
    return mooring.done("agent", "install", "--root", str(root), "--unit-dir", str(systemd.units), *more)


def uninstall(mooring: CommandLine, systemd: Systemd, *more: str) -> str:
    return mooring.done("agent", "uninstall", "--unit-dir", str(systemd.units), *more)


# -- agent install, agent uninstall ------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [".", "", "bin"])
def test_a_systemctl_of_the_current_directory_is_not_run(
    entry: str, mooring: CommandLine, systemd: Systemd, member: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(mooring, systemd, member)
    systemd.calls()
    monkeypatch.chdir(member.parent if entry else member.parent / "bin")
    (member.parent / "systemctl").symlink_to("bin/systemctl")
    monkeypatch.setenv("PATH", f"{entry}:/usr/bin:/bin")
    for words in (("install", "--root", str(member)), ("uninstall",)):
        said = mooring("agent", *words, "--unit-dir", str(systemd.units)).all
        assert "systemctl is found through a relative entry of PATH" in said
    assert systemd.calls() == []


def test_the_service_is_written_enabled_and_started_and_removed(
    mooring: CommandLine, systemd: Systemd, member: Path
) -> None:
    out = install(mooring, systemd, member, "--program", "/usr/bin/mooring")
    assert out.startswith("The service mooring-agent runs now and at each boot")
    assert systemd.calls() == ["is-system-running", "daemon-reload", "enable mooring-agent", "restart mooring-agent"]
    text = systemd.unit.read_text()
    assert text.startswith("# Written by `mooring agent install`")
    assert f"ExecStart=/usr/bin/mooring agent --root {member}" in text
    assert systemd.unit.stat().st_mode & 0o777 == 0o644
    assert "was stopped" in uninstall(mooring, systemd)
    assert systemd.calls() == ["is-system-running", "disable --now mooring-agent", "daemon-reload"]
    assert not systemd.unit.exists()
    assert uninstall(mooring, systemd) == f"There is no service to remove: {systemd.unit} is missing.\n"
    assert systemd.calls() == []


def test_a_second_installation_takes_other_flags(mooring: CommandLine, systemd: Systemd, member: Path) -> None:
    install(mooring, systemd, member)
    install(mooring, systemd, member, "--serving-certificates")
    assert "--serving-certificates" in systemd.unit.read_text()
    assert systemd.calls().count("restart mooring-agent") == 2


def test_an_image_gets_a_service_that_starts_at_its_boot(
    mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    systemd.answers("is-system-running) echo offline; exit 1 ;;")
    assert "starts at the next boot" in install(mooring, systemd, tmp_path, "--no-start")
    assert [one.split()[0] for one in systemd.calls()] == ["enable"]


def test_the_service_of_an_image_is_removed_without_a_stop(
    mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    systemd.answers(OFFLINE)
    install(mooring, systemd, tmp_path, "--no-start")
    systemd.calls()
    uninstall(mooring, systemd)
    assert systemd.calls() == ["is-system-running", "disable mooring-agent"]
    assert not systemd.unit.exists()


def test_output_for_programs(mooring: CommandLine, systemd: Systemd, member: Path) -> None:
    assert json.loads(install(mooring, systemd, member, "-o", "json")) == {
        "kind": "Service", "name": "mooring-agent", "unit": str(systemd.unit), "enabled": True, "started": True
    }  # fmt: skip
    assert json.loads(uninstall(mooring, systemd, "-o", "json"))["removed"] is True
    assert json.loads(uninstall(mooring, systemd, "-o", "json"))["removed"] is False


def test_no_service_is_installed_on_a_machine_that_has_not_joined(
    mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    done = mooring("agent", "install", "--root", str(tmp_path), "--unit-dir", str(systemd.units))
    assert (done.code, systemd.calls(), systemd.unit.exists()) == (1, [], False)
    assert "not a member of a cluster" in done.err
    assert "mooring join --service" in done.err


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_masked_unit_stays_and_the_message_says_so(
    command: str, mooring: CommandLine, systemd: Systemd, member: Path
) -> None:
    systemd.unit.symlink_to("/dev/null")
    root = ("--root", str(member)) if command == "install" else ()
    done = mooring("agent", command, *root, "--unit-dir", str(systemd.units))
    assert (done.code, systemd.unit.is_symlink()) == (1, True)
    assert f"{systemd.unit} is masked: run `systemctl unmask mooring-agent` first" in done.err


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_unit_that_somebody_else_wrote_stays(
    command: str, mooring: CommandLine, systemd: Systemd, member: Path
) -> None:
    systemd.unit.write_text("[Service]\nExecStart=/opt/own\n")
    root = ("--root", str(member)) if command == "install" else ()
    done = mooring("agent", command, *root, "--unit-dir", str(systemd.units))
    assert done.code == 1
    assert "was not written by mooring agent install" in done.err
    assert systemd.unit.read_text() == "[Service]\nExecStart=/opt/own\n"
    assert "restart mooring-agent" not in systemd.calls()


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        pytest.param(
            "is-system-running) echo offline; exit 1 ;;", "systemd does not run this machine", id="no systemd"
        ),
        pytest.param(
            f"{RUNS} restart*) echo Job failed. >&2; exit 1 ;;",
            "`systemctl restart mooring-agent` failed: Job failed.; see: journalctl --unit mooring-agent",
            id="a start that fails",
        ),
        pytest.param(f"{RUNS} enable*) exit 4 ;;", "failed: exit code 4", id="a silent failure"),
    ],
)
def test_what_systemctl_cannot_do_is_said(
    cases: str, words: str, mooring: CommandLine, systemd: Systemd, member: Path
) -> None:
    systemd.answers(cases)
    done = mooring("agent", "install", "--root", str(member), "--unit-dir", str(systemd.units))
    assert done.code == 1
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_a_machine_without_systemctl_is_told_so(
    mooring: CommandLine, member: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = mooring("agent", "install", "--root", str(member), "--unit-dir", str(tmp_path))
    assert done.err.startswith("Error: there is no systemctl in PATH")


# -- join --service, and the next step -----------------------------------------------------------------------------


def join(server: LiveServer, root: Path, name: str, *more: str) -> list[str]:
    return [
        "join", server.endpoint, "--token", server.create_token().reveal(), "--discovery-token-ca-cert-hash",
        str(server.pin), "--root", str(root), "--node-name", name, *more,
    ]  # fmt: skip


def test_a_join_with_a_service_ends_with_a_member_that_renews(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    out = mooring.done(*join(live_server, root, "serviced", "--service", "--register-node", "tainted"))
    assert "is a member now" in out
    assert "The service mooring-agent runs now" in out
    assert f"agent --root {root} --register-node tainted\n" in systemd.unit.read_text()
    assert "Next" not in out
    found = json.loads(mooring.done("join", "--root", str(root), "--service", "-o", "json"))
    assert found["service"]["started"] is True


def test_a_service_that_cannot_be_installed_uses_no_token(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    systemd.answers("is-system-running) echo offline ;;")
    done = mooring(*join(live_server, tmp_path / "root", "offline", "--service"))
    assert "systemd does not run this machine" in done.err
    assert not (tmp_path / "root").exists()
    assert "exclude each other" in mooring(*join(live_server, tmp_path, "x", "--service", "--discover-only")).err


def test_a_service_that_does_not_start_leaves_a_member(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    systemd.answers(f"{RUNS} restart*) exit 1 ;;")
    done = mooring(*join(live_server, tmp_path / "root", "unstarted", "--service", "-o", "json"))
    found = json.loads(done.out)
    assert (done.code, found["joined"], found["error"]["step"]) == (1, True, "service")


def test_a_join_says_what_comes_next(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "my root"
    assert mooring.done(*join(live_server, root, "next")).splitlines()[-2:] == [
        "Next, keep its certificate and its Node fresh: without the agent it is not Ready after 50 s.",
        f"  mooring agent --root '{root}'",
    ]
    assert (
        json.loads(mooring.done("join", "--root", str(root), "-o", "json"))["next"] == f"mooring agent --root '{root}'"
    )
    systemd.unit.write_text("a service is there\n")
    assert "Next" not in mooring.done("join", "--root", str(root))


@pytest.mark.parametrize(("is_systemd", "command"), [(True, "mooring agent install"), (False, "mooring agent")])
def test_the_next_step_of_a_whole_machine_follows_its_service_manager(
    is_systemd: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: Systemd
) -> None:
    monkeypatch.setattr(join_command, "SYSTEMD", tmp_path if is_systemd else tmp_path / "missing")
    assert join_command.next_step(JoinSettings()) == command
    assert join_command.next_step(JoinSettings(register_node="none")) == ""


# -- server unit ---------------------------------------------------------------------------------------------------


def server_unit(mooring: CommandLine, *flags: str) -> list[str]:
    return mooring.done("server", "unit", "--program", "/usr/bin/mooring", *flags).splitlines()


def test_the_unit_of_a_server_makes_its_user_and_its_directory(mooring: CommandLine) -> None:
    lines = server_unit(mooring, "--control-plane-endpoint", "192.0.2.10")
    assert "ExecStart=/usr/bin/mooring server --data-dir /var/lib/mooring --control-plane-endpoint 192.0.2.10" in lines
    for one in ("Type=notify", "DynamicUser=yes", "User=mooring", "StateDirectory=mooring", "ProtectSystem=strict",
                "CapabilityBoundingSet=", "WantedBy=multi-user.target", "WatchdogSec=60"):  # fmt: skip
        assert one in lines
    assert not any(line.startswith("ExecReload") for line in lines)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        pytest.param(("--workers", "auto"), "ExecReload=/bin/kill -HUP $MAINPID", id="workers can be restarted"),
        pytest.param(("--secure-port", "443"), "AmbientCapabilities=CAP_NET_BIND_SERVICE", id="a port of root's"),
        pytest.param(("--data-dir", "/var/lib/other"), "StateDirectory=other", id="another state directory"),
        pytest.param(("--data-dir", "/srv/m", "--user", "me"), "ReadWritePaths=/srv/m", id="a directory elsewhere"),
        pytest.param(("--audit-log-path", "/var/log/m/a.log"), "LogsDirectory=m", id="an audit log of its own"),
        pytest.param(("--snapshot-dir", "/srv/snapshots"), "ReadWritePaths=/srv/snapshots", id="snapshots elsewhere"),
        pytest.param(("--storage", "sqlite:/srv/db/m.db"), "ReadWritePaths=/srv/db", id="a store elsewhere"),
        pytest.param(("--shutdown-delay-duration", "30s"), "TimeoutStopSec=125", id="a stop that takes longer"),
    ],
)
def test_a_flag_changes_the_unit(flags: tuple[str, ...], wanted: str, mooring: CommandLine) -> None:
    assert wanted in server_unit(mooring, *flags)


def test_paths_are_absolute_and_values_are_quoted(
    mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = (
        one
        for one in server_unit(
            mooring, "--token-auth-file", "my tokens.csv", "--anonymous-auth=false", "--cluster-signing-duration", "90m"
        )
        if one.startswith("ExecStart=")
    )
    assert f'--token-auth-file "{tmp_path}/my tokens.csv"' in line
    assert "--anonymous-auth=false" in line
    assert "--cluster-signing-duration 1h30m0s" in line


KEY = "pkcs11:token=t;object=o?module-path=/usr/lib/token.so&pin-source=env:PIN"


@pytest.mark.parametrize(
    ("flag", "value", "written"),
    [
        pytest.param("--signer", "example.com/x=a.crt,a.key", "example.com/x={here}/a.crt,{here}/a.key", id="a signer"),
        pytest.param("--signer", f"example.com/x=a.crt,{KEY}", f"example.com/x={{here}}/a.crt,{KEY}", id="and a token"),
        pytest.param("--cluster-signing-key-file", KEY, KEY, id="a key in a token"),
    ],
)
def test_files_that_are_not_a_whole_value_are_absolute_and_keys_in_tokens_stay(
    flag: str, value: str, written: str, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    certificate = () if flag == "--signer" else ("--cluster-signing-cert-file", "ca.crt")
    lines = server_unit(mooring, flag, value, *certificate)
    (line,) = (one for one in lines if one.startswith("ExecStart="))
    assert f"{flag} {quote(written.format(here=tmp_path))}" in line


def test_no_variable_is_escaped_in_the_path_of_the_program(mooring: CommandLine) -> None:
    text = mooring.done("server", "unit", "--program", "/opt/$a/mooring", "--token-auth-file", "/etc/$b")
    assert "ExecStart=/opt/$a/mooring server --data-dir /var/lib/mooring --token-auth-file /etc/$$b\n" in text


@pytest.mark.parametrize(
    ("flags", "file", "written"),
    [
        pytest.param(("--snapshot-dir", "snaps"), "", "{here}/snaps", id="snapshots"),
        pytest.param(("--audit-log-path", "logs/a.log"), "", "{here}/logs", id="an audit log"),
        pytest.param(("--storage", "sqlite:db/m.db"), "", "{here}/db", id="a store"),
        pytest.param((), "snapshot-dir: snaps\n", "/snaps", id="the file, which is read in the root directory"),
    ],
)
def test_what_a_server_may_write_has_an_absolute_path(
    flags: tuple[str, ...],
    file: str,
    written: str,
    mooring: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(file)
    assert f"ReadWritePaths={written.format(here=tmp_path)}" in server_unit(mooring, "--config", str(config), *flags)


def test_the_file_of_the_server_is_followed(mooring: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("data-dir: /var/lib/fromfile\nworkers: 2\n")
    lines = server_unit(mooring, "--config", str(file))
    assert f"ExecStart=/usr/bin/mooring server --config {file}" in lines
    assert "StateDirectory=fromfile" in lines
    assert "ExecReload=/bin/kill -HUP $MAINPID" in lines


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(("--server-token", "0123456789abcdef"), "every user can read a unit", id="a secret"),
        pytest.param(
            ("--data-dir", "/srv/m"), "name the user who owns /srv/m with --user", id="no user for a directory"
        ),
        pytest.param(
            ("--audit-log-path", "/var/log/m.log"), "such as /var/log/mooring/m.log", id="a log in root's directory"
        ),
        pytest.param(("--workers", "many"), "workers: give a number", id="a wrong value"),
        pytest.param(("--program", "mooring"), "--program must be an absolute path", id="a relative program"),
    ],
)
def test_what_a_unit_cannot_hold_is_refused(flags: tuple[str, ...], words: str, mooring: CommandLine) -> None:
    done = mooring("server", "unit", *flags)
    assert (done.code, words in done.err) == (2, True), done.err
    assert "0123456789abcdef" not in done.all


_PASSWORD = "hunter2-secret"


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--storage", "etcd:http://root:{}@192.0.2.1:2379"), id="the store"),
        pytest.param(("--storage", "sqlite:postgres://root:{}@192.0.2.1/k3s"), id="a store of k3s"),
        pytest.param(("--etcd-servers", "http://root:{}@192.0.2.1:2379"), id="etcd"),
        pytest.param(("--service-account-issuer", "https://root:{}@192.0.2.1"), id="the issuer of tokens"),
        pytest.param(("--service-account-jwks-uri", "https://root:{}@192.0.2.1"), id="the keys of tokens"),
        pytest.param(("--oidc-client-id", "a", "--oidc-issuer-url", "https://root:{}@192.0.2.1"), id="a provider"),
        pytest.param(("--keystone-url", "https://root:{}@192.0.2.1/v3"), id="Keystone"),
        pytest.param(("--control-plane-endpoint", "root:{}@192.0.2.1:6443"), id="the server's own address"),
        pytest.param(("--advertise-address", "https://root:{}@192.0.2.1"), id="the address of the Service"),
    ],
)
def test_a_password_in_a_url_is_refused_at_every_door_and_not_repeated(
    flags: tuple[str, ...], mooring: CommandLine, tmp_path: Path
) -> None:
    words = [one.format(_PASSWORD) for one in flags]
    file = tmp_path / "config.yaml"
    file.write_text(
        "".join(f"{key.removeprefix('--')}: {value}\n" for key, value in zip(words[::2], words[1::2], strict=True))
    )
    unit = mooring("server", "unit", *words)
    start = mooring("server", "--data-dir", str(tmp_path / "data"), *words)
    check = mooring("config", "check", str(file))
    assert (unit.code, start.code, check.code) == (2, 2, 1)
    assert _PASSWORD not in unit.all + start.all + check.all
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("flags", [(), ("--workers", "2", "--secure-port", "443")], ids=["plain", "more"])
def test_systemd_accepts_the_unit_of_a_server(flags: tuple[str, ...], mooring: CommandLine, tmp_path: Path) -> None:
    unit = tmp_path / "mooring-server.service"
    unit.write_text(mooring.done("server", "unit", "--program", "/bin/true", *flags))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
