"""One seed, whatever its subject."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.faults.disk.commandseed import run_command_seed
from tests.faults.disk.plans import Plan, Subject
from tests.faults.disk.serverseed import run_server_seed
from tests.faults.disk.storeseed import run_store_seed


def run_seed(plan: Plan, directory: Path) -> Sequence[str]:
    """Run the plan in an empty directory. Return what was wrong."""
    if plan.subject.is_store:
        return run_store_seed(plan, directory)
    if plan.subject is Subject.COMMAND:
        return run_command_seed(plan, directory)
    return run_server_seed(plan, directory)
