"""Flags of the commands that open the store of a server without serving: those of the server, and its configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mooring.cli.options import machine
from mooring.cli.options.configfile import config_option
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import Command, Option, options_of
from mooring.errors import ConfigError
from mooring.plane.configuration import declared_settings
from mooring.settings.declaration import Setting
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings

ETCD_ACCESS = frozenset(
    {"etcd_prefix", "etcd_cafile", "etcd_certfile", "etcd_keyfile", "etcd_username", "etcd_password_file"}
)
"""Settings of an etcd without its URLs."""


def storage_options(*more: str) -> Option:
    """Return a decorator that adds `--config` and the flags of the store, and those settings of snapshots that are named."""
    return _options(
        [*StorageSettings.declared(), *(one for one in SnapshotSettings.declared() if one.field in more)],
    )


def snapshot_directory_options(command: Command) -> Command:
    """Add `--config` and the flags that say where the snapshots of a server are."""
    declared = (*StorageSettings.declared(), *SnapshotSettings.declared())
    return _options([one for one in declared if one.field in ("data_dir", "snapshot_dir")])(command)


def etcd_options(command: Command) -> Command:
    """Add `--config` and the flags with which an etcd is reached whose URL is given otherwise."""
    return _options([one for one in StorageSettings.declared() if one.field in ETCD_ACCESS])(command)


def _options(settings: Sequence[Setting]) -> Option:
    return options_of(config_option(declared_settings()), settings_options(settings))


def storage_settings(values: dict[str, Any]) -> StorageSettings:
    """Return the settings of the store for the values of `storage_options`. Raises ConfigError."""
    settings = StorageSettings.read({**values, "data_dir": _data_dir(values)})
    if settings.in_memory:
        raise ConfigError("storage: memory: is lost when its server ends; name a store that stays")
    return settings


def snapshot_directory(values: dict[str, Any]) -> Path:
    """Return the directory of snapshots. Raises ConfigError."""
    return Path(SnapshotSettings.read(values).directory(_data_dir(values)))


def _data_dir(values: dict[str, Any]) -> str:
    return str(machine.data_directory(values["data_dir"]))
