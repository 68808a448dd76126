"""`python3 tests/environment.py [FOLDER]`: install `requirements/dev.lock` and this tree into a virtual environment.

Contract:
* A lock is complete, so that nothing is resolved: `--no-deps --require-hashes`, and `pip check` proves it. Settings of pip that
  would change what is installed, or where, do not count; those about the network do.
* The stamp FOLDER/.ready is written last, with the path of the environment and the version of its Python. Without it, in a clone
  that was moved and for another Python, the environment is made again from the start; with it, the libraries of a changed lock are
  installed into it.
* One set-up of a clone runs at a time. Another waits, also for the pip of one that was killed.
* A terminal shows progress. An error is one line on stderr that says what to do, with exit code 1; the output of pip stays in
  FOLDER/install.log.
* Only the standard library is imported, and any Python from 3.8 on can say that it is too old.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
LOCK = TREE / "requirements" / "dev.lock"
OLDEST = (3, 11)
STAMP = ".ready"
NETWORK = (
    "PIP_CACHE_DIR",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_KEYRING_PROVIDER",
    "PIP_NO_CACHE_DIR",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TIMEOUT",
    "PIP_TRUSTED_HOST",
)
"""Variables for the settings of pip that count, also when its files hold them. Others change what is installed, or where."""
FOREIGN = ("PYTHONHOME", "PYTHONINSPECT", "PYTHONOPTIMIZE", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONWARNINGS")
HELD: list[int] = []
"""Descriptor of the lock of this clone. Commands inherit it: pip goes on for a while when its set-up is killed."""
SPACE = 600 << 20
"""Bytes that an environment takes, with what is unpacked meanwhile."""
PIN = re.compile(r"^[A-Za-z0-9][^ =]*==", re.MULTILINE)
CAUSES = (
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "no space is left for {folder}: 1 GB is needed, there and in TMPDIR",
    ),
    (re.compile(r"Permission denied|Read-only file system"), "{folder} cannot be written: {line}"),
    (
        re.compile(
            r"NewConnectionError|ConnectTimeout|NameResolutionError|name resolution|Connection refused|Network is unreachable"
            r"|ProxyError|ReadTimeout"
        ),
        "the package registry does not answer: is there a network, and does pip's configuration (index, proxy) lead to it?",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED|SSLError"),
        "the certificate of the package registry is not trusted: set PIP_CERT to the CA",
    ),
    (
        re.compile(r"File contains no section headers|contains parsing errors|Configuration file contains"),
        "a file of pip's configuration cannot be read (pip config debug lists them): {line}",
    ),
    (
        re.compile(r"DO NOT MATCH THE HASHES"),
        "a downloaded library has another hash than requirements/dev.lock: do not use this registry",
    ),
    (
        re.compile(r"from versions: none\)"),
        "the package registry does not answer, or has no build for this system and Python (requirements/dev.lock is for CPython"
        " 3.11 to 3.14 and glibc): {line}",
    ),
    (
        re.compile(r"No matching distribution found|requires a different Python"),
        "the registry has no fitting version: {line}",
    ),
)
"""What pip printed, and the sentence for it; the first that fits counts."""


class FailedError(Exception):
    """The environment was not made. The message is one line for a person."""


def cause(output: str, folder: Path) -> str:
    """Return the sentence for a failed command of pip or venv."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line[len("ERROR:") :].strip() for line in lines if line.startswith("ERROR:")]
    line = (errors or [""])[-1]
    if line in {"", "Exception:"}:  # pip failed itself: the last line of its traceback says how
        line = (lines or ["no output"])[-1]
    for pattern, sentence in CAUSES:
        if pattern.search(output):
            return sentence.format(folder=folder, line=line)
    return line


def settings(listed: str) -> dict[str, str]:
    """Return the variables for what `pip config list` printed, of NETWORK alone.

    A section of a command counts before the global one, which is listed first, and the environment before both.
    """
    found = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        variable = f"PIP_{name.rpartition('.')[2].upper().replace('-', '_')}"
        if variable in NETWORK:
            found[variable] = str(ast.literal_eval(value))
    return found


