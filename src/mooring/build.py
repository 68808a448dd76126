"""Build identity: the git commit from which the program was built, or that the checkout has from which it runs.

Rules kept here:
* A wheel and a source archive have the commit in a file that the build hook of pyproject.toml wrote. An editable install reads the
  commit of its checkout, which moves on. Files are read, git is not run: `mooring --version` stays quick, and needs no git.
* The commit is empty where it cannot be read.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

RECORD = "build-commit.txt"
"""File of the package with the commit."""
SHORT = 12
"""Digits that lines for people show."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""SHA-1, or SHA-256."""


@cache
def commit() -> str:
    """Return the commit in hexadecimal; "" when it is not known."""
    return commit_of(Path(__file__).parent)


def with_commit(version: str) -> str:
    """Return a version for people, with the commit where it is known."""
    return f"{version}, commit {commit()[:SHORT]}" if commit() else version


def commit_of(package: Path) -> str:
    """Return the commit of the program in a directory: the recorded one, else that of the checkout whose `src` has it."""
    try:
        if (package / RECORD).exists():
            found = _text(package / RECORD)
        else:
            found = _head(package.parent.parent / ".git") if package.parent.name == "src" else ""
    except (OSError, ValueError):
        return ""
    return found if _COMMIT.fullmatch(found) else ""


def _head(git: Path) -> str:
    """Return the commit of HEAD. Raises OSError, ValueError."""
    if git.is_file():  # a worktree names its directory
        git = git.parent / _text(git).removeprefix("gitdir: ")
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    shared = git / _text(git / "commondir") if (git / "commondir").exists() else git
    if (shared / name).is_file():
        return _text(shared / name)
    packed = (line.partition(" ") for line in _text(shared / "packed-refs").splitlines())
    return next((value for value, _, packed_name in packed if packed_name == name), "")


def _text(path: Path) -> str:
    return path.read_text("utf-8").strip()
