"""Machines of tests: a directory with the files that identify a machine."""

from __future__ import annotations

from pathlib import Path

from mooring.agent import machineid
from mooring.agent.machineid import MachineIdentity

FIRST = "11d5bbca2e9f4b5f8f0d5a6c7e8f9a0b"
SECOND = "5f0c1b7a93e84d2c8a6b0e4f7d9c3a12"


def machine(place: Path, machine_id: str = "", product_uuid: str = "", **environment: str) -> MachineIdentity:
    """Return a machine whose files are below `place`; without the files whose value is empty."""
    for name, value in ((machineid.MACHINE_ID_FILES[0], machine_id), (machineid.PRODUCT_UUID_FILE, product_uuid)):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if value:
            path.write_text(f"{value}\n")
    return MachineIdentity(place, environment)
