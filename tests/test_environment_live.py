"""`make setup` finds a Python, installs the lock whatever pip is configured to do, and says in one line what it lacks."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.environment import HELD, FailedError, alone, cause, listed_settings, make, run, settings

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
CHECKS = ("generated --check", "citations", "locks --closed")
"""Steps of `make check` that end by themselves in seconds."""
BACKEND = """
import pathlib, zipfile

METADATA = "Metadata-Version: 2.1\\nName: mooring\\nVersion: 1\\nRequires-Dist: library\\n"

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "mooring-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as wheel:
        wheel.writestr("mooring.pth", str(pathlib.Path.cwd()))
        wheel.writestr("mooring-1.dist-info/METADATA", METADATA)
        wheel.writestr("mooring-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mooring-1.dist-info/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "mooring"
version = "1"
"""


@dataclass
class Tree:
    """A clone with the Makefile and tests/environment.py of this one, a lock of one library, and a registry that is a folder."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tests", "requirements"):
            (self.folder / name).mkdir(parents=True)
        self.registry.mkdir()
        for name in ("Makefile", "tests/environment.py"):
            shutil.copy(ROOT / name, self.folder / name)
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "backend.py").write_text(BACKEND)
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("library.py", "")
            archive.writestr("library-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: library\nVersion: 1\n")
            archive.writestr(
                "library-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr("library-1.dist-info/RECORD", "")
        self.lock(hashlib.sha256(self.wheel.read_bytes()).hexdigest())
        # nothing of pip's configuration of this machine, and no network
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "MAKE"))},
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.registry),
            "PIP_CACHE_DIR": str(self.registry / "cache"),
        }

    @property
    def registry(self) -> Path:
        return self.folder.parent / "registry"

    @property
    def wheel(self) -> Path:
        return self.registry / "library-1-py3-none-any.whl"

    def lock(self, digest: str) -> None:
        (self.folder / "requirements/dev.lock").write_text(f"library==1 \\\n    --hash=sha256:{digest}\n")

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "setup", *arguments],
            cwd=self.folder,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def python(self) -> str:
        return f"PYTHON={sys.executable}"

    def is_installed(self) -> bool:
        command = [str(self.folder / ".venv/bin/python"), "-c", "import library"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "a clone with spaces [x]")


