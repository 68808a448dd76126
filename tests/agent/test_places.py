"""Test where a machine refuses to join: where another user could put his files in the place of its keys."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.agent.k3s.files import AgentFiles
from mooring.agent.state import NodeState
from mooring.errors import ConfigError

PKI = "etc/kubernetes/pki"
STRANGER = 65534


def chmod(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


def of_a_stranger(path: Path) -> None:
    """Give the directory to another user, where this one may do that."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who can give a directory away")
    os.chown(path, STRANGER, STRANGER)


def of_a_group(path: Path) -> None:
    of_a_stranger(path)
    os.chown(path, 0, STRANGER)
    path.chmod(0o775)


@pytest.mark.parametrize("place", ["", "etc", "etc/kubernetes", PKI, "var", "var/lib/kubelet/pki"], ids=str)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(chmod(0o777), "other users may replace files in .*; run chmod go-w ", id="everybody may write"),
        pytest.param(of_a_stranger, "belongs to another user .uid 65534.*; run chown 0 ", id="another owner"),
        pytest.param(of_a_group, "other users may replace files in .*; run chmod go-w ", id="a group may write"),
    ],
)
def test_keys_are_not_written_below_a_directory_of_another_user(
    tmp_path: Path, place: str, change: Callable[[Path], None], reason: str
) -> None:
    state = NodeState(tmp_path)
    for directory in (state.ca.parent, state.certificates):
        directory.mkdir(parents=True)
    state.check_places()
    change(tmp_path / place)
    with pytest.raises(ConfigError, match=reason):
        state.check_places()


@pytest.mark.parametrize("check", [lambda root: NodeState(root).check_places(), lambda root: AgentFiles(root).make()])
def test_no_token_is_used_where_its_certificate_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[Path], None]
) -> None:
    """Without /proc no client certificate can be handed to OpenSSL."""

    def refuse(path: str, flags: int) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="mount /proc"):
        check(tmp_path)


@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o775, 0o700], ids=oct)
def test_these_directories_are_safe(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(tmp_path, 0, 0)
    NodeState(tmp_path).check_places()
    AgentFiles(tmp_path).make()


def test_a_link_may_lead_to_another_place_below_the_root_and_not_out_of_it(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "data").mkdir(parents=True)
    outside.mkdir()
    (root / "etc").symlink_to(root / "data")
    NodeState(root).check_places()
    (root / "var").symlink_to(outside)
    with pytest.raises(
        ConfigError, match=f"var/lib/kubelet/pki leads out of {root}, to {outside}/lib/kubelet/pki: remove"
    ):
        NodeState(root).check_places()
    with pytest.raises(ConfigError, match="leads out of"):
        AgentFiles(root).make()
    assert list(outside.iterdir()) == []


def test_the_owner_of_the_directory_of_a_link_chooses_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "safe").mkdir()
    (tmp_path / "etc/kubernetes").symlink_to(tmp_path / "safe")
    (tmp_path / "etc").chmod(0o777)
    with pytest.raises(ConfigError, match="other users may replace files in"):
        NodeState(tmp_path).check_places()


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to(tmp_path / "etc")
    with pytest.raises(ConfigError, match="symbolic link"):
        NodeState(tmp_path).check_places()


def test_the_root_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    NodeState(tmp_path / "root").check_places()


@pytest.mark.parametrize("place", ["etc/kubernetes", PKI, "var/lib/kubelet/pki", "var/lib/mooring"])
def test_where_anybody_may_make_files_no_keys_are_written(tmp_path: Path, place: str) -> None:
    """Mode 1777 keeps others from replacing a file, and not from making it first."""
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place).chmod(0o1777)
    with pytest.raises(ConfigError, match=f"other users may replace files in .*{place};"):
        NodeState(tmp_path).check_places()


def test_a_directory_that_another_user_made_meanwhile_is_found_before_anything_is_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    state = NodeState(tmp_path)
    state.check_places()
    (tmp_path / "etc").mkdir()
    of_a_stranger(tmp_path / "etc")
    with pytest.raises(ConfigError, match="etc belongs to another user"):
        state.make_places()


def test_the_directories_are_made_for_their_owner(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.make_places()
    made = [directory for directory in tmp_path.rglob("*") if directory.is_dir()]
    assert {directory.stat().st_mode & 0o7777 for directory in made} == {0o755}
    assert {state.ca.parent, state.certificates, state.record.path.parent} <= set(made)


@pytest.mark.parametrize("name", ["ca", "kubeconfig", "bootstrap", "pending_key"])
def test_a_file_that_leads_out_of_the_root_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    state = NodeState(root)
    state.make_places()
    getattr(state, name).symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match=f"leads out of {root}, to {tmp_path}/outside: remove"):
        state.check_places()


def test_each_link_on_the_way_lies_where_no_other_user_may_change_it(tmp_path: Path) -> None:
    for name in ("etc", "safe", "open"):
        (tmp_path / name).mkdir()
    (tmp_path / "open/link").symlink_to("../safe")
    (tmp_path / "etc/kubernetes").symlink_to("../open/link")
    NodeState(tmp_path).check_places()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match=r"other users may replace files in .*/open;"):
        NodeState(tmp_path).check_places()


@pytest.mark.parametrize("kind", ["kubeadm's way", "k3s's way"])
@pytest.mark.parametrize(
    ("mount", "reason"),
    [
        pytest.param(["--bind", "{0}", "{1}"], "device or resource busy; something is mounted", id="a mount point"),
        pytest.param(["-t", "tmpfs", "-o", "size=8k,mode=700", "tmpfs", "{2}"], "no space left", id="a full disk"),
    ],
)
def test_a_kubeconfig_that_cannot_be_written_is_known_before_a_certificate_is_requested(
    tmp_path: Path, kind: str, mount: list[str], reason: str
) -> None:
    state, files = NodeState(tmp_path), AgentFiles(tmp_path)
    kubeconfig, make = (files.kubeconfig, files.make) if "k3s" in kind else (state.kubeconfig, state.make_places)
    make()
    (tmp_path / "other").touch()
    kubeconfig.touch()
    words = [word.format(tmp_path / "other", kubeconfig, kubeconfig.parent) for word in mount]
    if subprocess.run(["mount", *words], capture_output=True).returncode:
        pytest.skip("a mount needs root")
    try:
        with pytest.raises(ConfigError, match=f"{kubeconfig} cannot be written: {reason}"):
            make()
    finally:
        subprocess.run(["umount", words[-1]], check=True)
