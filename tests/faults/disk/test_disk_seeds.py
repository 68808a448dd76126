"""Faults of files by seeds: three of each kind, or those of MOORING_FAULT_SEEDS (docs/faults.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.disk.plans import plan_of, seeds
from tests.faults.disk.run import run_seed
from tests.support.faultlib.rules import library


@pytest.mark.faults
@pytest.mark.parametrize("seed", seeds(range(90)))
def test_faults_of_files_lose_nothing_acknowledged_and_store_nothing_refused(seed: int, tmp_path: Path) -> None:
    library()  # skips without a compiler
    plan = plan_of(seed)
    findings = run_seed(plan, tmp_path)
    assert not findings, "\n".join([str(plan), *findings, f"again: MOORING_FAULT_SEEDS={seed}"])
