"""Files of other users: refused without waiting, and reported when others can read or change them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.cli.main import run
from mooring.client import files
from mooring.client.files import exposure, read_limited, write_atomic
from mooring.errors import ConfigError

STRANGER = 54321


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `path` to another user. Without root, the process takes another user id in its own view instead."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    tmp_path.chmod(0o1777)
    return tmp_path


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(os.mkfifo, "is not a regular file", id="a named pipe that nobody writes"),
        pytest.param(os.mkdir, "is a directory; name a file", id="a directory"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "is not a regular file", id="a link to a device"),
        pytest.param(lambda path: path.symlink_to(path), "symbolic links", id="a link to itself"),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(ConfigError, match=why):
        read_limited(tmp_path / "x")


def test_a_descriptor_that_was_handed_over_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"key")
    os.close(writer)
    try:
        assert read_limited(Path(f"/dev/fd/{reader}")) == b"key"
    finally:
        os.close(reader)


def test_a_link_in_a_directory_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"key")
    (tmp_path / "link").symlink_to("data")
    assert read_limited(tmp_path / "link") == b"key"


def test_what_another_user_put_where_everybody_may_write_is_not_read(
    sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sticky / "ca.key"
    path.write_bytes(b"key")
    assert read_limited(path) == b"key"
    give_away(path, monkeypatch)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid .*copy it to a directory of your own"):
        read_limited(path)
    sticky.chmod(0o755)
    assert read_limited(path) == b"key"


@pytest.mark.timeout(20)
def test_pipes_that_look_like_temporary_files_hold_up_no_command(sticky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, stranger = sticky / ".a.mooring-tmp", sticky / ".b.mooring-tmp"
    os.mkfifo(pipe)
    stranger.write_bytes(b"")
    abandoned = sticky / ".c.mooring-tmp"
    abandoned.write_bytes(b"half a key")
    if os.geteuid() == 0:
        give_away(stranger, monkeypatch)
    assert run(["certs", "ca", "--out-dir", str(sticky)]) == 0
    assert pipe.exists()
    assert stranger.exists() is (os.geteuid() == 0)
    assert not abandoned.exists()
    assert stat.S_IMODE((sticky / "ca.key").stat().st_mode) == 0o600


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_key_is_refused_and_not_written(sticky: Path) -> None:
    os.mkfifo(sticky / "ca.key")
    assert run(["certs", "ca", "--out-dir", str(sticky), "--force"]) == 1
    assert (sticky / "ca.key").is_fifo()


def test_nothing_is_written_where_everybody_may_replace_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"everybody may replace files in .*run chmod o-w {tmp_path}"):
        write_atomic(tmp_path / "ca.key", b"key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "readers", "why"),
    [
        (0o600, 0o044, ""),
        (0o400, 0o044, ""),
        (0o644, 0o044, "can be read by other users of this machine: run chmod 600 "),
        (0o640, 0o044, "can be read by other users of this machine: run chmod 600 "),
        (0o640, 0o004, ""),
        (0o604, 0o004, "can be read by other users of this machine: run chmod 600 "),
        (0o644, 0, ""),
        (0o620, 0, "can be changed by other users of this machine: run chmod 600 "),
        (0o602, 0, "can be changed by other users of this machine: run chmod 600 "),
    ],
)
def test_how_others_may_reach_a_file(tmp_path: Path, mode: int, readers: int, why: str) -> None:
    path = tmp_path / "a key"
    path.write_bytes(b"")
    path.chmod(mode)
    assert exposure(path, readers) == (f"{path} {why}'{path}'" if why else "")


def test_a_directory_and_a_stranger_are_told_with_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = tmp_path / "pki"
    pki.mkdir(mode=0o700)
    pki.chmod(0o777)
    assert exposure(pki) == f"{pki} can be changed by other users of this machine: run chmod 700 {pki}"
    give_away(pki, monkeypatch)
    assert f"belongs to another user (uid {pki.stat().st_uid}): run chown {os.geteuid()} {pki}" in exposure(pki)
    assert exposure(tmp_path / "missing") == ""


def test_a_group_may_read_what_root_owns_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"")
    path.chmod(0o640)
    monkeypatch.setattr(files, "ROOT", path.stat().st_uid)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert exposure(path) == ""
    path.chmod(0o644)
    assert "chmod 600" in exposure(path)
