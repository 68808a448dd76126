"""`python3 tests/environment.py [FOLDER]`: install `requirements/dev.lock` and this tree into a virtual environment.

Contract:
* A lock is complete, so that nothing is resolved: `--no-deps --require-hashes`, and `pip check` proves it. Settings of pip that
  would change what is installed, or where, do not count; those about the network do.
* The stamp FOLDER/.ready is written last, with the path of the environment. Without it, or in a clone that was moved, the
  environment is made again from the start; with it, the libraries of a changed lock are installed into it.
* A terminal shows progress. An error is one line on stderr that says what to do, with exit code 1; the output of pip stays in
  FOLDER/install.log.
* Only the standard library is imported, and any Python from 3.8 on can say that it is too old.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
LOCK = TREE / "requirements" / "dev.lock"
OLDEST = (3, 11)
STAMP = ".ready"
REDIRECTING = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_CONSTRAINT",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUSERBASE",
)
"""Variables that change what pip installs, or where."""
OVERRIDES = {"PIP_USER": "0", "PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
"""These take precedence over the configuration files of pip."""
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
            r"|ProxyError|ReadTimeout|from versions: none\)"
        ),
        "the package registry does not answer: is there a network, and does pip's configuration (index-url, proxy) lead to it?",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED|SSLError"),
        "the certificate of the package registry is not trusted: set PIP_CERT to the CA",
    ),
    (
        re.compile(r"DO NOT MATCH THE HASHES"),
        "a downloaded library has another hash than requirements/dev.lock: do not use this registry",
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


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the commands."""
    return {**{name: value for name, value in given.items() if name not in REDIRECTING}, **OVERRIDES}


def run(folder: Path, *arguments: str | Path, on_line: Callable[[str], None] = lambda line: None) -> None:
    """Run a command and keep its output in the log. Raises FailedError."""
    lines = []
    try:
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            errors="replace",
            env=environment(os.environ),
            cwd=TREE,
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


def make(folder: Path) -> None:
    """Make the virtual environment, from the start. Raises FailedError."""
    try:
        if folder.is_symlink() or folder.is_file():
            raise FailedError(f"{folder} is not a folder: remove it")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise FailedError(f"{folder} cannot be made: {error.strerror}") from None
    version = ".".join(map(str, sys.version_info[:2]))
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError:
            raise FailedError(
                f"Python {version} has no module {module}: install it (Debian, Ubuntu: apt install python{version}-venv)"
            ) from None
    run(folder, sys.executable, "-m", "venv", "--clear", folder)


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


def is_finished(folder: Path) -> bool:
    """Return whether an earlier run finished this environment, here."""
    try:
        return (folder / STAMP).read_text(encoding="utf-8") == f"{folder}\n" and (folder / "bin" / "python").exists()
    except OSError:
        return False


def install(folder: Path) -> None:
    """Install the lock and the tree. Raises FailedError."""
    lock = LOCK.read_text(encoding="utf-8")
    total = len(PIN.findall(lock))
    version = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"Installing {total} libraries into {folder.name}, with Python {version}: once, about a minute\n")
    sys.stdout.flush()
    if is_finished(folder):
        (folder / STAMP).unlink()
    else:
        make(folder)
    pip = (folder / "bin" / "python", "-m", "pip")
    wanted = os.environ.get("MOORING_SETUP_PIP", "")
    if wanted:
        run(folder, *pip, "install", "--upgrade", wanted)
    progress = Progress(total)
    try:
        run(folder, *pip, "install", "--no-deps", "--require-hashes", "-r", LOCK, on_line=progress.note)
        run(folder, *pip, "install", "--no-deps", "--no-build-isolation", "--editable", TREE)
        run(folder, *pip, "check")
    finally:
        progress.end()
    stamp = folder / f"{STAMP}.new"
    stamp.write_text(f"{folder}\n", encoding="utf-8")
    stamp.replace(folder / STAMP)


def main() -> int:
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.stderr.write(
            f"error: Python {version} is too old: 3.11 or newer is needed (make PYTHON=/path/to/python3)\n"
        )
        return 1
    folder = (TREE / (sys.argv[1] if len(sys.argv) > 1 else ".venv")).absolute()
    try:
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
