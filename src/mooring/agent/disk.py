"""Record of a member, which the agent keeps between two runs, and durable changes of a member's files."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from mooring.client.files import (
    ROOT,
    check_memory_files,
    make_directory,
    os_reason,
    read_limited,
    real_path,
    sync_directory,
    write_atomic,
)
from mooring.errors import ConfigError

# Durable changes of a member's files: write, remove, rename.
#
# Rules kept here:
# * A change is on disk when the function returns. Directories are made with kubelet's mode. Errors name the path.
# * A machine joins only where no other user can put his files in the place of its keys: neither a directory between the root and
#   the keys nor a link that leads out of the root may be his.

DIRECTORY_MODE = 0o755
"""Mode of kubelet's and kubeadm's directories: file names are not secret, and files with secrets have mode 0600."""


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path`, in a directory that is made when it is missing. Raises ConfigError."""
    make_directory(path.parent, DIRECTORY_MODE)
    write_atomic(path, data, mode)


def check_places(root: Path, *directories: Path, files: Iterable[Path] = ()) -> None:
    """Raise ConfigError when another user may replace what will lie in these directories below `root`, or a link leads out of it.

    `files` are those that are read before they are written. Directories that do not exist will be made. Raises it also without
    /proc, where the certificate that the token buys could not be used.
    """
    check_memory_files()
    try:
        top = real_path(root)
        for place in (*directories, *files):
            real = real_path(place)
            if not real.is_relative_to(top):
                raise ConfigError(
                    f"{place} leads out of {root}, to {real}: remove the symbolic link, or name another --root"
                )
            # Each directory on the way, those of links included: its owner may replace all that is below.
            for one in _directories_to(place):
                if one.is_relative_to(root) or one.is_relative_to(top):
                    _check_directory(one, is_last=one == real)
    except OSError as error:
        raise ConfigError(f"{root} cannot be used: {os_reason(error)}") from error


def make_places(root: Path, *directories: Path, files: Iterable[Path] = ()) -> None:
    """Make the directories, and check them as `check_places` does. Raises ConfigError."""
    for directory in directories:
        make_directory(directory, DIRECTORY_MODE)
    # Checked again now that the directories are there: where anybody may make directories (mode 1777), another user
    # may have made one since the first check.
    check_places(root, *directories, files=files)


def _directories_to(place: Path) -> Iterator[Path]:
    """Yield each directory that the system passes on its way to an absolute path, those of links included, as far as they exist.

    `place` leads to no circle of links.
    """
    at, ahead = Path(place.anchor), list(reversed(place.parts[1:]))
    while ahead:
        part = ahead.pop()
        following = at.parent if part == ".." else at / part
        if following.is_symlink():
            target = following.readlink()
            at = Path(target.anchor) if target.is_absolute() else at
            ahead.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            continue
        if not following.is_dir():
            return
        at = following
        yield at


def _check_directory(directory: Path, *, is_last: bool) -> None:
    """Raise ConfigError for a directory where another user may replace files; in the last one he may not make any either."""
    found = directory.stat()
    quoted = shlex.quote(str(directory))
    if found.st_uid not in (os.geteuid(), ROOT):
        raise ConfigError(
            f"{directory} belongs to another user (uid {found.st_uid}), who may replace the keys of this machine; run "
            f"chown {os.geteuid()} {quoted}, or name another --root"
        )
    is_open = found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and found.st_gid not in (os.getegid(), ROOT)
    )
    if is_open and (is_last or not found.st_mode & stat.S_ISVTX):
        raise ConfigError(
            f"other users may replace files in {directory}; run chmod go-w {quoted}, or name another --root"
        )


def remove(path: Path) -> None:
    """Remove `path` if it exists. Raises ConfigError."""
    try:
        path.unlink()
        sync_directory(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed: {os_reason(error)}") from error


def rename(old: Path, new: Path) -> None:
    """Rename `old` to `new`, which is replaced. Raises ConfigError."""
    try:
        old.replace(new)
        sync_directory(new.parent)
    except OSError as error:
        raise ConfigError(f"{new} cannot be written: {os_reason(error)}") from error


def link(path: Path, target: Path) -> None:
    """Make the symbolic link `path`. Raises ConfigError."""
    try:
        path.symlink_to(target)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {os_reason(error)}") from error


# Record of a member: what the agent remembers between two runs, in `var/lib/mooring/agent.json`.
#
# Rules kept here:
# * A change replaces the whole file. Entries that this version does not know stay.
# * A file that is missing or cannot be parsed reads as an empty record: every entry has a safe meaning when it is missing.
# * No entry is a secret.

MAX_RECORD = 64 << 10
"""Bytes: a record has a few hundred."""

Entry = Literal[
    "expirationSeconds",
    "nodeIP",
    "nodeUID",
    "hooksDone",
    "systemRoots",
    "lastHeartbeat",
    "machineID",
    "productUUID",
    "pendingKeyOf",
    "clusterID",
]


class AgentRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Settings and progress of an agent that outlive its process.

    * `expiration_seconds`: lifetime that was chosen for the client certificate; 0 leaves it to the signer.
    * `node_ip`: addresses that were chosen for the Node; none for the one towards the server.
    * `node_uid`: uid of the Node that this machine registered; empty before.
    * `hooks_done`: digest of what the hooks of each kind were last run for.
    * `system_roots`: the machine's own roots verify the servers of a supervisor (`mooring.agent.k3s`).
    * `last_heartbeat`: about when the cluster last answered a heartbeat; empty before.
    * `machine_id`, `product_uuid`: keyed hashes of the machine that is the member (`mooring.agent.machineid`); empty when unknown.
    * `pending_key_of`: those of the machine that made the pending key of a join.
    * `cluster_id`: id of the cluster, of a member k3s's way: that of another one stands in its kubeconfig. Empty when unknown.
    """

    expiration_seconds: int = 0
    node_ip: tuple[str, ...] = msgspec.field(default=(), name="nodeIP")
    node_uid: str = msgspec.field(default="", name="nodeUID")
    hooks_done: dict[str, str] = {}
    system_roots: bool = False
    last_heartbeat: str = ""
    machine_id: str = msgspec.field(default="", name="machineID")
    product_uuid: str = msgspec.field(default="", name="productUUID")
    pending_key_of: dict[str, str] = {}
    cluster_id: str = msgspec.field(default="", name="clusterID")


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
            write(self.path, msgspec.json.format(msgspec.json.encode({**entries, entry: value})) + b"\n")

    def _entries(self) -> dict[str, Any]:
        try:
            entries = msgspec.json.decode(read_limited(self.path, MAX_RECORD))
        except (ConfigError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}
        return entries if isinstance(entries, dict) else {}
