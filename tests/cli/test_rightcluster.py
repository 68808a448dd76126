"""Which cluster a command talks to: what is said, when a person is asked, and `--data-dir`."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]
QUESTION = "Is this the right cluster?"


class Terminal(io.StringIO):
    """Standard input of a person who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def elsewhere(mooring: CommandLine, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a server, whose KUBECONFIG names the cluster. The fixture `mooring` clears the variables before."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    monkeypatch.setenv("MOORING_DATA_DIR", str(tmp_path / "nothing"))


def said(server: LiveServer) -> str:
    return f"On {server.url} as kubernetes-admin:\n"


@pytest.mark.usefixtures("elsewhere")
def test_a_command_that_changes_says_which_cluster_and_one_that_reads_does_not(
    live_server: LiveServer, mooring: CommandLine
) -> None:
    created = mooring("token", "create", "--ttl", "1h")
    assert (created.code, created.announced) == (0, said(live_server))
    assert mooring("token", "list").announced == ""
    assert mooring("token", "delete", created.out.split(".")[0]).announced == said(live_server)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("answer", "code"),
    [pytest.param("n\n", 130, id="no"), pytest.param("y\n", 0, id="yes"), pytest.param("", 130, id="end")],
)
def test_a_person_is_asked_before_something_ends(
    answer: str, code: int, live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = live_server.create_token()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    done = mooring("token", "delete", token.id)
    assert (done.code, done.announced, QUESTION in done.err) == (code, said(live_server), True)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "how", ["--yes", "--kubeconfig", "--context", "--data-dir", "its data directory", "no terminal"]
)
def test_who_named_the_cluster_is_not_asked(
    how: str, live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {
        "--yes": ("--yes",),
        "--kubeconfig": ("--kubeconfig", str(live_server.kubeconfig)),
        "--context": ("--context", "kubernetes-admin@kubernetes"),
        "--data-dir": ("--data-dir", str(live_server.data_dir)),
    }
    if how == "its data directory":
        monkeypatch.setenv("MOORING_DATA_DIR", str(live_server.data_dir))
    monkeypatch.setattr("sys.stdin", io.StringIO() if how == "no terminal" else Terminal())
    done = mooring("token", "delete", live_server.create_token().id, *flags.get(how, ()))
    assert (done.code, done.announced, done.err) == (0, said(live_server), "")


def test_a_copy_of_the_kubeconfig_of_the_data_directory_is_the_same_cluster(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(shutil.copy(live_server.kubeconfig, tmp_path / "copy")))
    monkeypatch.setenv("MOORING_DATA_DIR", str(live_server.data_dir))
    monkeypatch.setattr("sys.stdin", Terminal())
    assert QUESTION not in mooring("token", "delete", live_server.create_token().id).err


def test_an_administrator_names_a_data_directory(live_server: LiveServer, mooring: CommandLine, tmp_path: Path) -> None:
    assert mooring("token", "list", "--data-dir", str(live_server.data_dir)).code == 0
    both = mooring("token", "list", "--data-dir", "x", "--kubeconfig", "y")
    assert (both.code, "not both" in both.err) == (2, True)
    missing = mooring("token", "list", "--data-dir", str(tmp_path))
    assert (missing.code, f"{tmp_path}/admin.conf" in missing.err) == (1, True)


@pytest.mark.usefixtures("elsewhere")
def test_only_the_revocation_of_what_a_token_obtained_asks(
    live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = live_server.create_token()
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert mooring("token", "impact", token.id).announced == ""
    assert mooring("token", "impact", token.id, "--revoke", "--dry-run").announced == ""
    done = mooring("token", "impact", token.id, "--revoke")
    assert (done.code, QUESTION in done.err) == (130, True)