def error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that the set-up printed on stderr, without the one of make."""
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("make: ***"))
    return line


def test_the_second_run_installs_nothing(tree: Tree) -> None:
    done = tree.make(tree.python)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Installing 1 libraries into .venv, with Python 3.")
    assert tree.is_installed()
    again = tree.make(tree.python)
    assert (again.returncode, again.stdout, again.stderr) == (0, "make: Nothing to be done for 'setup'.\n", "")


def test_a_clone_whose_path_is_not_ascii_needs_no_locale_that_has_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "ein Klon für mich")
    done = tree.make(tree.python, LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    again = tree.make(tree.python, LC_ALL="C")
    assert again.stdout == "make: Nothing to be done for 'setup'.\n", "the environment is not taken for a broken one"
    tree.variables["LC_ALL"] = "C"
    assert tree.is_installed()
    command = [str(tree.folder / ".venv/bin/python"), "-c", "import backend; print(backend.__file__)"]
    found = subprocess.run(command, env=tree.variables, capture_output=True, check=True)
    assert Path(os.fsdecode(found.stdout.strip())).resolve() == tree.folder / "backend.py"


def test_a_signal_that_ends_make_ends_what_it_runs(tree: Tree) -> None:
    assert tree.make(tree.python).returncode == 0
    (tree.folder / "tests/changed.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    command = ["make", "--silent", "test-changed", 'ARGS="of a shell"']  # make hands double quotes to a shell
    with subprocess.Popen(
        command, cwd=tree.folder, env=tree.variables, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as make_:
        assert make_.stdout is not None
        runs = int(make_.stdout.readline())
        make_.terminate()
        # its pipe ends when nothing has it any more
        assert make_.stdout.read() == ""
    with pytest.raises(ProcessLookupError):
        os.kill(runs, 0)


def test_recipes_are_ended_by_a_signal_that_ends_make() -> None:
    recipes = re.findall(r"^\t@?(.*\$\(BIN\)/(?:python -m (?:pytest|tests|bench)|mooring).*)$", MAKEFILE, re.MULTILINE)
    kept = [line for line in recipes if not re.match(r"(\w+=\S+ )?exec ", line)]
    assert len(recipes) > len(kept)
    assert kept == [f"$(BIN)/python -m tests.{check}" for check in CHECKS]


def test_settings_of_another_python_reach_no_target(tree: Tree) -> None:
    names = (
        "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUSERBASE", "PYTHONIOENCODING",
        "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONINSPECT",
    )  # fmt: skip
    shown = subprocess.run(
        ["make", "--eval", "show: ; @env", "show"],
        cwd=tree.folder,
        env={**tree.variables, **dict.fromkeys(names, "1"), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall("^(PYTHON.*)=", shown.stdout, re.MULTILINE) == ["PYTHONHASHSEED"]


def test_settings_of_pip_do_not_change_what_is_installed_or_where(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("library==2\n")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nconstraint = {tmp_path}/constraints.txt\nuser = true\nrequire-virtualenv = true\n"
        f"[install]\nprefix = {tmp_path}/elsewhere\nrequire-hashes = true\ndry-run = true\n"
    )
    done = subprocess.run(
        ["sh", "-c", f'umask 077; make setup "{tree.python}"'],
        cwd=tree.folder,
        env={
            **tree.variables,
            "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
            "PIP_USER": "1",
            "PIP_REQUIRE_HASHES": "1",
            "PIP_DRY_RUN": "1",
            "PIP_REQUIRE_VIRTUALENV": "1",
            "PIP_TARGET": str(tmp_path / "elsewhere"),
            "PYTHONPATH": str(tmp_path),
            "PYTHONWARNINGS": "error",
            "PYTHONOPTIMIZE": "2",
            "PYTHONINSPECT": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree.is_installed()
    assert not (tmp_path / "elsewhere").exists()


def test_an_interrupted_set_up_is_finished_by_the_next(tree: Tree) -> None:
    bad = tree.folder / "requirements/dev.lock"
    good = bad.read_text()
    bad.write_text("library==2 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    assert tree.make(tree.python).returncode == 2
    (tree.folder / ".venv/bin/pip").unlink()
    shutil.rmtree(next((tree.folder / ".venv/lib").glob("python3*")) / "site-packages/pip")
    bad.write_text(good)
    assert tree.make(tree.python).returncode == 0
    assert tree.is_installed()


def test_two_set_ups_at_once_run_one_after_the_other(tree: Tree) -> None:
    command = ["make", "setup", tree.python]
    with (tree.folder / "requirements/dev.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(command, cwd=tree.folder, env=tree.variables, stdout=subprocess.PIPE, text=True)
        with second:
            assert second.stdout is not None
            assert second.stdout.readline() == "Another set-up of this clone is running: waiting for its end\n"
            assert not (tree.folder / ".venv").exists()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.stdout.readline().startswith("Installing 1 libraries")
    assert second.returncode == 0
    assert tree.is_installed()


def test_the_pip_of_a_set_up_that_was_killed_keeps_the_next_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "dev.lock"
    lock.touch()
    monkeypatch.setattr("tests.environment.LOCK", lock)
    with alone() as waited:
        inherited = run(tmp_path, sys.executable, "-c", f"import os; print(os.fstat({HELD[0]}).st_ino)")
    assert not waited
    assert int(inherited) == lock.stat().st_ino
    assert not HELD


def test_a_deletion_that_was_interrupted_leaves_no_stamp(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tree.folder / ".venv"
    folder.mkdir()
    (folder / ".ready").write_text("of another clone")

    def killed(path: Path) -> None:
        assert sorted(path.iterdir()) == []
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        make(folder)


def test_an_environment_of_a_clone_that_was_moved_is_made_again(tree: Tree, tmp_path: Path) -> None:
    assert tree.make(tree.python).returncode == 0
    moved = tree.folder.rename(tmp_path / "moved")
    tree.folder = moved
    done = tree.make(tree.python)
    assert done.stdout.startswith("Installing")
    assert (moved / ".venv/.ready").read_text().startswith(f"{moved}/.venv 3.")


def test_an_environment_that_is_activated_is_made_again_by_the_python_of_the_machine(tree: Tree) -> None:
    assert tree.make(tree.python).returncode == 0
    (tree.folder / ".venv/.ready").unlink()
    activated = tree.folder / ".venv/bin"
    done = tree.make(PATH=f"{activated}:{os.environ['PATH']}", VIRTUAL_ENV=str(activated.parent))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert tree.is_installed()


def test_a_stamp_of_other_bytes_or_of_another_python_is_none(tree: Tree) -> None:
    assert tree.make(tree.python).returncode == 0
    ready = tree.folder / ".venv/.ready"
    for written in (b"\xff\xfe", ready.read_bytes().replace(b" 3.", b" 2.")):
        ready.write_bytes(written)
        assert tree.make(tree.python).stdout.startswith("Installing")


def test_a_library_with_another_hash_is_refused(tree: Tree) -> None:
    tree.lock("0" * 64)
    line = error(tree.make(tree.python))
    assert line.startswith("error: a downloaded library has another hash than requirements/dev.lock")
    assert str(tree.folder / ".venv/install.log") in line


def test_a_lock_that_is_not_complete_is_refused(tree: Tree) -> None:
    (tree.folder / "requirements/dev.lock").write_text("")
    assert "mooring 1 requires library, which is not installed." in error(tree.make(tree.python))


def test_no_network_is_one_line(tree: Tree) -> None:
    tree.wheel.unlink()
    done = tree.make(tree.python, PIP_NO_INDEX="0", PIP_INDEX_URL="http://127.0.0.1:9/", PIP_RETRIES="0")
    assert error(done).startswith("error: the package registry does not answer, or has no build")


def test_a_python_without_ensurepip_is_one_line(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError\n")
    without = tmp_path / "python"
    without.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    without.chmod(0o755)
    done = tree.make(f"PYTHON={without}")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert error(done) == (
        f"error: Python {version} has no module ensurepip: install it (Debian, Ubuntu: apt install python{version}-venv)"
    )


def test_what_ensurepip_says_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nif [ "$2" = venv ]; then mkdir "$4/bin"; ln -s "$0" "$4/bin/python"\n'
        'else echo "OSError: [Errno 28] No space left on device"; exit 1; fi\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr("tests.environment.interpreter", lambda: python)
    with pytest.raises(FailedError, match=r"no space is left for .*/environment: 1 GB is needed, there and in TMPDIR"):
        make(tmp_path / "environment")


def test_a_folder_that_cannot_be_written_is_one_line(tree: Tree) -> None:
    (tree.folder / "file").touch()
    assert error(tree.make(tree.python, "VENV=file/environment")) == (
        f"error: {tree.folder / 'file/environment'} cannot be made: Not a directory: use a clone that you may write to"
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with the programs that make needs, and no Python."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "make", "cat", "test", "echo", "touch", "env"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def stub(folder: Path, name: str, *, new: bool) -> None:
    """Write a Python that says whether it is new enough, and prints its name instead of running a file."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *print*) echo True;; -I*) exit {0 if new else 1};; *) echo "{name} runs $1";; esac\n'
    )
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        pytest.param({"python3": True}, "python3", id="Debian 13 and Ubuntu 24.04 have python3 alone"),
        pytest.param({"python3": False, "python3.12": True}, "python3.12", id="python3 is too old"),
        pytest.param(
            {"python3.11": True, "python3.14": True, "python3": True}, "python3.11", id="the oldest that counts"
        ),
        pytest.param({"python3.11": False, "python3.13": True}, "python3.13", id="a version manager's empty command"),
    ],
)
def test_the_first_python_that_is_new_enough_is_taken(
    tree: Tree, programs: Path, pythons: dict[str, bool], chosen: str
) -> None:
    for name, new in pythons.items():
        stub(programs, name, new=new)
    assert tree.make(PATH=str(programs)).stdout == f"{chosen} runs tests/environment.py\n"


