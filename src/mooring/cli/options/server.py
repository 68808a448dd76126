"""Options of commands that read the configuration of a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from mooring.cli.options import flags
from mooring.cli.options.configfile import ConfigFile, config_option
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import Command, Option, options_of
from mooring.client.sourceaddress import detected_addresses
from mooring.controlplane.addresses import given_before, with_published
from mooring.controlplane.configuration import ServerConfig, declared_settings, server_config
from mooring.errors import ConfigError
from mooring.settings.addresses import parse_bind_address
from mooring.settings.declaration import Setting, split_commas
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings

# Flags of the commands that open the store of a server without serving: those of the server, and its configuration file.

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
    return str(flags.data_directory(values["data_dir"]))


# Flags of the commands that start a server, and the configuration that they mean.
#
# The flags follow from the settings in `mooring.controlplane.configuration.SUBJECTS`.


def server_options(command: Command) -> Command:
    """Add `--config` and every flag of a server; the command gets their values as keywords for `server_configuration`."""
    settings = declared_settings()
    return config_option(settings)(settings_options(settings)(command))


def server_configuration(*, config: ConfigFile | None = None, **values: Any) -> ServerConfig:
    """Return the checked configuration for the values of `server_options`. Raises ConfigError.

    Fills in the defaults that depend on this machine, and the settings that only a configuration file can hold.
    """
    data_dir = flags.data_directory(values["data_dir"])
    detected = detected_addresses()
    bind_address = parse_bind_address(values["bind_address"], "bind-address")
    local = {*detected, values["advertise_address"], bind_address, "127.0.0.1", "::1"}
    found = server_config(
        **{
            **values,
            **_settings_without_flag(config),
            "data_dir": str(data_dir),
            "secure_port": values["secure_port"] or flags.free_port(bind_address),
            "control_plane_endpoint": split_commas(values["control_plane_endpoint"]),
        },
        endpoints_before=given_before(data_dir, local),
        detected_addresses=detected,
    )
    return with_published(found, data_dir, port_is_chosen=not values["secure_port"])


def _settings_without_flag(config: ConfigFile | None) -> dict[str, Any]:
    if config is None:
        return {}
    without_flag = {one.field for one in declared_settings() if not one.flag}
    return {name: value for name, value in config.values.items() if name in without_flag}


@contextmanager
def server_usage() -> Iterator[None]:
    """Report a wrong value as a usage error, with exit code 2, unless it stands in the file of `--config`."""
    try:
        yield
    except ConfigError as error:
        if _is_about_file(str(error)):
            raise
        raise click.UsageError(str(error)) from None


def _is_about_file(message: str) -> bool:
    """Return whether an error is about a value of the file: that of the key which it begins with, else one that it repeats."""
    context = click.get_current_context()
    from_file = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
    }
    key = message.partition(":")[0].replace("-", "_")
    if key in context.params:
        return key in from_file
    return any(isinstance(value, str) and value and value in message for value in from_file.values())
