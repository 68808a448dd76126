"""Files: atomic writes, modes and read limits."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from mooring.client import files
from mooring.client.files import check_writable, make_directory, memory_file, read_limited, write_atomic
from mooring.client.http.tls import present
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.server.transport.tls import server_context
from tests.support.testca import ThrowawayCA


@pytest.fixture
def _no_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_a_file_is_for_its_owner_only_from_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    write_atomic(tmp_path / "a", b"x")
    assert seen[0] == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


@pytest.mark.usefixtures("_no_umask")
def test_another_mode_may_be_asked_for(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"x", 0o644)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old" * 1000)
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_content_is_durable_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        sync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        steps.append("name")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_atomic(tmp_path / "a", b"x")
    assert steps == ["content", "name", "directory"]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "give this user access"),
        (errno.EPERM, "give this user access"),
        (errno.EIO, "input/output error"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_a_disk_that_fails_leaves_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=hint) as caught:
        write_atomic(path, b"new-and-secret")
    assert str(path) in str(caught.value)
    assert "new-and-secret" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("act", "message"),
    [
        pytest.param(
            lambda root: write_atomic(root / "no" / "a", b""), "check the path", id="writing into no directory"
        ),
        pytest.param(lambda root: write_atomic(root / "d", b""), "name a file", id="writing over a directory"),
        pytest.param(lambda root: write_atomic(root / "p", b""), "it is a device, a pipe or", id="writing over a pipe"),
        pytest.param(
            lambda root: write_atomic(root / "l", b""), "it is a device, a pipe or", id="writing over its link"
        ),
        pytest.param(lambda root: check_writable(Path("/dev/null")), "it is a device, a pipe", id="a device"),
        pytest.param(lambda root: check_writable(Path("/dev/stdout")), "it is a device, a pipe", id="an open file"),
        pytest.param(lambda root: read_limited(root / "no"), "check the path", id="reading what is not there"),
        pytest.param(lambda root: read_limited(root / "d"), "name a file", id="reading a directory"),
        pytest.param(lambda root: read_limited(root / "f", 2), "larger than 2 bytes", id="reading too much"),
        pytest.param(lambda root: read_limited(Path("/dev/zero"), 10), "is not a regular file", id="reading a device"),
        pytest.param(
            lambda root: make_directory(root / "f"),
            "cannot be made: file exists; something else has that name",
            id="a directory where a file is",
        ),
        pytest.param(
            lambda root: make_directory(root / "f" / "x"),
            "a part of the path is a file; move it",
            id="a directory below a file",
        ),
    ],
)
def test_what_cannot_be_done_is_told_with_the_path(tmp_path: Path, act: Callable[[Path], object], message: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_bytes(b"abc")
    os.mkfifo(tmp_path / "p")
    (tmp_path / "l").symlink_to("p")
    with pytest.raises(ConfigError, match=message):
        act(tmp_path)
    assert (tmp_path / "p").is_fifo()


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        pytest.param("open", errno.ENOENT, "cannot be read (no such file or directory): mount /proc", id="no /proc"),
        pytest.param("open", errno.EACCES, "cannot be read (permission denied): mount /proc, and allow", id="AppArmor"),
        pytest.param("memfd_create", errno.EMFILE, "raise the limit of open files", id="no descriptor left"),
    ],
)
def test_what_keeps_certificates_from_openssl_is_named(
    monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
) -> None:
    """It was taken for a pair of certificate and key that does not match."""

    def fail(*given: object) -> int:
        raise OSError(number, os.strerror(number))

    ca = ThrowawayCA()
    pair = ca.server("localhost")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ConfigError, match=re.escape(said)), memory_file(b""):
        raise AssertionError("unreachable")
    with pytest.raises(ConfigError, match=re.escape(said)):
        present(ssl.create_default_context(), pair.certificate_pem, Secret(pair.key_pem))
    with pytest.raises(ConfigError, match=re.escape(said)):
        server_context([pair.certificate], pair.key, ())


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert read_limited(tmp_path / "f", 3) == b"abc"


@pytest.mark.usefixtures("_no_umask")
def test_directories_are_private_and_durable_and_old_ones_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    make_directory(tmp_path / "a" / "b")
    assert [stat.S_IMODE((tmp_path / one).stat().st_mode) for one in ("a", "a/b")] == [0o700, 0o700]
    assert synced == [tmp_path / "a", tmp_path]
    (tmp_path / "open").mkdir(0o755)
    make_directory(tmp_path / "open")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o755
    assert synced == [tmp_path / "a", tmp_path]


def test_what_a_killed_writer_left_is_removed_by_the_next_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    abandoned = tmp_path / f".key.000000000000{files.TEMPORARY}"
    abandoned.write_bytes(b"half a key")
    busy = tmp_path / f".b.000000000000{files.TEMPORARY}"
    with busy.open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        write_atomic(tmp_path / "a", b"x")
        assert not abandoned.exists()
        assert busy.exists()
    write_atomic(tmp_path / "a", b"y")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_link_that_looks_like_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"kept")
    link = tmp_path / f".x{files.TEMPORARY}"
    link.symlink_to(tmp_path / "elsewhere")
    write_atomic(tmp_path / "a", b"x")
    assert (tmp_path / "elsewhere").read_bytes() == b"kept"


@pytest.mark.parametrize("name", ["missing/a", "a-directory", "open/a"])
def test_a_place_that_cannot_be_written_is_known_before(name: str, tmp_path: Path) -> None:
    (tmp_path / "a-directory").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError):
        files.check_writable(tmp_path / name)


def test_the_check_of_a_place_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    files.check_writable(tmp_path / "a")
    files.check_writable(tmp_path / "b")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"x")]


@pytest.mark.parametrize(
    ("number", "is_refused"),
    [
        pytest.param(errno.EPERM, True, id="an immutable file"),
        pytest.param(errno.EACCES, False, id="a read-only one"),
        pytest.param(errno.ETXTBSY, False, id="a running program"),
    ],
)
def test_a_file_that_no_rename_replaces_is_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_refused: bool
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    opened = os.open

    def refuse(path: Any, flags: int, *mode: int) -> int:
        if path == tmp_path / "a" and flags & os.O_WRONLY:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="operation not permitted") if is_refused else nullcontext():
        files.check_writable(tmp_path / "a")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"x")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mounted], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.fixture
def mount_point(small_disk: Path) -> Iterator[Path]:
    """A file of that file system, mounted on another file of it."""
    (small_disk / "outside").write_bytes(b"o" * 5000)
    mounted = small_disk / "mounted"
    mounted.touch()
    subprocess.run(["mount", "--bind", small_disk / "outside", mounted], check=True)
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.parametrize("content", [b"new", b"n" * 5000, b"n" * 9000], ids=["shorter", "as long", "longer"])
def test_a_mount_point_is_written_in_place(mount_point: Path, content: bytes) -> None:
    files.check_writable(mount_point, in_place=True)
    files.replace_content(mount_point, content)
    assert mount_point.with_name("outside").read_bytes() == content
    assert len(list(mount_point.parent.iterdir())) == 2, "there is no other file"


def test_a_mount_point_that_is_replaced_only_whole_is_known_before(mount_point: Path) -> None:
    refused = "mounted cannot be written: device or resource busy; something is mounted there"
    with pytest.raises(ConfigError, match=refused):
        files.check_writable(mount_point)
    with pytest.raises(ConfigError, match=refused):
        write_atomic(mount_point, b"x")


def test_a_full_disk_is_known_before_and_spares_the_old_content(mount_point: Path) -> None:
    files.check_writable(mount_point, in_place=True)
    with suppress(OSError), (mount_point.parent / "ballast").open("wb") as ballast:
        ballast.write(bytes(1 << 20))
    for path, in_place in ((mount_point, True), (mount_point.with_name("outside"), False)):
        with pytest.raises(ConfigError, match="no space left on device; free some space"):
            files.check_writable(path, in_place=in_place)
    with pytest.raises(ConfigError, match="no space left on device"):
        files.replace_content(mount_point, b"n" * 9000)
    assert mount_point.read_bytes() == b"o" * 5000
    files.replace_content(mount_point, b"n" * 4000)
    assert mount_point.read_bytes() == b"n" * 4000


def test_without_proc_no_file_is_taken_for_a_mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()

    def fail(_: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(files, "_mount_id", fail)
    files.replace_content(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize(("uid", "owner"), [(0, "root (uid 0)"), (4_000_000, "uid 4000000")], ids=["known", "unknown"])
def test_a_directory_that_this_user_may_not_enter_is_named_with_its_owner(
    uid: int, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    found = os.stat_result((0o40700, 1, 1, 2, uid, uid, 0, 0, 0, 0))
    monkeypatch.setattr("os.access", lambda path, mode: path != closed)
    monkeypatch.setattr(Path, "stat", lambda self: found)
    error = PermissionError(errno.EACCES, "Permission denied", str(closed / "deep" / "file"))
    assert f"the directory {closed} belongs to {owner}: run the command as that user, with sudo" in files.file_problem(
        error
    )


def test_a_file_that_alone_is_closed_has_the_usual_advice(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "file"))
    assert files.file_problem(error).endswith("permission denied; give this user access or choose another directory")
