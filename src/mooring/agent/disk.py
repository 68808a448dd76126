"""Durable changes of a member's files: write, remove, rename.

Rules kept here: a change is on disk when the function returns. Directories are made with kubelet's mode. Errors name the path.
"""

from __future__ import annotations

from pathlib import Path

from mooring.client.files import make_directory, os_reason, sync_directory, write_atomic
from mooring.errors import ConfigError

DIRECTORY_MODE = 0o755
"""Mode of kubelet's and kubeadm's directories: file names are not secret, and files with secrets have mode 0600."""


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path`, in a directory that is made when it is missing. Raises ConfigError."""
    make_directory(path.parent, DIRECTORY_MODE)
    write_atomic(path, data, mode)


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
