"""Record of a member: what the agent remembers between two runs, in `var/lib/mooring/agent.json`.

Rules kept here:
* A change replaces the whole file. Entries that this version does not know stay.
* A file that is missing or cannot be parsed reads as an empty record: every entry has a safe meaning when it is missing.
* No entry is a secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from mooring.agent import disk
from mooring.client.files import read_limited
from mooring.errors import ConfigError

MAX_RECORD = 64 << 10
"""Bytes: a record has a few hundred."""

Entry = Literal["expirationSeconds", "nodeIP", "nodeUID", "hooksDone", "systemRoots"]


class AgentRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Settings and progress of an agent that outlive its process.

    * `expiration_seconds`: lifetime that was chosen for the client certificate; 0 leaves it to the signer.
    * `node_ip`: addresses that were chosen for the Node; none for the one towards the server.
    * `node_uid`: uid of the Node that this machine registered; empty before.
    * `hooks_done`: digest of what the hooks of each kind were last run for.
    * `system_roots`: the machine's own roots verify the servers of a supervisor (`mooring.agent.k3s`).
    """

    expiration_seconds: int = 0
    node_ip: tuple[str, ...] = msgspec.field(default=(), name="nodeIP")
    node_uid: str = msgspec.field(default="", name="nodeUID")
    hooks_done: dict[str, str] = {}
    system_roots: bool = False


class RecordFile:
    """The file of one record."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> AgentRecord:
        """Return the record; an empty one when there is none that can be read."""
        try:
            return msgspec.convert(self._entries(), AgentRecord)
        except msgspec.ValidationError:
            return AgentRecord()

    def write(self, entry: Entry, value: object) -> None:
        """Set one entry. Nothing is written when it has that value already. Raises ConfigError."""
        entries = self._entries()
        if entries.get(entry) != value:
            disk.write(self.path, msgspec.json.format(msgspec.json.encode({**entries, entry: value})) + b"\n")

    def _entries(self) -> dict[str, Any]:
        try:
            entries = msgspec.json.decode(read_limited(self.path, MAX_RECORD))
        except (ConfigError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}
        return entries if isinstance(entries, dict) else {}
