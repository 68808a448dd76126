"""Number of workers and of CPUs (`mooring.controlplane.workers.serve`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mooring.controlplane.configuration import server_config
from mooring.controlplane.workers.serve import available_cpus, worker_count
from mooring.settings.serving import MAX_WORKERS


@pytest.mark.parametrize(
    ("quotas", "cpus"),
    [
        ({}, 8),
        ({"a/b": "max 100000"}, 8),
        ({"a/b": "150000 100000"}, 2),
        ({"a/b": "max 100000", "a": "100000 100000"}, 1),
        ({"a/b": "10000 100000"}, 1),
        ({"a/b": "6400000 100000"}, 8),
        ({"a/b": "nonsense"}, 8),
    ],
)
def test_a_quota_of_the_control_group_or_of_one_above_lowers_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotas: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/x\n0::/a/b\n")
    for group, quota in quotas.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cpu.max").write_text(quota)
    assert available_cpus(tmp_path, own) == cpus


@pytest.mark.parametrize("content", [None, "4:cpu:/x\n"])
def test_without_cgroup_v2_the_affinity_mask_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(3))
    own = tmp_path / "own"
    if content is not None:
        own.write_text(content)
    assert available_cpus(tmp_path, own) == 3


def test_auto_is_a_worker_for_each_cpu_and_one_for_a_store_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, workers in ((5, 5), (500, MAX_WORKERS)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: range(cpus))
        monkeypatch.setattr("mooring.controlplane.workers.serve._quota", lambda *paths: float("inf"))
        assert worker_count(server_config(data_dir="d", workers="auto")) == workers
    assert worker_count(server_config(storage="memory:", workers="auto")) == 1
    assert worker_count(server_config(data_dir="d", workers="3")) == 3
