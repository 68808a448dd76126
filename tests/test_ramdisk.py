"""Temporary directories are in memory when `make test` runs where there is room, and none is left there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ramdisk
from tests.ramdisk import SPACE, delete_abandoned, directory_of_session, has_room, pytest_configure

ROOT = Path(__file__).parents[1]
ROOMY = f"MemTotal: 9 kB\nMemAvailable: {SPACE >> 10} kB\n"


@pytest.mark.parametrize(
    ("free", "flags", "meminfo", "expected"),
    [
        pytest.param(SPACE, 0, ROOMY, True, id="room"),
        pytest.param(SPACE - 4096, 0, ROOMY, False, id="a small file system"),
        pytest.param(SPACE, os.ST_NOEXEC, ROOMY, False, id="programs cannot be run from it"),
        pytest.param(SPACE, 0, f"MemAvailable: {(SPACE >> 10) - 1} kB\n", False, id="little memory"),
        pytest.param(SPACE, 0, "", False, id="an unknown amount of memory"),
    ],
)
def test_a_place_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, flags: int, meminfo: str, expected: bool
) -> None:
    found = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(os, "statvfs", lambda folder: found)
    assert has_room(tmp_path, meminfo) is expected


def test_a_machine_without_the_file_system_has_no_room(tmp_path: Path) -> None:
    assert not has_room(tmp_path / "none", ROOMY)


def test_a_directory_ends_with_its_session_or_the_next_one(tmp_path: Path) -> None:
    abandoned = tmp_path / f"{ramdisk.PREFIX}killed"
    (abandoned / "t").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    with directory_of_session(tmp_path) as live:
        (live / "t").mkdir()
        delete_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([live, other])
    assert list(tmp_path.iterdir()) == [other]


def test_a_directory_that_another_session_took_for_abandoned_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def lock_late(folder: Path) -> Iterator[None]:
        folder.rmdir()
        yield

    monkeypatch.setattr(ramdisk, "lock", lock_late)
    with pytest.raises(FileNotFoundError), directory_of_session(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("expression", "basetemp", "variable"),
    [
        pytest.param("scenario", None, "", id="scenarios"),
        pytest.param("", None, "", id="another run"),
        pytest.param("not scenario", Path("there"), "", id="a place of the command line"),
        *(pytest.param("not scenario", None, name, id=name) for name in ramdisk.OTHER_PLACE),
    ],
)
def test_another_place_stays(
    monkeypatch: pytest.MonkeyPatch, expression: str, basetemp: Path | None, variable: str
) -> None:
    for name in ramdisk.OTHER_PLACE:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "there")
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression, basetemp=basetemp))
    pytest_configure(config)  # which has no add_cleanup
    assert config.option.basetemp == basetemp


def test_make_test_runs_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ramdisk.OTHER_PLACE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ramdisk, "MEMORY", tmp_path)
    monkeypatch.setattr(ramdisk, "has_room", lambda folder, meminfo: True)
    ends: list[Any] = []
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=ramdisk.SELECTION, basetemp=None))
    config.add_cleanup = ends.append
    pytest_configure(config)
    (folder,) = tmp_path.iterdir()
    assert config.option.basetemp == folder / "t"
    (end,) = ends
    end()
    assert list(tmp_path.iterdir()) == []
    assert f'-m "{ramdisk.SELECTION}" ' in (ROOT / "Makefile").read_text()


def test_paths_are_no_longer_than_those_of_pytest() -> None:
    assert len(f"{ramdisk.MEMORY}/{ramdisk.PREFIX}12345678/t") <= len("/tmp/pytest-of-user/pytest-1000")
