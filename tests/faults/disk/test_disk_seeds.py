"""Faults of files by seeds: three of each kind, or those of MOORING_FAULT_SEEDS (docs/faults.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.disk.plans import plan_of, seeds
from tests.faults.disk.run import run_seed
from tests.support.faultlib.rules import Faults, library


@pytest.mark.faults
@pytest.mark.parametrize("seed", seeds(range(90)))
def test_faults_of_files_lose_nothing_acknowledged_and_store_nothing_refused(seed: int, tmp_path: Path) -> None:
    library()  # skips without a compiler
    plan = plan_of(seed)
    findings = run_seed(plan, tmp_path)
    assert not findings, "\n".join([str(plan), *findings, f"again: MOORING_FAULT_SEEDS={seed}"])


def test_the_library_comes_before_those_that_the_session_preloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = library()
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/another.so")
    assert Faults(tmp_path / "rules").environment["LD_PRELOAD"] == f"{own}:/usr/lib/another.so"
    monkeypatch.delenv("LD_PRELOAD")
    assert Faults(tmp_path / "rules").environment["LD_PRELOAD"] == str(own)
