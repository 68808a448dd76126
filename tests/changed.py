"""`python -m tests.changed`: run the tests of the rooms that the working tree touches (`make test-changed`).

Contract:
* What counts as changed is what differs from HEAD, and what git does not track yet.
* For a module of Mooring these are the tests in the folder of its room, and every test that imports the module, or a module of the
  same room that reaches it by imports. For a module below tests/ these are the tests that import it, or have its dotted name in a
  string, and itself; for a conftest.py those of its folder, too. For any other file these are the tests at the top of tests/, those
  with its path or that of its folder in their text, and for one below src/ those of its room. An example, a data vector or another
  file below tests/ adds the tests that name it, or, where none does, its folder.
* Scenarios run only when their own file changed. `make test` and `make test-all` run everything.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp
import pytest
from grimp.exceptions import SourceSyntaxError

from tests.endings import ended_by_exceptions, finished
from tests.tworuns import of_scenarios

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/mooring")
SESSION = frozenset(
    Path("tests", f"{name}.py")
    for name in (
        "conftest",
        "leftovers",
        "purecoverage",
        "report",
        "secondtries",
        "sharedrewriting",
        "tworuns",
    )
)
"""Plugins of every session, which no test imports."""


def changed_files() -> set[Path]:
    """Return the files that differ from HEAD, below the root; both names of one that was renamed."""
    commands = (
        ("ls-files", "--others", "--exclude-standard", "-z"),  # first: without a repository, diff means something else
        ("diff", "--name-only", "--no-renames", "--relative", "-z", "HEAD"),
    )
    return {
        Path(name)
        for command in commands
        for name in subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, errors="surrogateescape", check=True
        ).stdout.split("\0")
        if name
    }


def module_of(path: Path) -> str:
    """Return the dotted name of a file: `mooring.authn.chain`, `tests.support.peer`."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return the room of a module of Mooring: `authn` for `mooring.authn.chain`; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


DOTTED = re.compile(r"tests(\.\w+)+")


def imports(text: str, name: str = "") -> set[str]:
    """Return the modules that a file imports or runs by name, and the names that it imports, as they may be modules, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text, name)):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
            case ast.Constant(value=str(value)) if DOTTED.fullmatch(value):
                found.add(value)
    return found


def naming(path: Path, texts: dict[Path, str]) -> set[Path]:
    """Return the modules below tests/ that name a file which is not a module; where none does, those that name its folder."""
    for name in (path.name, f'"{path.stem}"', f'"{path.parent.name}"'):
        if found := {test for test, text in texts.items() if name in text}:
            return found
    return set()


def quoting(path: Path, texts: dict[Path, str]) -> set[Path]:
    """Return the modules below tests/ with the path of a file in their text, or that of its folder: `docs/threats`."""
    names = [path.as_posix(), *([path.parent.as_posix()] if len(path.parts) > 2 else [])]
    return {test for test, text in texts.items() if any(name in text for name in names)}


def reaching(module: str, graph: grimp.ImportGraph) -> set[str]:
    """Return the module and those of its room that reach it by imports."""
    if module not in graph.modules:
        return {module}
    room = room_of(module)
    return {module, *(other for other in graph.find_downstream_modules(module) if room_of(other) == room)}


def affected(changed: Iterable[Path], texts: dict[Path, str], graph: grimp.ImportGraph) -> set[Path]:
    """Return the files of tests to run. `texts`: all modules below tests/."""
    tests = {path: imports(text, str(path)) for path, text in texts.items()}
    wanted: set[Path] = set()
    modules: set[str] = set()
    for path in changed:
        if path.suffix == ".py" and path.is_relative_to(SOURCE):
            module = module_of(path)
            modules |= reaching(module, graph)
            wanted |= {test for test in tests if test.parts[:2] == ("tests", room_of(module))}
        elif path.suffix == ".py" and path.parts[0] == "tests":
            modules.add(module_of(path))
            wanted |= {path, path.with_name(f"test_{path.name}")}
            if path in SESSION:
                wanted |= {test for test in tests if len(test.parts) == 2}
            elif path.name == "conftest.py":
                wanted |= {test for test in tests if test.is_relative_to(path.parent)}
        else:
            wanted |= {test for test in tests if len(test.parts) == 2}
            wanted |= quoting(path, texts)
            if path.is_relative_to(SOURCE):
                wanted |= {test for test in tests if test.parts[:2] == ("tests", room_of(module_of(path)))}
            if path.parts[0] in {"tests", "examples"}:
                modules |= {module_of(path), *map(module_of, naming(path, texts))}
                wanted |= naming(path, texts)
    found = {test for test in tests if tests[test] & modules}
    while found:  # support that imports support
        wanted |= found
        names = {module_of(test) for test in found}
        found = {test for test in tests if tests[test] & names} - wanted
    return {test for test in wanted if test.name.startswith("test_") and test in tests}


def exit_code(code: int) -> int:
    """Return the exit code for that of the run: no test is no fault here. A negative one is of a run that a signal ended."""
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else abs(code)


def main() -> int:
    if shutil.which("git") is None:
        sys.stderr.write("error: git is not installed, and says what changed: run make test\n")
        return 2
    try:
        changed = changed_files()
        texts = {
            path.relative_to(ROOT): path.read_text(errors="replace")
            for path in sorted((ROOT / "tests").rglob("*.py"))
            if path.is_file()  # an editor's lock is a link that leads nowhere
        }
        files = affected(changed, texts, grimp.build_graph("mooring"))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"error: git does not say what changed: {' '.join(error.stderr.split())}\n")
        return 2
    except SyntaxError as error:
        sys.stderr.write(f"error: {error.filename}, line {error.lineno}: {error.msg}: {(error.text or '').strip()}\n")
        return 2
    except (SourceSyntaxError, UnicodeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    wanted = sorted(str(path) for path in files if path in changed or not of_scenarios(ROOT / path))
    sys.stdout.write(f"{len(changed)} changed files, {len(wanted)} files of tests\n")
    sys.stdout.flush()
    if not wanted:
        return 0
    flags = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *sys.argv[1:]]
    return exit_code(finished(subprocess.Popen([*flags, *wanted], cwd=ROOT)))


if __name__ == "__main__":
    ended_by_exceptions()
    sys.exit(main())
