"""Faults of files and paths that a server meets at its start: one line with the remedy, a non-zero exit, no traceback."""

from __future__ import annotations

import base64
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.cli import main
from mooring.controlplane import addresses
from mooring.controlplane.datadirectory import open_lock
from mooring.errors import ConfigError
from tests.support.commandline import CommandLine, Outcome, mooring

__all__ = ["mooring"]
SERVER = ("server", "--bind-address", "127.0.0.1", "--secure-port", "0")


def refused(outcome: Outcome) -> str:
    """Return the line of a command that failed."""
    assert outcome.code in (main.EXIT_FAILED, main.EXIT_USAGE), outcome.err
    line = outcome.err.splitlines()[-1]
    assert line.startswith("Error: ")
    assert "fault of mooring" not in line
    assert "Traceback" not in outcome.err
    return line


@pytest.fixture
def data_dir(tmp_path: Path, mooring: CommandLine) -> Path:
    """A directory with the keys of a server."""
    path = tmp_path / "data"
    mooring.done("init", "--data-dir", str(path))
    return path


@pytest.mark.parametrize("name", [".lock", "server.lock", "store.mark.lock"])
def test_a_directory_in_the_place_of_a_lock(data_dir: Path, mooring: CommandLine, name: str) -> None:
    (data_dir / name).unlink(missing_ok=True)
    (data_dir / name).mkdir()
    line = refused(mooring(*SERVER, "--data-dir", str(data_dir)))
    assert f"the lock file {data_dir / name} cannot be opened: is a directory" in line
    assert "move it away" in line


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.mkdir, "cannot be read: is a directory"),
        (lambda path: path.write_bytes(b"\x1b[2J\xff"), "is damaged; remove it, and give the addresses again"),
    ],
    ids=["directory", "garbled"],
)
def test_a_file_of_the_data_directory_that_cannot_be_used_is_not_a_mistake_in_the_arguments(
    data_dir: Path, mooring: CommandLine, make: Callable[[Path], None], problem: str
) -> None:
    """A service manager may give up after exit code 2."""
    (data_dir / addresses.FILE).unlink()
    make(data_dir / addresses.FILE)
    outcome = mooring(*SERVER, "--data-dir", str(data_dir))
    assert outcome.code == main.EXIT_FAILED
    assert f"{data_dir / addresses.FILE} {problem}" in refused(outcome)


@pytest.mark.parametrize("name", ["mooring.db-wal", "mooring.db-shm"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_something_else_in_the_place_of_a_file_of_the_database(
    data_dir: Path, mooring: CommandLine, name: str, make: Callable[[Path], None]
) -> None:
    make(data_dir / name)
    line = refused(mooring(*SERVER, "--data-dir", str(data_dir)))
    assert f"{data_dir / name} is not a regular file; move it away" in line


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, "read-only file system; mount the file system writable, or choose another directory"),
        (errno.EACCES, "permission denied; give this user access"),
        (errno.EMFILE, "too many open files; raise the limit of open files"),
        (errno.ENOSPC, "no space left on device; free some space"),
    ],
)
def test_a_lock_file_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code), "lock")

    monkeypatch.setattr("mooring.controlplane.datadirectory.os.open", refuse)
    with pytest.raises(ConfigError, match=remedy):
        open_lock(tmp_path / "lock")


def test_a_named_pipe_in_the_place_of_a_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(ConfigError, match="not a regular file; something else has that name; move it away"):
        open_lock(tmp_path / "lock")


def _cut(pem: bytes) -> bytes:
    return pem[: len(pem) // 2]


def _no_text(pem: bytes) -> bytes:
    return b"\xff\xfe" + pem


def _empty(pem: bytes) -> bytes:
    return b""


def _other_der(pem: bytes) -> bytes:
    der = bytearray(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    der[40:60] = b"\xff" * 20
    return b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(bytes(der)) + b"\n-----END CERTIFICATE-----\n"


def _other_key(pem: bytes) -> bytes:
    """A certificate that can be parsed, and whose public key cannot."""
    certificate = x509.load_pem_x509_certificate(pem)
    der = certificate.public_bytes(Encoding.DER)
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    der = der.replace(key, key[:-20] + bytes(20))
    return b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(der) + b"\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("garble", [_cut, _no_text, _empty, _other_der, _other_key])
def test_a_garbled_ca_certificate(data_dir: Path, mooring: CommandLine, garble: Callable[[bytes], bytes]) -> None:
    path = data_dir / "pki/ca.crt"
    path.write_bytes(garble(path.read_bytes()))
    line = refused(mooring(*SERVER, "--data-dir", str(data_dir)))
    assert str(path) in line
    assert "restore it from a backup" in line


@pytest.mark.parametrize(
    "command", [("init",), SERVER, ("up", "--secure-port", "0")], ids=lambda command: str(command[0])
)
def test_a_data_directory_whose_name_is_not_utf_8_is_refused_before_anything_is_made(
    tmp_path: Path, mooring: CommandLine, command: tuple[str, ...]
) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")
    line = refused(mooring(*command, "--data-dir", path))
    assert "data-dir: the value is not valid UTF-8; choose a name of UTF-8 characters" in line
    assert not os.path.exists(path)


def test_a_byte_that_is_not_utf_8_reaches_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Program:
        def main(self, **_: Any) -> None:
            os.fsdecode(b"d\xff").encode()

    monkeypatch.setattr(main, "program", Program)
    assert main.run([]) == main.EXIT_FAILED
    assert capsys.readouterr().err == "Error: a path or a value is not valid UTF-8; rename it, or choose another\n"


def test_other_text_that_cannot_be_encoded_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Program:
        def main(self, **_: Any) -> None:
            "\ud800".encode()

    monkeypatch.setattr(main, "program", Program)
    assert main.run([]) == main.EXIT_FAULT
    assert "a fault of mooring itself (UnicodeEncodeError)" in capsys.readouterr().err


def test_a_kubeconfig_whose_name_is_not_utf_8_is_named_in_printable_characters(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/k\xff"
    command: list[str | bytes] = [sys.executable, "-m", "mooring", "token", "list", "--kubeconfig", path]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    line = refused(Outcome(ended.returncode, "", ended.stderr.decode("utf-8")))
    assert "k\\udcff cannot be read: no such file or directory" in line
