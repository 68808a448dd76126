"""Build identity: the commit of a checkout in each form that git has, and of a package that a build recorded it in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from mooring import build

ONE, OTHER = "1" * 40, "2" * 40
PACKED = f"# pack-refs\n{OTHER} refs/heads/x\n{ONE} refs/heads/main\n^{OTHER}"
CHECKOUT = {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{ONE}\n"}


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        pytest.param(CHECKOUT, ONE, id="a branch"),
        pytest.param({".git/HEAD": ONE}, ONE, id="no branch"),
        pytest.param({".git/HEAD": "a" * 64}, "a" * 64, id="SHA-256"),
        pytest.param({".git/HEAD": "ref: refs/heads/main", ".git/packed-refs": PACKED}, ONE, id="packed"),
        pytest.param({".git/HEAD": "ref: refs/heads/new", ".git/packed-refs": f"{ONE} refs/heads/main\n"}, "", id="no commit yet"),
        pytest.param({".git/HEAD": "ref: refs/heads/.invalid"}, "", id="of another format"),
        pytest.param(
            {
                ".git": "gitdir: common/worktrees/w\n", "common/worktrees/w/HEAD": "ref: refs/heads/w\n",
                "common/worktrees/w/commondir": "../..\n", "common/refs/heads/w": ONE,
            },
            ONE, id="a worktree",
        ),
        pytest.param({".git": "gitdir: /gone\n"}, "", id="a worktree that is gone"),
        pytest.param({"src/mooring/build-commit.txt": f"{ONE}\n"}, ONE, id="recorded"),
        pytest.param(CHECKOUT | {"src/mooring/build-commit.txt": f"{OTHER}\n"}, OTHER, id="recorded, inside a checkout"),
        pytest.param({"src/mooring/build-commit.txt": "main"}, "", id="nonsense"),
        pytest.param({}, "", id="without git"),
    ],
)  # fmt: skip
def test_the_commit_of_a_source_tree(tmp_path: Path, files: Mapping[str, str], commit: str) -> None:
    package = tmp_path / "src/mooring"
    package.mkdir(parents=True)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert build.commit_of(package) == commit


def test_a_package_in_the_checkout_of_another_program_has_no_commit(tmp_path: Path) -> None:
    for name, text in CHECKOUT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = tmp_path / "site-packages/mooring"
    package.mkdir(parents=True)
    assert build.commit_of(package) == ""


@pytest.mark.parametrize(("commit", "text"), [(ONE, f"0.1.0, commit {ONE[:12]}"), ("", "0.1.0")])
def test_the_version_for_people(monkeypatch: pytest.MonkeyPatch, commit: str, text: str) -> None:
    monkeypatch.setattr(build, "commit", lambda: commit)
    assert build.with_commit("0.1.0") == text


def test_the_commit_is_that_of_the_program_that_runs() -> None:
    assert build.commit() == build.commit_of(Path(build.__file__).parent)