def environment(given: Mapping[str, str], network: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the commands."""
    kept = {name: value for name, value in given.items() if name not in FOREIGN and not name.startswith("PIP_")}
    return {**kept, **network, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def run(
    folder: Path,
    *arguments: str | Path,
    variables: Mapping[str, str] = os.environ,
    on_line: Callable[[str], None] = lambda line: None,
) -> str:
    """Run a command, and keep its output in the log if it fails. Return the output. Raises FailedError."""
    lines = []
    try:
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            errors="replace",
            env=variables,
            cwd=TREE,
            pass_fds=HELD,
        )
    except OSError as error:
        raise FailedError(f"{arguments[0]}: {error.strerror}") from None
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            on_line(line)
    output = "".join(lines)
    if process.returncode:
        reason = cause(output, folder)
        try:
            with (folder / "install.log").open("w", encoding="utf-8") as log:
                log.write(output)
        except OSError:
            raise FailedError(reason) from None
        raise FailedError(f"{reason} (all output: {folder / 'install.log'})")
    return output


def listed_settings(folder: Path, *pip: str | Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the network that pip has. A setting that makes pip quiet does not hide them."""
    counting = {*NETWORK, "PIP_CONFIG_FILE"}
    own = {
        name: value
        for name, value in given.items()
        if name not in FOREIGN and (name in counting or not name.startswith("PIP_"))
    }
    return settings(run(folder, *pip, "-vvv", "config", "list", variables=own))


def make(folder: Path) -> None:
    """Make the virtual environment, from the start. Raises FailedError."""
    try:
        if folder.is_symlink() or folder.is_file():
            raise FailedError(f"{folder} is not a folder: remove it")
        if folder.exists():
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                (folder / STAMP).unlink()  # first, because a deletion may be interrupted
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        left = shutil.disk_usage(folder).free
    except OSError as error:
        raise FailedError(f"{folder} cannot be made: {error.strerror}: use a clone that you may write to") from None
    if left < SPACE:
        raise FailedError(f"{left >> 20} MB are left for {folder}, and {SPACE >> 20} MB are needed: make room")
    version = ".".join(map(str, sys.version_info[:2]))
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError:
            raise FailedError(
                f"Python {version} has no module {module}: install it (Debian, Ubuntu: apt install python{version}-venv)"
            ) from None
    run(folder, interpreter(), "-m", "venv", "--without-pip", folder)
    # venv would hide what ensurepip prints when it fails
    run(folder, folder / "bin" / "python", "-Im", "ensurepip", "--upgrade", "--default-pip")


def interpreter() -> Path:
    """Return the Python that is installed on this machine: one of a virtual environment may be in the folder that is made again."""
    if sys.prefix == sys.base_prefix:
        return Path(sys.executable)
    names = ("python{}.{}".format(*sys.version_info), "python3")
    return next(
        (path for path in (Path(sys.base_prefix, "bin", name) for name in names) if path.exists()), Path(sys.executable)
    )


class Progress:
    """Counts the libraries that pip collects, on one line of a terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.count = 0
        self.shown = sys.stdout.isatty()

    def note(self, line: str) -> None:
        """Take one line of pip's output."""
        words = line.split()
        if not self.shown or not words:
            return
        if words[0] == "Collecting" and len(words) > 1:
            self.count += 1
            self.show(f"  {self.count} of {self.total}: {words[1].partition('==')[0]}")
        elif words[:2] == ["Installing", "collected"]:
            self.show(f"  {self.total} of {self.total} are here: installing them")

    def show(self, text: str) -> None:
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()

    def end(self) -> None:
        if self.shown:
            self.show("")


def stamp(folder: Path) -> str:
    """Return what the stamp of a finished environment says: its folder, and the version of its Python."""
    return "{} {}.{}\n".format(folder, *sys.version_info)


def is_finished(folder: Path) -> bool:
    """Return whether an earlier run finished this environment, here and with this Python."""
    try:
        written = (folder / STAMP).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return written == stamp(folder) and (folder / "bin" / "python").exists()


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Keep other set-ups of this clone waiting until the end of the block. Return whether this one had to wait."""
    with LOCK.open("rb") as lock:
        waited = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            sys.stdout.write("Another set-up of this clone is running: waiting for its end\n")
            sys.stdout.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        HELD.append(lock.fileno())
        try:
            yield waited
        finally:
            HELD.clear()


def is_recent(folder: Path) -> bool:
    """Return whether an environment was finished after the files that make compares it with."""
    finished = (folder / STAMP).stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= finished for path in (LOCK, TREE / "pyproject.toml"))


def keep_ascii(file: Path) -> None:
    """Make the paths of a .pth relative when they are not ASCII: Python 3.11 reads it in the encoding of the locale, and stops."""
    lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    if not "".join(lines).isascii():
        relative = [line if line.isascii() else os.path.relpath(line, file.parent) for line in lines]
        file.write_text("".join(f"{line}\n" for line in relative), encoding="utf-8", errors="surrogateescape")


def install(folder: Path) -> None:
    """Install the lock and the tree. Raises FailedError."""
    total = len(PIN.findall(LOCK.read_text(encoding="utf-8")))
    version = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"Installing {total} libraries into {folder.name}, with Python {version}: once, about a minute\n")
    sys.stdout.flush()
    if is_finished(folder):
        (folder / STAMP).unlink()
    else:
        make(folder)
    pip = (folder / "bin" / "python", "-m", "pip")
    variables = environment(os.environ, listed_settings(folder, *pip, given=os.environ))
    wanted = os.environ.get("MOORING_SETUP_PIP", "")
    if wanted:
        run(folder, *pip, "install", "--upgrade", wanted, variables=variables)
    progress = Progress(total)
    try:
        lock = ("--no-deps", "--require-hashes", "-r", LOCK)
        run(folder, *pip, "install", *lock, variables=variables, on_line=progress.note)
        run(folder, *pip, "install", "--no-deps", "--no-build-isolation", "--editable", ".", variables=variables)
        for file in folder.glob("lib/python*/site-packages/*.pth"):
            keep_ascii(file)
        run(folder, *pip, "check", variables=variables)
    finally:
        progress.end()
    new = folder / f"{STAMP}.new"
    new.write_text(stamp(folder), encoding="utf-8", errors="surrogateescape")
    new.replace(folder / STAMP)


def main() -> int:
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.stderr.write(
            f"error: Python {version} is too old: 3.11 or newer is needed (make PYTHON=/path/to/python3)\n"
        )
        return 1
    folder = (TREE / (sys.argv[1] if len(sys.argv) > 1 else ".venv")).absolute()
    try:
        with alone() as waited:
            if not (waited and is_finished(folder) and is_recent(folder)):
                install(folder)
    except FailedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or folder}: {error.strerror}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; the next run makes the environment from the start\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
