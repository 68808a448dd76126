"""Files of the shared keys in one data directory, and the record of the row with which they last agreed.

    pki/                        the files (mooring.trust.sharedkeys.keyset)
    server/shared-keys.json     cluster, generation, fingerprint and CAs of that row, and the names of its files
    server/staging/             a copy in which a change is prepared; removed after it

Rules kept here:
* Files are written in an order in which the state after each write can be loaded: the bundle of CAs trusts both CAs while the
  key of the one replaces that of the other, and a key of a rollover is there before its certificate.
* The record is written last. A server that is killed before it writes the same files again.
* Files that were never part of a row are left alone: an administrator places the CA of a rollover beforehand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mooring.client.files import make_directory, read_limited, sync_directory, write_atomic
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.sharedkeys.keyset import CA, CA_KEY, NAMES, RETIRED, SharedKeySet, authorities_of
from mooring.trust.sharedkeys.reconciliation import MADE_ONCE, NEVER, Agreed, KeysOnDisk

FOLDER, RECORD, STAGING = "server", "shared-keys.json", "staging"


@dataclass(frozen=True, slots=True)
class FilesRecord:
    """The row with which the files last agreed, and the names of its files."""

    agreed: Agreed = NEVER
    names: tuple[str, ...] = ()


class SharedKeyFiles:
    """The files of one data directory. Callers hold its lock (`mooring.controlplane.keystore.exclusive`)."""

    def __init__(self, data_dir: Path) -> None:
        self.pki = data_dir / "pki"
        self._folder = data_dir / FOLDER

    def on_disk(self) -> KeysOnDisk:
        """Return the present state of the files. Raises ConfigError for files that cannot be used."""
        ca, record = self.pki / CA, self.record()
        missing = tuple(name for name in MADE_ONCE if not (self.pki / name).exists())
        lost = tuple(name for name in missing if name in record.names)
        if not ca.exists():
            return KeysOnDisk(str(self.pki), agreed=record.agreed, missing=missing, lost=lost)
        retired = self.pki / RETIRED
        bundles = read_limited(ca), read_limited(retired) if retired.exists() else b""
        try:
            pins = authorities_of(*bundles)
        except ConfigError as error:
            raise self._damaged(error) from None
        fingerprint = self.key_set().fingerprint if (self.pki / CA_KEY).exists() else ""
        return KeysOnDisk(str(self.pki), pins, fingerprint, record.agreed, missing, lost)

    def key_set(self) -> SharedKeySet:
        """Return the keys. Raises ConfigError when they are not whole."""
        try:
            return SharedKeySet.of(self._contents())
        except ConfigError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: ConfigError) -> ConfigError:
        """Return the error with the path. Its message begins with the name of a file, unless it is about the whole set."""
        if str(error).partition(":")[0] in NAMES:
            return ConfigError(f"{self.pki}/{error}; restore it from a backup")
        return ConfigError(f"{self.pki}: {error}")

    def record(self) -> FilesRecord:
        """Return the record; an empty one when there is none that can be read."""
        try:
            found = json.loads(read_limited(self._folder / RECORD))
            cluster, generation, fingerprint = found["cluster"], found["generation"], found["fingerprint"]
            authorities = tuple(map(str, found.get("authorities", ())))
            agreed = Agreed(str(cluster), int(generation), str(fingerprint), authorities)
            return FilesRecord(agreed, tuple(name for name in found["names"] if name in NAMES))
        except (ConfigError, ValueError, LookupError, TypeError, RecursionError):
            return FilesRecord()

    def write(self, keys: SharedKeySet, agreed: Agreed) -> None:
        """Write the files of a row, remove those that the row before had and this one lacks, and write the record."""
        make_directory(self.pki)
        known = self.record().names
        wanted = {name: one.reveal() for name, one in keys.files.items()}
        if any(name.startswith("rollover/") for name in wanted):
            make_directory(self.pki / "rollover")
        removed = [name for name in NAMES if name in known and name not in wanted]
        # What is not the CA, keys before certificates.
        for name in NAMES:
            if name in wanted and name not in (CA, CA_KEY):
                self._write(name, wanted[name])
        self._write_ca(wanted[CA], wanted[CA_KEY])
        # Keys first, as a rollover does.
        for name in removed:
            (self.pki / name).unlink(missing_ok=True)
        if removed:
            self._sync()
        # Last: after a kill in between, the files agree with no row, and the next start takes them again.
        self.agree(agreed, tuple(wanted))

    def agree(self, agreed: Agreed, names: tuple[str, ...]) -> None:
        """Record that the files agree with a row."""
        record = FilesRecord(agreed, names)
        # A start that changes nothing writes nothing.
        if record == self.record():
            return
        make_directory(self._folder)
        content = {
            "cluster": agreed.cluster,
            "generation": agreed.generation,
            "fingerprint": agreed.fingerprint,
            "authorities": list(agreed.authorities),
            "names": list(names),
        }
        write_atomic(self._folder / RECORD, json.dumps(content).encode())

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Yield a directory with a copy of the files below `pki/`. It is removed afterwards, and before the next one."""
        staging = self._folder / STAGING
        # Keys that a killed process left must not mix with those of today.
        # Keys that a killed process left must not mix with those of today.
        self._remove_staging()
        make_directory(staging / "pki" / "rollover")
        try:
            for name, content in self._contents().items():
                write_atomic(staging / "pki" / name, content.reveal())
            yield staging
        finally:
            self._remove_staging()

    def _remove_staging(self) -> None:
        if (staging := self._folder / STAGING).exists():
            shutil.rmtree(staging)

    def _contents(self) -> Mapping[str, Secret]:
        return {name: Secret(read_limited(self.pki / name)) for name in NAMES if (self.pki / name).exists()}

    def _write_ca(self, bundle: bytes, key: bytes) -> None:
        """Replace the bundle and the key. In between, the bundle has the CAs of both."""
        certificate, private = self.pki / CA, self.pki / CA_KEY
        if certificate.exists() and private.exists() and read_limited(private) != key:
            # Whenever the process is killed, the key belongs to a CA of the bundle, and the next start can read both.
            self._write(CA, bundle + b"\n" + read_limited(certificate))
        self._write(CA_KEY, key)
        self._write(CA, bundle)

    def _write(self, name: str, data: bytes) -> None:
        path = self.pki / name
        if not path.exists() or read_limited(path) != data:
            write_atomic(path, data)

    def _sync(self) -> None:
        rollover = self.pki / "rollover"
        if rollover.exists():
            sync_directory(rollover)
            # An administrator keeps something in it.
            with suppress(OSError):
                rollover.rmdir()
        sync_directory(self.pki)
