"""Report of one server about itself: its certificates, its store, its snapshots and its workers."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mooring import __version__, build
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.plane.background.expirywatch import Ending, ExpirySource
from mooring.plane.configuration import ServerConfig
from mooring.plane.parts.registry import RegistryParts
from mooring.plane.snapshots.directory import newest
from mooring.plane.snapshots.schedule import ScheduledSnapshots
from mooring.server.audit.logfile import AuditLog
from mooring.settings.serving import WorkersSettings
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings

_SQLITE = "sqlite:"
_SQLITE_FILES = ("", "-wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Makes the report."""

    config: ServerConfig
    parts: RegistryParts
    audit: AuditLog
    sources: Mapping[str, ExpirySource]
    """Sources of certificates that end some day, by name."""
    snapshots: ScheduledSnapshots | None
    lost_addresses: Callable[[], Sequence[str]]

    def report(self) -> Obj:
        """Return the report. Files are read."""
        ends = {name: source.examine() for name, source in self.sources.items()}
        return {
            "server": platform.node(),
            "dataDir": self.config.data_dir,
            "version": __version__,
            "commit": build.commit(),
            "addresses": [str(one) for one in self.config.endpoints],
            "lostAddresses": list(self.lost_addresses()),
            "workers": self.config[WorkersSettings].workers,
            "certificates": [self._certificate(name, end) for name, (end, _) in ends.items() if end is not None],
            "unreadable": [
                {"description": self.sources[name].text, "file": self.sources[name].file, "problem": problem}
                for name, (_, problem) in ends.items()
                if problem
            ],
            "store": self._store(),
            "auditLog": {"problem": self.audit.problem},
            "snapshots": self._snapshots(),
            "encryption": {
                "configured": self.parts.encryption.configured,
                "configHash": self.parts.encryption.config_hash,
            },
        }

    def _certificate(self, name: str, end: Ending) -> Obj:
        source = self.sources[name]
        return {
            "name": name,
            "description": source.text,
            "file": source.file,
            "serialNumber": f"{end.serial_number:x}",
            "notBefore": rfc3339(end.not_valid_before_utc),
            "notAfter": rfc3339(end.not_valid_after_utc),
            "isCA": source.is_ca,
            "renewedByServer": source.is_renewed,
            "advice": "" if source.is_renewed else source.advice,
        }

    def _store(self) -> Obj:
        url, storage = self.config[StorageSettings].storage_url, self.parts.storage
        kind = url.partition(":")[0]
        found: Obj = {
            "kind": kind,
            "revision": self.parts.registry.cache.revision,
            "problem": storage.problem,
            "alarm": storage.alarm,
            "refusesWrites": storage.refuses_writes,
            "unreadableObjects": len(self.parts.registry.cache.unreadable),
        }
        if kind == "sqlite":
            found["bytes"] = sum(_size(url.removeprefix(_SQLITE) + end) for end in _SQLITE_FILES)
        return found

    def _snapshots(self) -> Obj:
        settings = self.config[SnapshotSettings]
        directory = Path(settings.directory(self.config.data_dir))
        try:
            last = newest(directory)
        except ConfigError:
            last = None  # the first snapshot makes the directory
        return {
            "scheduled": self.snapshots is not None,
            "directory": str(directory),
            "problem": self.snapshots.problem if self.snapshots is not None else "",
            "last": last
            and {"file": last.path.name, "bytes": last.size, "problem": last.problem}
            | ({"time": last.header.time, "revision": last.header.revision} if last.header is not None else {}),
        }


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
