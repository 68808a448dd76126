"""Locks are complete for every supported Python, and what is missing in one is named."""

from __future__ import annotations

import re

import pytest

from tests.locks import EVERY, FOLDER, LOCKS, PYTHONS, Lock, changes, faults, installed, pins, vulnerabilities, written

LOCK = """\
anyio==4.1 ; python_full_version < '3.13' \\
    --hash=sha256:00
click[extra, other]==8.5 \\
    --hash=sha256:11 \\
    --hash=sha256:22
colorama==0.4 ; sys_platform == 'win32' \\
    --hash=sha256:33

# The following packages are considered to be unsafe in a requirements file:
Typing_Extensions==4.16 \\
    --hash=sha256:44
"""
DECLARED = ["anyio>=4", "click[extra]>=8"]
RESOLVED = {
    python: {"click": "8.5", "typing-extensions": "4.16"} | ({"anyio": "4.1"} if python in PYTHONS[:2] else {})
    for python in PYTHONS
}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_lock_is_complete_for_every_python(lock: Lock) -> None:
    assert faults(lock.name, lock.path.read_text(), lock.closure.read_text(), lock.declared()) == []


def test_there_is_no_lock_beside_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.lock")} == {lock.name for lock in LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_index_and_every_library_has_a_hash(lock: Lock) -> None:
    text = lock.path.read_text()
    assert not re.search(r"https?:|--index|--find-links| @ ", text)
    blocks = text.replace("\\\n", " ").splitlines()
    assert [line for line in blocks if line.strip() and "--hash=sha256:" not in line and line[0] != "#"] == []


def test_a_closure_of_the_same_resolution_is_what_the_lock_installs() -> None:
    assert faults("x", LOCK, written(DECLARED, RESOLVED), DECLARED) == []


@pytest.mark.parametrize(
    ("lock", "declared", "line"),
    [
        pytest.param(
            LOCK.replace("Typing_Extensions==4.16", "other==1"),
            DECLARED,
            "requirements/x.lock: Python 3.11 installs typing-extensions not at all, and needs 4.16",
            id="a library is missing",
        ),
        pytest.param(
            LOCK.replace("Typing_Extensions==4.16", "other==1"),
            DECLARED,
            "requirements/x.lock: Python 3.14 installs other 1, and needs none",
            id="a library is too many",
        ),
        pytest.param(
            LOCK.replace("click[extra, other]==8.5", "click==8.6"),
            DECLARED,
            "requirements/x.lock: Python 3.12 installs click 8.6, and needs 8.5",
            id="another version",
        ),
        pytest.param(
            LOCK.replace(" ; python_full_version < '3.13'", ""),
            DECLARED,
            "requirements/x.lock: Python 3.13 installs anyio 4.1, and needs none",
            id="a marker is missing",
        ),
        pytest.param(LOCK, [*DECLARED, "new"], "requirements/x.lock was not resolved for new", id="a new requirement"),
        pytest.param(LOCK, DECLARED[:1], "requirements/x.lock was not resolved without click[extra]>=8", id="one less"),
    ],
)
def test_what_a_lock_lacks_is_named(lock: str, declared: list[str], line: str) -> None:
    assert line in faults("x", lock, written(DECLARED, RESOLVED), declared)


def test_a_lock_is_read_with_markers_extras_and_comments() -> None:
    assert [pin.name for pin in pins(LOCK)] == ["anyio", "click", "colorama", "Typing_Extensions"]
    assert installed(pins(LOCK), "3.13") == {"click": "8.5", "typing-extensions": "4.16"}


def test_a_closure_says_once_what_every_python_installs() -> None:
    assert f'"{EVERY}": {{\n   "click"' in written(DECLARED, RESOLVED)
    assert written(DECLARED, RESOLVED).count('"click"') == 1


def hashed(*lines: str) -> str:
    return "".join(f"{line} \\\n    --hash=sha256:00\n" for line in lines)


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        pytest.param(
            LOCK.replace("click[extra, other]==8.5 \\\n", ""), "not a library with a version: --hash", id="a line lost"
        ),
        pytest.param("a==1\n", "no hash of a", id="no hash"),
        pytest.param(hashed("a>=1"), "no version of a", id="no version"),
        pytest.param("--find-links x\n", "not a library with a version: --find-links x", id="an option"),
        pytest.param("<<<<<<< HEAD\n", "not a library with a version: <<<<<<< HEAD", id="a conflict"),
        pytest.param(hashed("a==1", "A==2"), "a is there twice", id="twice"),
    ],
)
def test_a_lock_that_cannot_be_installed_is_refused(lock: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        installed(pins(lock), "3.11")


def test_a_renewal_lists_what_it_changes() -> None:
    assert changes(hashed("a==1", "b==1"), hashed("b==2", "c==3 ; python_version > '3'")) == [
        "a: 1 -> gone",
        "b: 1 -> 2",
        "c: new -> 3",
    ]


@pytest.mark.parametrize(
    ("report", "errors", "lines"),
    [
        ("", "no network\n", ["dev.lock: not checked for known vulnerabilities: no network"]),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "not found"}]}',
            "",
            ["dev.lock: not checked for known vulnerabilities: their list cannot be read here"],
        ),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}]}',
            "",
            ["dev.lock: a 1 has X-1; mended in: 2"],
        ),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "no"}]}',
            "",
            ["dev.lock: no known vulnerabilities in 1 libraries"],
        ),
    ],
    ids=["no report", "no list", "one vulnerability", "none"],
)
def test_the_audit_says_what_it_found_or_why_it_did_not_look(report: str, errors: str, lines: list[str]) -> None:
    assert vulnerabilities("dev.lock", report, errors) == lines
