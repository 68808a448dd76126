"""`mooring leave`: what is asked, what goes, what stays, and what a run that failed leaves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from mooring.agent import leave
from tests.cli.test_service import OFFLINE, Systemd, join, systemd
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server
from tests.support.ports import free_port

__all__ = ["live_server", "mooring", "systemd"]


class Terminal(io.StringIO):
    """Standard input of a person who answers."""

    def isatty(self) -> bool:
        return True


def files(root: Path) -> list[str]:
    return sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file() or one.is_symlink())


def test_a_person_sees_what_goes_and_may_say_no(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "asked"))
    before = files(root)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    done = mooring("leave", "--root", str(root))
    assert (done.code, done.out) == (130, "")
    assert f"Node asked of {live_server.url} will be deleted" in done.err
    assert f"  {root}/etc/kubernetes/kubelet.conf\n" in done.err
    assert files(root) == before
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert mooring.done("leave", "--root", str(root)) == (
        f"This machine has left {live_server.url}: node asked is deleted, its certificates are revoked.\n"
    )
    assert files(root) == []


def test_without_a_person_to_ask_yes_is_needed(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "unasked"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = mooring("leave", "--root", str(root))
    assert (done.code, "add --yes" in done.err) == (2, True)
    found = json.loads(mooring.done("leave", "--root", str(root), "--yes", "-o", "json"))
    assert (found["nodeName"], found["membershipEnded"], found["serviceRemoved"]) == ("unasked", True, False)
    assert f"{root}/etc/kubernetes/pki/ca.crt" in found["removed"]
    assert "there is nothing to remove" in mooring.done("leave", "--root", str(root), "--yes")


def test_the_service_goes_with_the_membership(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "serving", "--service"))
    systemd.calls()
    found = json.loads(mooring.done("leave", "--root", str(root), "--yes", "-o", "json"))
    assert found["serviceRemoved"] is True
    assert systemd.calls() == [
        "is-system-running", "stop mooring-agent", "disable --now mooring-agent", "daemon-reload",
    ]  # fmt: skip
    assert not systemd.unit.exists()


def test_an_agent_that_leaves_when_it_is_stopped_has_left(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "twice", "--service"))
    systemd.answers(f"is-system-running) echo running ;; stop*) rm -r {root}/etc {root}/var ;;")
    assert "has left" in mooring.done("leave", "--root", str(root), "--yes")
    assert not systemd.unit.exists()


def test_an_image_in_which_nothing_can_be_stopped_leaves(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "imaged", "--service"))
    systemd.answers(OFFLINE)
    assert "has left" in mooring.done("leave", "--root", str(root), "--yes")
    assert (systemd.unit.exists(), files(root)) == (False, [])


def test_a_masked_unit_keeps_no_machine_from_leaving(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "masked"))
    systemd.unit.symlink_to("/dev/null")
    assert "has left" in mooring.done("leave", "--root", str(root), "--yes")
    assert (systemd.calls(), systemd.unit.is_symlink()) == ([], True)


def test_the_service_of_another_root_stays(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        mooring.done(*join(live_server, tmp_path / name, name, "--service"))
    systemd.calls()
    mooring.done("leave", "--root", str(tmp_path / "first"), "--yes")
    assert systemd.calls() == []
    assert systemd.unit.exists()


def test_a_server_that_does_not_answer_ends_nothing_and_the_service_goes_on(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "alone", "--service"))
    kubeconfig = root / "etc/kubernetes/kubelet.conf"
    kubeconfig.write_text(kubeconfig.read_text().replace(str(live_server.port), str(free_port())))
    before = files(root)
    systemd.calls()
    done = mooring("leave", "--root", str(root), "--yes")
    assert (done.code, files(root)) == (1, before)
    assert systemd.calls() == ["is-system-running", "stop mooring-agent", "start mooring-agent"]
    assert "No server was asked" in mooring.done("leave", "--root", str(root), "--yes", "--files-only")
    assert files(root) == []


def test_what_a_run_that_was_cut_off_has_left_is_removed(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "halfway"))
    live_server.run(lambda client: client.delete("nodes", "halfway"))
    assert "had ended before" in mooring.done("leave", "--root", str(root), "--yes")
    assert files(root) == []


def test_a_join_that_waits_is_no_membership_that_is_left(mooring: CommandLine, tmp_path: Path) -> None:
    pending = tmp_path / "var/lib/kubelet/pki/kubelet-client.key.tmp"
    pending.parent.mkdir(parents=True)
    pending.write_text("")
    done = mooring("leave", "--root", str(tmp_path), "--yes")
    assert (done.code, "not a member yet: a join waits for its certificate" in done.err) == (1, True)
    mooring.done("leave", "--root", str(tmp_path), "--yes", "--files-only")
    assert not pending.exists()


def test_files_without_a_certificate_are_removed_when_asked_for(mooring: CommandLine, tmp_path: Path) -> None:
    ca = tmp_path / "etc/kubernetes/pki/ca.crt"
    ca.parent.mkdir(parents=True)
    ca.write_text("")
    done = mooring("leave", "--root", str(tmp_path), "--yes")
    assert "remove the files with --files-only" in done.err
    mooring.done("leave", "--root", str(tmp_path), "--yes", "--files-only")
    assert not ca.exists()


def test_files_that_somebody_put_beside_those_of_the_membership_stay(mooring: CommandLine, tmp_path: Path) -> None:
    pki = tmp_path / "var/lib/kubelet/pki"
    pki.mkdir(parents=True)
    for name in ("mine", "2026-11-26-10-00-00", "updated", "rejected", "current"):
        (pki / f"kubelet-client-{name}.pem").write_text("")
    (pki / "kubelet-server-old.pem").write_text("")
    mooring.done("leave", "--root", str(tmp_path), "--yes", "--files-only")
    assert sorted(one.name for one in pki.iterdir()) == ["kubelet-client-mine.pem", "kubelet-server-old.pem"]


@pytest.mark.parametrize("beside", ["ca.key", "apiserver.crt"])
def test_the_ca_of_a_control_plane_on_the_machine_stays(beside: str, mooring: CommandLine, tmp_path: Path) -> None:
    pki = tmp_path / "etc/kubernetes/pki"
    pki.mkdir(parents=True)
    for path in (pki / "ca.crt", pki / beside, pki.parent / "kubelet.conf"):
        path.write_text("{}")
    mooring.done("leave", "--root", str(tmp_path), "--yes", "--files-only")
    assert sorted(one.name for one in pki.iterdir()) == sorted(["ca.crt", beside])
    assert not (pki.parent / "kubelet.conf").exists()


def test_a_machine_with_the_files_of_both_ways_is_asked_which(mooring: CommandLine, tmp_path: Path) -> None:
    kubeadm, k3s = tmp_path / "etc/kubernetes/kubelet.conf", tmp_path / "var/lib/rancher/k3s/agent/client-kubelet.crt"
    for one in (kubeadm, k3s):
        one.parent.mkdir(parents=True)
        one.write_text("{}")
    done = mooring("leave", "--root", str(tmp_path), "--yes", "--files-only")
    assert "choose one with --way kubeadm or --way k3s" in done.err
    mooring.done("leave", "--root", str(tmp_path), "--yes", "--files-only", "--way", "k3s")
    assert (kubeadm.exists(), k3s.exists()) == (True, False)
    assert leave.find(tmp_path, "/var/lib/rancher/k3s") is not None


def test_a_configuration_file_stays_and_is_named(live_server: LiveServer, mooring: CommandLine, tmp_path: Path) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "configured"))
    config = root / "etc/mooring/agent.yaml"
    config.parent.mkdir()
    config.write_text("register-node: ready\n")
    assert f"{config} stays" in mooring.done("leave", "--root", str(root), "--yes")
    assert config.exists()


def test_a_unit_of_somebody_else_stops_the_command_before_anything_is_changed(
    live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, "foreign"))
    systemd.unit.write_text(f"[Unit]\nConditionPathExists={root}/etc/kubernetes/kubelet.conf\n")
    before = files(root)
    done = mooring("leave", "--root", str(root), "--yes")
    assert "was not written by mooring agent install" in done.err
    assert files(root) == before


@pytest.mark.parametrize("fails", ["stop", "start"])
def test_the_service_goes_on_after_a_stop_that_failed_and_a_failed_start_hides_no_error(
    fails: str, live_server: LiveServer, mooring: CommandLine, systemd: Systemd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    mooring.done(*join(live_server, root, f"fails-{fails}", "--service"))
    kubeconfig = root / "etc/kubernetes/kubelet.conf"
    kubeconfig.write_text(kubeconfig.read_text().replace(str(live_server.port), str(free_port())))
    systemd.calls()
    systemd.answers(f"{fails}*) echo Job failed. >&2; exit 1 ;;")
    done = mooring("leave", "--root", str(root), "--yes")
    assert systemd.calls() == ["is-system-running", "stop mooring-agent", "start mooring-agent"]
    assert done.code == 1
    assert f"`systemctl {fails} mooring-agent` failed: Job failed." in done.err
    assert ("Error: " in done.err, "warning: " in done.err) == (True, fails == "start")
