"""Files of the server that other users may read or change: its own keys are refused, those of operators are warned of."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.client.files import read_limited
from mooring.controlplane.configuration import server_config
from mooring.controlplane.datadirectory import warn_if_exposed
from mooring.controlplane.keystore import prepare
from mooring.errors import ConfigError
from tests.support.manualclock import EPOCH


def start(root: Path, **flags: object) -> None:
    config = server_config(data_dir=str(root), control_plane_endpoint=("127.0.0.1:6443",), **flags)  # type: ignore[arg-type] # a table of flags
    prepare(config, EPOCH, secrets.token_bytes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    start(tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("pki/ca.key", 0o644, "can be read by other users of this machine: run chmod 600"),
        ("pki/ca.key", 0o640, "can be read by other users of this machine: run chmod 600"),
        ("pki/sa.key", 0o604, "can be read by other users of this machine: run chmod 600"),
        ("pki/apiserver.key", 0o660, "can be changed by other users of this machine: run chmod 600"),
        ("pki/ca.crt", 0o666, "can be changed by other users of this machine: run chmod 600"),
        ("pki/sa.pub", 0o620, "can be changed by other users of this machine: run chmod 600"),
        ("pki", 0o777, "can be changed by other users of this machine: run chmod 700"),
        ("pki", 0o770, "can be changed by other users of this machine: run chmod 700"),
    ],
)
def test_a_start_refuses_keys_that_others_reach(root: Path, name: str, mode: int, why: str) -> None:
    for directory in (root, root / "pki"):
        directory.chmod(0o755)
    before = (root / name).stat().st_mode
    (root / name).chmod(mode)
    with pytest.raises(ConfigError, match=f"{name} {why} {root}/{name}"):
        start(root)
    (root / name).chmod(before)
    start(root)


@pytest.mark.parametrize("closed", ["", "pki"])
@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_a_wide_mode_behind_a_closed_directory_is_warned_of(
    root: Path, closed: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    for directory in (root, root / "pki"):
        directory.chmod(0o755)
    (root / closed).chmod(0o700)
    (root / "pki/ca.key").chmod(mode)
    with caplog.at_level(logging.WARNING):
        start(root)
    assert f"run chmod 600 {root}/pki/ca.key" in caplog.text


def test_a_directory_in_place_of_a_file_gets_no_mode_for_directories(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").mkdir()
    (tmp_path / "key").chmod(0o755)
    warn_if_exposed(tmp_path / "key")
    with pytest.raises(ConfigError, match="is a directory; name a file, not a directory"):
        read_limited(tmp_path / "key")
    assert caplog.text == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["pki", "pki/ca.key", "pki/ca.crt"])
def test_a_start_refuses_keys_that_belong_to_others(root: Path, name: str) -> None:
    os.chown(root / name, 54321, -1)
    with pytest.raises(ConfigError, match=rf"{name} belongs to another user \(uid 54321\): run chown 0 {root}/{name}"):
        start(root)


def test_certificates_and_the_directory_may_be_read(root: Path) -> None:
    (root / "pki").chmod(0o755)
    (root / "pki/ca.crt").chmod(0o644)
    start(root)


@pytest.mark.parametrize(
    ("flag", "prepared"),
    [
        pytest.param("", lambda root: root / "admin.conf", id="the administrator's kubeconfig"),
        pytest.param(
            "service_account_signing_key_file", lambda root: root / "pki/sa.key", id="a key that a flag names"
        ),
    ],
)
def test_a_start_warns_of_other_files_with_secrets(
    root: Path, caplog: pytest.LogCaptureFixture, flag: str, prepared: Callable[[Path], Path]
) -> None:
    path = prepared(root)
    flags: dict[str, object] = {}
    if flag:
        path = path.rename(root.parent / "signing.key")
        flags["service_account_signing_key_file"] = str(path)
    with caplog.at_level(logging.WARNING):
        start(root, **flags)
        assert caplog.text == ""
        path.chmod(0o644)
        start(root, **flags)
    assert f"{path} can be read by other users of this machine: run chmod 600 {path}" in caplog.text
