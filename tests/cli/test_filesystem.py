"""Errors of the file system in every command: one line with the path and what to do, never a fault of this program."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.cli import main
from mooring.cli.commands import TableGroup
from mooring.client.files import file_problem
from tests.support.commandline import CommandLine, mooring
from tests.support.permissions import modes_count

__all__ = ["mooring"]

PIN = f"sha256:{'0' * 64}"
TOKEN = "abcdef.0123456789abcdef"
JOIN = ("join", "127.0.0.1:1", "--token", TOKEN, "--discovery-token-ca-cert-hash", PIN)
K3S = ("agent", "--server", "https://127.0.0.1:1", "--token", TOKEN)

DIRECTORIES: dict[str, tuple[str, ...]] = {
    "up": ("up", "--data-dir", "{}"),
    "server": ("server", "--data-dir", "{}"),
    "init": ("init", "--data-dir", "{}"),
    "agent the k3s way": (*K3S, "--root", "{}"),
    "issuance verify": ("issuance", "verify", "--data-dir", "{}"),
    "ca show": ("ca", "show", "--data-dir", "{}"),
    "snapshot save": ("snapshot", "save", "--data-dir", "{}"),
    "snapshot list": ("snapshot", "list", "--data-dir", "{}"),
    "token rotate": ("token", "rotate", "--data-dir", "{}"),
}
"""Commands that read or write a directory, `{}`."""
ROOTS: dict[str, tuple[str, ...]] = {
    "join": (*JOIN, "--root", "{}"),
    "join without a token": ("join", "--root", "{}"),
    "agent": ("agent", "--root", "{}"),
    "agent with a token": ("agent", *JOIN[1:], "--root", "{}"),
}
"""Commands that look for a membership below a directory: where it cannot be one, there is none."""
FILES: dict[str, tuple[str, ...]] = {
    "up --config": ("up", "--config", "{}"),
    "config check": ("config", "check", "{}"),
    "join --discovery-file": ("join", "--discovery-file", "{}", "--tls-bootstrap-token", TOKEN, "--root", "/nowhere"),
    "certs list": ("certs", "list", "--kubeconfig", "{}"),
    "certs revoke": ("certs", "revoke", "--certificate", "{}"),
    "csr list": ("csr", "list", "--kubeconfig", "{}"),
    "controllers": ("controllers", "--kubeconfig", "{}"),
    "token create": ("token", "create", "--config", "{}"),
    "login": ("login", "--kubeconfig", "{}", "--oidc-issuer-url", "https://127.0.0.1:1", "--oidc-client-id", "x"),
    "snapshot verify": ("snapshot", "verify", "{}"),
}
"""Commands that read a file, `{}`."""
SHOWN: dict[str, tuple[str, ...]] = {
    "certs show": ("certs", "show", "{}"),
}
"""Commands that take a file or a name: what is no file is a name, except where it cannot be known."""


def denied(path: Path) -> str:
    """A directory that this user may not enter."""
    (path / "locked").mkdir()
    (path / "locked").chmod(0)
    return str(path / "locked" / "within")


def read_only(path: Path) -> str:
    """A directory in which this user may not make anything."""
    (path / "fixed").mkdir(mode=0o555)
    return str(path / "fixed" / "within")


def below_a_file(path: Path) -> str:
    (path / "file").write_text("x")
    return str(path / "file" / "within")


def loop(path: Path) -> str:
    """A symbolic link to itself."""
    (path / "loop").symlink_to("loop")
    return str(path / "loop" / "within")


def unreadable(path: Path) -> str:
    (path / "secret").write_text("x")
    (path / "secret").chmod(0)
    return str(path / "secret")


def directory(path: Path) -> str:
    return str(path)


def too_long(path: Path) -> str:
    return str(path / ("x" * 300))


def cases() -> Iterator[object]:
    for commands, obstacles in (
        (DIRECTORIES, (denied, below_a_file, loop, too_long)),
        (FILES, (denied, unreadable, directory, below_a_file, loop, too_long)),
        (ROOTS, (denied,)),
        (SHOWN, (denied, unreadable)),
    ):
        for name, arguments in commands.items():
            for obstacle in obstacles:
                yield pytest.param(arguments, obstacle, id=f"{name}, {obstacle.__name__}")
    for name in ("up", "server", "init", "agent the k3s way"):  # what they need is made
        yield pytest.param(DIRECTORIES[name], read_only, id=f"{name}, read_only")


@pytest.mark.parametrize(("arguments", "obstacle"), tuple(cases()))
def test_an_obstacle_in_the_file_system_is_one_line_with_its_path_and_what_to_do(
    mooring: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    obstacle: Callable[[Path], str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = obstacle(tmp_path)
    with modes_count():
        if obstacle in (denied, unreadable, read_only):
            with pytest.raises(PermissionError):
                os.open(given, os.O_RDWR | os.O_CREAT)  # the obstacle is one
        outcome = mooring(*(one.replace("{}", given) for one in arguments))
    assert outcome.code == 1, outcome.all
    (line,) = outcome.err.splitlines()
    assert line.startswith("Error: ")
    assert given.removesuffix("/within") in line
    assert "fault of mooring" not in line
    assert ";" in line, "it says what to do"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            PermissionError(errno.EACCES, "Permission denied", "/a"),
            "/a: permission denied; give this user access or choose another directory",
            id="a path",
        ),
        pytest.param(
            OSError(errno.ENOSPC, "No space left on device"),
            "no space left on device; free some space and run the command again",
            id="a full disk, which names no path",
        ),
        pytest.param(
            OSError(errno.EROFS, "Read-only file system", b"/b"),
            "/b: read-only file system; the file system is mounted read-only; choose another directory",
            id="a read-only file system",
        ),
        pytest.param(
            OSError(errno.EIO, "Input/output error", 7), "descriptor 7: input/output error; the disk", id="a descriptor"
        ),
        pytest.param(OSError(errno.ENXIO, "No such device", "/c"), "/c: no such device", id="a number without advice"),
    ],
)
def test_an_error_that_no_command_explains_names_its_path(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(TableGroup, "main", fail)
    outcome = mooring("version")
    assert outcome.code == 1
    assert outcome.err.startswith(f"Error: {message}")


@pytest.mark.parametrize("error", [OSError("odd"), OSError(errno.EBADF, "Bad file descriptor"), ConnectionResetError()])
def test_another_error_of_the_system_is_a_fault_of_this_program(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(TableGroup, "main", fail)
    assert file_problem(error) == ""
    assert mooring("version").code == main.EXIT_FAULT