def test_a_stamp_without_a_python_beside_it_does_not_count(tree: Tree, programs: Path) -> None:
    program = programs / "python3.12"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *%d*) echo 3.12;; -I*) echo True;; *) echo "python3.12 runs $1";; esac\n'
    )
    program.chmod(0o755)
    python = f"PYTHON={program}"
    (tree.folder / ".venv/bin").mkdir(parents=True)
    (tree.folder / ".venv/bin/python").symlink_to(program)
    (tree.folder / ".venv/.ready").write_text(f"{tree.folder}/.venv 3.12\n")
    assert tree.make(python, PATH=str(programs)).stdout == "make: Nothing to be done for 'setup'.\n"
    (tree.folder / ".venv/bin/python").unlink()
    assert tree.make(python, PATH=str(programs)).stdout == "python3.12 runs tests/environment.py\n"


@pytest.mark.parametrize("pythons", [{}, {"python3": False}], ids=["none", "too old"])
def test_no_python_that_is_new_enough_is_one_line(tree: Tree, programs: Path, pythons: dict[str, bool]) -> None:
    for name, new in pythons.items():
        stub(programs, name, new=new)
    assert error(tree.make(PATH=str(programs))) == (
        "error: no Python 3.11 or newer in PATH: install it (Debian, Ubuntu: apt install python3 python3-venv), "
        "or name one: make PYTHON=/path/to/python3"
    )


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin", "/usr/bin/false", "/usr/bin/true"])
def test_a_python_that_does_not_run_is_one_line(tree: Tree, python: str) -> None:
    assert error(tree.make(f"PYTHON={python}")) == (
        f"error: {python} is not a Python that runs, or one before 3.8: make PYTHON=/path/to/python3"
    )


