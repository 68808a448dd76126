"""Identity of the machine that runs the agent, and the comparison with the machine that the record of a member names.

Rules kept here (docs/build-an-image.md):
* The record holds keyed hashes of the machine-id and of the product UUID, never the values: the id is confidential (machine-id(5)).
* A recorded hash that differs from that of this machine shows that the files were copied. A value that is absent on either side
  shows nothing.
* In a container nothing is compared or recorded: it has the product UUID of its host, and often the machine-id of its image.
* This finds mistakes. It does not stop a thief, who can remove the record.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mooring.agent.disk import Entry, RecordFile
from mooring.client.files import read_limited
from mooring.errors import ConfigError
from mooring.trust.requestfacts import FIRMWARE_FACTS

MAX_VALUE = 4096
"""Bytes: each of the files has one line of at most 37."""
MACHINE_ID_FILES = ("etc/machine-id", "var/lib/dbus/machine-id")
TRANSIENT_ID_FILE = "run/machine-id"
"""systemd mounts this file over /etc/machine-id where it could not write one, as below a read-only /etc: the next boot makes
another one."""
PRODUCT_UUID_FILE = "sys/class/dmi/id/product_uuid"
"""Only root may read it."""
CONTAINER_FILES = (".dockerenv", "run/.containerenv", "run/systemd/container")
"""Files that Docker, Podman and systemd in a container make."""
CONTAINER_VARIABLE = "container"
"""Variable of the first process of a container (systemd's CONTAINER_INTERFACE), which its children may inherit."""
_ENTRIES: tuple[Entry, ...] = ("machineID", "productUUID")
_KEY = b"mooring.dev/machine/v1"
"""Key of the hashes. It is not secret: it makes them differ from those of other programs."""
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LEAST_DISTINCT_BYTES = 6
"""A product UUID with fewer different bytes is a filler, such as all zeros. One in about 10¹² random UUIDs has so few."""
SHARED_UUIDS = frozenset(
    {
        # Values that makers of boards have left in place. SMBIOS 2.6 changed the order of bytes, so that each has two forms.
        "03000200-0400-0500-0006-000700080009",
        "00020003-0004-0005-0006-000700080009",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "03020100-0504-0706-0809-0a0b0c0d0e0f",
        "12345678-1234-5678-90ab-cddeefaabbcc",
        "78563412-3412-7856-90ab-cddeefaabbcc",
        "12345678-1234-1234-1234-123456789abc",
        "78563412-3412-3412-1234-123456789abc",
        "4c4c4544-0000-2010-8020-80c04f202020",
        "44454c4c-0000-1020-8020-80c04f202020",
    }
)


class CopiedFilesError(ConfigError):
    """The files of this membership belong to another machine."""


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """Place of the files that identify a machine, and the environment of the process."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def is_container(self) -> bool:
        """Return True in a container."""
        return CONTAINER_VARIABLE in self.environment or any((self.root / one).exists() for one in CONTAINER_FILES)

    def firmware_fact(self, name: str) -> str:
        """Return a fact of FIRMWARE_FACTS as the firmware has it; "" when this process cannot read it."""
        return self._line(f"sys/class/dmi/id/{FIRMWARE_FACTS[name]}")

    def hashes(self) -> dict[Entry, str]:
        """Return the hash of each value that this machine has; none in a container."""
        if self.is_container():
            return {}
        is_mounted = (self.root / MACHINE_ID_FILES[0]).is_mount()
        files = () if is_mounted and (self.root / TRANSIENT_ID_FILE).exists() else MACHINE_ID_FILES
        machine_id = next(filter(None, (usable_machine_id(self._line(one)) for one in files)), "")
        values: dict[Entry, str] = {
            "machineID": machine_id,
            "productUUID": usable_product_uuid(self._line(PRODUCT_UUID_FILE)),
        }
        return {entry: keyed_hash(entry, value) for entry, value in values.items() if value}

    def _line(self, path: str) -> str:
        try:
            return read_limited(self.root / path, MAX_VALUE).decode("ascii", "replace").strip()
        except ConfigError:
            return ""


def this_machine() -> MachineIdentity:
    """Return the machine on which this process runs."""
    return MachineIdentity()


def usable_machine_id(text: str) -> str:
    """Return a machine-id; "" for text that is not one, such as systemd's `uninitialized`, and for zeros."""
    value = text.lower()
    return value if _MACHINE_ID.fullmatch(value) and len(set(value)) > 1 else ""


def usable_product_uuid(text: str) -> str:
    """Return a product UUID; "" for text that is not one, such as `Not Settable`, and for UUIDs that boards share."""
    value = text.lower()
    if not _UUID.fullmatch(value) or value in SHARED_UUIDS:
        return ""
    return value if len(set(bytes.fromhex(value.replace("-", "")))) >= LEAST_DISTINCT_BYTES else ""


def keyed_hash(entry: str, value: str) -> str:
    """Return the hash under which a value is recorded."""
    return hmac.new(_KEY, f"{entry}={value}".encode(), hashlib.sha256).hexdigest()


def differs(recorded: Mapping[Any, str], here: Mapping[Entry, str]) -> bool:
    """Return True when a recorded hash differs from that of the same value here. "" is absent."""
    return any(recorded.get(entry) not in (None, "", value) for entry, value in here.items())


def is_copy(record: RecordFile, machine: MachineIdentity) -> bool:
    """Return True when the record is that of another machine."""
    return differs(_recorded(record), machine.hashes())


def check(record: RecordFile, machine: MachineIdentity, node_name: str, ways_on: str) -> None:
    """Raise CopiedFilesError when the record is that of another machine. `ways_on` says what to do."""
    if is_copy(record, machine):
        raise CopiedFilesError(f"these files were copied from {node_name or 'another machine'}: {ways_on}")


def remember(record: RecordFile, machine: MachineIdentity) -> None:
    """Record this machine, in place of another one. Raises ConfigError."""
    if not machine.is_container():
        here = machine.hashes()
        # A value that this machine does not have goes, too: it would be that of the other machine.
        _write(record, {entry: here.get(entry, "") for entry in _ENTRIES})


def complete(record: RecordFile, machine: MachineIdentity) -> None:
    """Record the values of this machine that the record lacks. Raises ConfigError."""
    recorded = _recorded(record)
    _write(record, {entry: value for entry, value in machine.hashes().items() if not recorded[entry]})


def _recorded(record: RecordFile) -> dict[Entry, str]:
    found = record.read()
    return {"machineID": found.machine_id, "productUUID": found.product_uuid}


def _write(record: RecordFile, values: Mapping[Entry, str]) -> None:
    recorded = _recorded(record)
    for entry, value in values.items():
        if recorded[entry] != value:
            record.write(entry, value)
