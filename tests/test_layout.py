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
