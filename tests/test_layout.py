"""Layout rules: every module has a docstring and a specific name (docs/adr/0001)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src/mooring").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
VAGUE = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "lib", "shared"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in (*SOURCES, *TESTS) if path.read_text().strip()], ids=named)
def test_every_module_opens_by_saying_what_it_is(path: Path) -> None:
    documented = ast.get_docstring(parsed(path))
    assert documented, "a module opens with a docstring"
    assert documented.splitlines()[0].strip()


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=named)
def test_no_name_is_vague(path: Path) -> None:
    parts = {part for name in path.relative_to(ROOT).with_suffix("").parts for part in name.split("_")}
    assert not parts & VAGUE


def classes(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            yield node.name


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_class_is_a_manager_or_a_helper(path: Path) -> None:
    assert not [name for name in classes(path) if name.endswith(("Manager", "Helper", "Utils", "Util"))]


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=named)
def test_every_exception_to_a_check_has_a_reason(path: Path) -> None:
    """Leave `# fmt: skip` out: it only keeps the rows of a table or of a command line."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for mark in ("# type: ignore", "# noqa", "# pragma: no cover"):
            if path != Path(__file__) and mark in line:
                reason = line.split(mark, 1)[1]
                if mark != "# pragma: no cover":  # which silences one thing
                    assert reason.startswith(("[", ": ")), f"line {number}: {mark} names what it silences"
                reason = reason.partition("]")[2] if reason.startswith("[") else reason.partition(" - ")[2]
                assert reason.strip(" #-") or " # " in line.split(mark)[0], f"line {number}: {mark} says why"


def test_tests_mirror_the_rooms() -> None:
    rooms = {path.name for path in (ROOT / "src/mooring").iterdir() if (path / "__init__.py").exists()}
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert rooms <= tested


def skips_without_a_reason(tree: ast.Module) -> list[int]:
    """Return the lines of skipped and expected failures that give no reason."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    marks = ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail")
    unexplained = [
        call.lineno
        for call in calls
        if (ast.unparse(call.func) in marks and not any(given.arg == "reason" for given in call.keywords))
        or (ast.unparse(call.func) in ("pytest.skip", "pytest.xfail") and not (call.args or call.keywords))
    ]
    called = {id(call.func) for call in calls}
    bare = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in marks and id(node) not in called
    ]
    return unexplained + bare


@pytest.mark.parametrize("path", TESTS, ids=named)
def test_every_skip_has_a_reason(path: Path) -> None:
    assert skips_without_a_reason(parsed(path)) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("@pytest.mark.skip\ndef test(): ...", [1], id="a bare mark"),
        pytest.param("mark = pytest.mark.skipif(True)", [1], id="a condition alone"),
        pytest.param("pytest.skip()", [1], id="a call without text"),
        pytest.param("pytest.skip('no disk')\npytest.mark.skipif(True, reason='no disk')", [], id="reasons are given"),
    ],
)
def test_a_skip_without_a_reason_is_found(text: str, lines: list[int]) -> None:
    assert skips_without_a_reason(ast.parse(text)) == lines
