"""Completion of values, as a shell asks for it: names of the cluster, and snapshots."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commandline import CommandLine, Outcome, mooring, process
from tests.support.liveserver import LiveServer, live_server
from tests.support.polling import eventually
from tests.support.ports import free_port

__all__ = ["live_server", "mooring"]
PIN = "sha256:" + "0" * 64


def completed(words: str, incomplete: str = "", shell: str = "bash", **environment: str) -> Outcome:
    cursor = incomplete if shell == "fish" else str(len(words.split()))
    return process(
        _MOORING_COMPLETE=f"{shell}_complete",
        COMP_WORDS=f"{words} {incomplete}".rstrip(),
        COMP_CWORD=cursor,
        **environment,
    )


def completed_in_time(words: str, incomplete: str = "", shell: str = "bash", **environment: str) -> Outcome:
    """Return what is completed. A completion that takes more than its second says nothing, and one asks again."""

    def ask() -> Outcome | None:
        done = completed(words, incomplete, shell, **environment)
        return done if done.all.strip() else None

    done = eventually(ask)
    assert done is not None  # `eventually` fails otherwise
    return done


@pytest.fixture
def cluster(live_server: LiveServer, mooring: CommandLine) -> LiveServer:
    flags = ("--kubeconfig", str(live_server.kubeconfig))
    if "comple" not in mooring.done("token", "list", "-o", "name", *flags).split():
        mooring.done("token", "create", "comple.0123456789abcdef", *flags)
        mooring.done("machine", "authorize", "completed-machine", "--key-fingerprint", PIN, *flags)
    return live_server


@pytest.mark.parametrize(
    ("shell", "lines"),
    [("bash", ["plain,comple"]), ("fish", ["plain,comple"]), ("zsh", ["plain", "comple", "_"])],
)
def test_every_shell_completes_the_id_of_a_token(shell: str, lines: list[str], cluster: LiveServer) -> None:
    done = completed_in_time("mooring token delete", "com", shell, KUBECONFIG=str(cluster.kubeconfig))
    assert (done.code, done.err) == (0, "")
    assert [line.rstrip("\t") for line in done.out.splitlines()] == lines


def test_bash_completes_an_id_with_the_script_that_is_printed(cluster: LiveServer) -> None:
    script = (
        "source <(mooring completion bash); COMP_WORDS=(mooring token delete comp); COMP_CWORD=3; "
        '_mooring_completion mooring; echo "${COMPREPLY[@]}"'
    )
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(cluster.data_dir),
    }

    def ask() -> str:
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.strip()  # nothing where the completion took more than its second

    assert eventually(ask) == "comple"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("mooring token impact", "comple"),
        ("mooring machine remove", "completed-machine"),
        ("mooring issuance list --token", "comple"),
    ],
)
def test_names_of_the_cluster_of_the_flags_are_completed(words: str, name: str, cluster: LiveServer) -> None:
    first, second, *rest = words.split()[1:]
    line = " ".join(("mooring", first, second, "--data-dir", str(cluster.data_dir), *rest))
    assert f"plain,{name}\n" in completed_in_time(line).out
    assert name not in completed(line, "other").out


def test_a_name_that_stands_there_already_is_not_completed_again(cluster: LiveServer) -> None:
    found = completed("mooring token delete comple", KUBECONFIG=str(cluster.kubeconfig))
    assert found.code == 0
    assert "comple\n" not in found.out


def kubeconfig(path: Path, port: int, user: object) -> Path:
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "a", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
                "users": [{"name": "a", "user": user}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "current-context": "a",
            }
        )
    )
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("words", ["token delete", "csr approve", "csr show", "node show", "machine remove"])
def test_a_failure_completes_nothing_and_says_nothing(words: str, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", free_port(), {"token": "x"})
    done = completed(f"mooring {words}", KUBECONFIG=str(file))
    assert (done.code, done.out.strip(), done.err) == (0, "", "")
    assert completed(f"mooring {words}", KUBECONFIG=str(tmp_path / "missing")).all.strip() == ""


def test_a_server_that_does_not_answer_ends_the_completion(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = kubeconfig(tmp_path / "config", silent.getsockname()[1], {"token": "x"})
        done = completed("mooring node delete", KUBECONFIG=str(file))
    assert (done.code, done.out.strip(), done.err) == (0, "", "")


def test_the_program_of_a_credential_is_not_run(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(tmp_path / "ran")],
        "interactiveMode": "IfAvailable",
    }  # fmt: skip
    file = kubeconfig(tmp_path / "config", free_port(), {"exec": plugin})
    assert completed("mooring node delete", KUBECONFIG=str(file)).all.strip() == ""
    assert not (tmp_path / "ran").exists()


def test_snapshots_of_the_server_are_completed_beside_other_files(tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    directory.mkdir()
    (directory / "a.snapshot").touch()
    (directory / "other").touch()
    done = completed("mooring snapshot verify", MOORING_DATA_DIR=str(tmp_path))
    assert done.out.splitlines() == ["file,", f"plain,{directory / 'a.snapshot'}"]
    assert completed("mooring snapshot verify", "x", MOORING_DATA_DIR=str(tmp_path)).out == "file,x\n"


def test_completions_of_other_words_load_no_client() -> None:
    program = (
        "import sys; from mooring.cli import valuecompletion; from mooring.cli.main import program; "
        "from click.shell_completion import ShellComplete; "
        "found = ShellComplete(program(), {}, 'mooring', 'X').get_completions(['token'], ''); assert found; "
        "print([name for name in sys.modules if name.startswith(('mooring.client', 'mooring.cli.cluster', 'asyncio'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("mooring token list --kubeconfig", "file"),
        ("mooring token list --data-dir", "dir"),
        ("mooring up --data-dir", "dir"),
        ("mooring server unit --tls-cert-file", "file"),
        ("mooring leave --root", "dir"),
    ],
)
def test_paths_are_completed_by_the_shell(words: str, kind: str) -> None:
    done = completed(words, "/etc/mo")
    assert (done.code, done.out, done.err) == (0, f"{kind},/etc/mo\n", "")
