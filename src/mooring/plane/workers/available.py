"""Number of workers, and of CPUs that this process may use: the CPUs that it may run on, and the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

from mooring.plane.configuration import ServerConfig
from mooring.settings.serving import AUTO, MAX_WORKERS, WorkersSettings
from mooring.settings.storage import StorageSettings

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def worker_count(config: ServerConfig) -> int:
    """Return how many workers serve. A store in memory belongs to one."""
    wanted = config[WorkersSettings].workers
    if wanted != AUTO:
        return wanted
    return 1 if config[StorageSettings].in_memory else min(available_cpus(), MAX_WORKERS)


def available_cpus(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return the CPUs of the affinity mask, or fewer where a quota of cgroup v2 (`cpu.max`) allows less; a part counts as one."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota(cgroups, own))))


def _quota(cgroups: Path, own: Path) -> float:
    """Return the least quota of the control group of this process and of those above it, in CPUs; infinity without one."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return math.inf
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        return math.inf
    below = Path(path)
    return min(_quota_of(cgroups / group / "cpu.max") for group in (below, *below.parents))


def _quota_of(file: Path) -> float:
    try:
        quota, period = file.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no file at the root; `max` without a quota
        return math.inf