def test_a_python_that_cannot_read_the_program_is_one_line(tree: Tree, tmp_path: Path) -> None:
    python = tmp_path / "python3.6"
    python.write_text(
        f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 6)\n"
        "exec(sys.argv[2]) if sys.argv[1] == '-c' else print('SyntaxError')\n"
    )
    python.chmod(0o755)
    assert error(tree.make(f"PYTHON={python}")) == (
        f"error: {python} is not a Python that runs, or one before 3.8: make PYTHON=/path/to/python3"
    )


def test_a_variable_of_the_environment_that_others_use_is_not_meant(tree: Tree, programs: Path) -> None:
    stub(programs, "python3.12", new=True)
    assert tree.make(PATH=str(programs), PYTHON="/usr/bin/false").stdout == "python3.12 runs tests/environment.py\n"


@pytest.mark.parametrize("quiet", [{"PIP_QUIET": "1", "PIP_LOG": "/nowhere/log"}, {}], ids=["variable", "file"])
def test_a_quiet_pip_hides_no_setting(tmp_path: Path, quiet: dict[str, str]) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nproxy = http://a/\n{'' if quiet else 'quiet = 1'}\n")
    given = {**os.environ, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_PROXY": "http://b/", **quiet}
    assert listed_settings(tmp_path, sys.executable, "-m", "pip", given=given)["PIP_PROXY"] == "http://b/"


@pytest.mark.parametrize(
    ("listed", "variables"),
    [
        (":env:.proxy='http://b/'\nglobal.proxy='http://a/'\n", {"PIP_PROXY": "http://b/"}),
        ("global.timeout='1'\ninstall.timeout='2'\n", {"PIP_TIMEOUT": "2"}),
        ("global.find-links='/a\\n/b'\n", {"PIP_FIND_LINKS": "/a\n/b"}),
        ("install.target='/elsewhere'\nglobal.constraint='c'\nnonsense\n", {}),
    ],
    ids=[
        "the environment counts",
        "the section of the command counts",
        "several places",
        "what changes the result does not count",
    ],
)
def test_only_settings_of_the_network_count(listed: str, variables: dict[str, str]) -> None:
    assert settings(listed) == variables


@pytest.mark.parametrize(
    ("output", "line"),
    [
        pytest.param(
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            "no space is left for F: 1 GB is needed, there and in TMPDIR",
            id="no space",
        ),
        pytest.param(
            "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: 'x'\n",
            "F cannot be written: Could not install packages due to an OSError: [Errno 30] Read-only file system: 'x'",
            id="read-only",
        ),
        pytest.param(
            "WARNING: Retrying: NameResolutionError(Temporary failure in name resolution)\n",
            "the package registry does not answer: is there a network, and does pip's configuration (index, proxy) lead to it?",
            id="no network",
        ),
        pytest.param(
            "WARNING: SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))\n",
            "the certificate of the package registry is not trusted: set PIP_CERT to the CA",
            id="an intercepting proxy",
        ),
        pytest.param(
            "Exception:\nFile contains no section headers.\nfile: '/etc/pip.conf', line: 1\n'[global\\n'\n",
            "a file of pip's configuration cannot be read (pip config debug lists them): '[global\\n'",
            id="a configuration that is no configuration",
        ),
        pytest.param(
            "ERROR: No matching distribution found for x==1\n",
            "the registry has no fitting version: No matching distribution found for x==1",
            id="an old mirror",
        ),
        pytest.param(
            "ERROR: Could not find a version that satisfies x==1 (from versions: none)\n"
            "ERROR: No matching distribution found for x==1\n",
            "the package registry does not answer, or has no build for this system and Python (requirements/dev.lock is for CPython"
            " 3.11 to 3.14 and glibc): No matching distribution found for x==1",
            id="a Python or system without builds",
        ),
        pytest.param("Collecting x\nERROR: something else\nhint\n", "something else", id="anything else"),
        pytest.param("ERROR: Exception:\nTraceback:\nOops: pip\n", "Oops: pip", id="a fault of pip"),
        pytest.param("", "no output", id="nothing"),
    ],
)
def test_what_pip_prints_becomes_a_sentence(output: str, line: str) -> None:
    assert cause(output, Path("F")) == line
