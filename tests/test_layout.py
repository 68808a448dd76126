"""Layout rules: every module has a docstring and a specific name (docs/adr/0001)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src/mooring").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
VAGUE = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "lib", "shared"}


_OPENING = re.compile(r'(?:#.*\n|\s)*r?"""(.*)')
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
_PUBLIC_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
SAME_CONCEPT = {
    # The result that an operator's code returns, by a name that is stable, and the checked verdict of every authenticator.
    "NotMine": ["src/mooring/authn/plugin.py", "src/mooring/authn/verdict.py"],
    "Rejected": ["src/mooring/authn/plugin.py", "src/mooring/authn/verdict.py"],
}
"""Public class names that two files define by design, with their files."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_module_opens_by_saying_what_it_is() -> None:
    texts = {path: path.read_text() for path in (*SOURCES, *TESTS)}
    openings = {path: _OPENING.match(text) for path, text in texts.items() if text.strip()}
    assert [named(path) for path, opening in openings.items() if opening is None or not opening[1].strip()] == []


_NAMED_IN_A_FOLDER = re.compile(r"`([a-z][\w/]*)`")
NOT_MODULES = {"mooring", "setting", "v1"}
"""Names in docstrings of folders that are no files: the command, a function and an API version."""


def test_a_folder_says_what_is_in_it() -> None:
    """Test that each file that the docstring of a folder names is there, or is a room."""
    missing = []
    for path in SOURCES:
        if path.name == "__init__.py":
            for name in {one.rstrip("/") for one in _NAMED_IN_A_FOLDER.findall(path.read_text())} - NOT_MODULES:
                places = [folder / name for folder in (path.parent, ROOT / "src/mooring")]
                if not any(place.is_dir() or place.with_suffix(".py").is_file() for place in places):
                    missing.append(f"{named(path)}: {name}")
    assert missing == []


def test_docstrings_of_the_program_begin_with_a_verb_or_a_noun() -> None:
    first = re.compile(r'^\s*"""(?:What|Whether|Who|How|As|Of|It|The same)\b.*', re.M)
    found = {named(path): first.findall(path.read_text()) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_no_name_is_vague() -> None:
    def parts(path: Path) -> set[str]:
        return {part for name in path.relative_to(ROOT).with_suffix("").parts for part in name.split("_")}

    assert [named(path) for path in (*SOURCES, *TESTS) if parts(path) & VAGUE] == []


def test_no_class_is_a_manager_or_a_helper() -> None:
    named_so = ("Manager", "Helper", "Utils", "Util")
    assert [
        f"{named(path)}: {name}"
        for path in SOURCES
        for name in _CLASS.findall(path.read_text())
        if name.endswith(named_so)
    ] == []


def defined_twice(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the public classes that several files define, with their files. `texts` are the files by name."""
    files = defaultdict(list)
    for file, text in texts.items():
        for name in dict.fromkeys(_PUBLIC_CLASS.findall(text)):
            files[name].append(file)
    return {name: places for name, places in files.items() if len(places) > 1}


def test_a_class_name_has_one_meaning() -> None:
    assert defined_twice({named(path): path.read_text() for path in SOURCES}) == SAME_CONCEPT


@pytest.mark.parametrize(
    ("one", "other", "twice"),
    [
        pytest.param("class Reader:", "class Reader(Protocol):", ["Reader"], id="a class and a protocol"),
        pytest.param("x = 1\nclass Kind(Generic[T]):", "class Kind:", ["Kind"], id="below other code"),
        pytest.param("class _Row:", "class _Row:", [], id="private names"),
        pytest.param("class A:\n    class Row:", "class Row:", [], id="a class of a class"),
        pytest.param("class Log:", "class LogReader:", [], id="the beginning of another name"),
    ],
)
def test_a_class_name_with_two_meanings_is_found(one: str, other: str, twice: list[str]) -> None:
    assert list(defined_twice({"one.py": one, "other.py": other})) == twice


def exceptions_without_a_reason(text: str) -> list[int]:
    """Return the lines that silence a check and do not say which, or why.

    Leave `# fmt: skip` out: it only keeps the rows of a table or of a command line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for mark in ("# type: ignore", "# noqa", "# pragma: no cover"):
            if mark not in line:
                continue
            reason = line.split(mark, 1)[1]
            names_it = mark == "# pragma: no cover" or reason.startswith(("[", ": "))  # which silences one thing
            reason = reason.partition("]")[2] if reason.startswith("[") else reason.partition(" - ")[2]
            says_why = reason.strip(" #-") or " # " in line.split(mark)[0]
            if not (names_it and says_why):
                found.append(number)
    return found


def test_every_exception_to_a_check_has_a_reason() -> None:
    others = [path for path in (*SOURCES, *TESTS) if path != Path(__file__)]
    found = {named(path): exceptions_without_a_reason(path.read_text()) for path in others}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("x = 1  # type: ignore", [1], id="everything is silenced"),
        pytest.param("x = 1  # type: ignore[misc]", [1], id="a type error without a reason"),
        pytest.param("x = 1  # noqa: E501", [1], id="a lint finding without a reason"),
        pytest.param("x = 1  # noqa", [1], id="every lint finding"),
        pytest.param("x = 1  # pragma: no cover", [1], id="a branch without a reason"),
        pytest.param(
            "x = 1  # noqa: E501 - a table\ny = 2  # type: ignore[misc] # untyped", [], id="reasons are given"
        ),
    ],
)
def test_an_exception_without_a_reason_is_found(text: str, lines: list[int]) -> None:
    assert exceptions_without_a_reason(text) == lines


def test_tests_mirror_the_rooms() -> None:
    rooms = {path.name for path in (ROOT / "src/mooring").iterdir() if (path / "__init__.py").exists()}
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert rooms <= tested


_SKIPS = re.compile(r"(mark|pytest)\.(skip|xfail)")


def skips_without_a_reason(tree: ast.Module) -> list[int]:
    """Return the lines of skipped and expected failures that give no reason."""
    words = ("skip", "skipif", "xfail")  # to write out every node as text takes seconds
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Attribute)]
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in words
    ]
    marks = tuple(f"pytest.mark.{word}" for word in words)
    unexplained = [
        call.lineno
        for call in calls
        if (ast.unparse(call.func) in marks and not any(given.arg == "reason" for given in call.keywords))
        or (ast.unparse(call.func) in ("pytest.skip", "pytest.xfail") and not (call.args or call.keywords))
    ]
    called = {id(call.func) for call in calls}
    bare = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr in words
        and ast.unparse(node) in marks
        and id(node) not in called
    ]
    return unexplained + bare


def test_every_skip_has_a_reason() -> None:
    texts = {path: path.read_text() for path in TESTS}
    trees = {path: ast.parse(text) for path, text in texts.items() if _SKIPS.search(text)}
    found = {named(path): skips_without_a_reason(tree) for path, tree in trees.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


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
