"""`mooring server unit`: print a systemd unit for a server.

Rules kept here:
* The unit holds the flags that were given, with absolute paths, and no secret. It reads the same configuration file as the command.
* systemd makes the user and the data directory (DynamicUser=, StateDirectory=) where that directory is below /var/lib. Elsewhere
  --user names the user who owns it.
* The server says when it serves and gives signs of life (Type=notify). systemd waits for the first as long as it takes: a store of
  a million objects takes half a minute, and an etcd may be away.
* Files are written in the data directory, and in the directories of the store, the audit log and snapshots, alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mooring.cli.options.configfile import ConfigFile, config_option
from mooring.cli.options.declared import settings_options
from mooring.cli.options.server import server_configuration, server_usage
from mooring.cli.printing import echo
from mooring.cli.systemd import (
    SANDBOX,
    WATCHDOG_SECONDS,
    arguments_of,
    command_line,
    hidden_program,
    program_words,
    quote,
    text_of,
)
from mooring.controlplane.configuration import ServerConfig, declared_settings
from mooring.controlplane.lifecycle import DRAIN_SECONDS, FLUSH_SECONDS
from mooring.controlplane.workers.serve import STOP_SECONDS
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import AuditSettings, ServingSettings, WorkersSettings
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings

DATA_DIR = "/var/lib/mooring"
_STATES, _LOGS = Path("/var/lib"), Path("/var/log")
_FIRST_FREE_PORT = 1024
_WRITABLE = frozenset({"audit_log_path", "snapshot_dir", "storage"})
"""Settings that name what the server writes, beside the data directory."""
_SETTINGS = declared_settings()
_UNIT = """\
[Unit]
Description=Mooring server: identity and trust of a cluster
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
{reload}Restart=always
RestartSec=5
TimeoutStartSec=infinity
TimeoutStopSec={stop}
WatchdogSec={watchdog}
KillMode=mixed
LimitNOFILE=1048576
{user}{port}{sandbox}
[Install]
WantedBy=multi-user.target
"""


@click.command("unit")
@config_option(_SETTINGS)
@settings_options(_SETTINGS, variables=False)
@click.option(
    "--user",
    default="",
    metavar="NAME",
    help="User who runs the server and owns its directories. [default: mooring, whom systemd makes]",
)
@click.option("--program", default="", metavar="PATH", help="Absolute path of mooring. [default: this program]")
@click.pass_context
def unit(context: click.Context, /, config: ConfigFile | None, user: str, program: str, **flags: Any) -> None:
    """Print a systemd unit that runs mooring server with these flags.

    Write it to /etc/systemd/system/mooring-server.service, then run `systemctl enable --now mooring-server`.
    """
    flags["data_dir"] = str(Path(flags["data_dir"] or DATA_DIR).absolute())
    given = {
        one.field: flags[one.field]
        for one in _SETTINGS
        if context.get_parameter_source(one.field) is click.core.ParameterSource.COMMANDLINE
    }
    if config is None or "data_dir" not in config.values or "data_dir" in given:
        given = {"data_dir": flags["data_dir"], **given}
    written = {one.field: text_of(one, given[one.field]) for one in _SETTINGS if one.field in given.keys() & _WRITABLE}
    with server_usage():
        found = server_configuration(config=config, **{**flags, **written})
    arguments = [*program_words(program), "server"]
    if context.get_parameter_source("config") is click.core.ParameterSource.COMMANDLINE and config is not None:
        arguments += ["--config", str(Path(config.path).absolute())]
    arguments += arguments_of(_SETTINGS, given)
    delay = found[ServingSettings].shutdown_delay_duration.total_seconds()
    text = _UNIT.format(
        command=command_line(arguments),
        reload="ExecReload=/bin/kill -HUP $MAINPID\n" if found[WorkersSettings].workers != 1 else "",
        stop=round(delay + DRAIN_SECONDS + FLUSH_SECONDS + 2 * STOP_SECONDS),
        watchdog=WATCHDOG_SECONDS,
        user=_user(user, found.data_dir),
        port=_port(found[NetworkSettings].secure_port),
        sandbox=SANDBOX.format(file_system=_file_system(found, user)),
    )
    # A warning: the unit may be for another machine.
    if problem := hidden_program(Path(arguments[0]), user or "mooring"):
        echo(
            f"warning: this service cannot start: {problem}; install mooring below /usr/local or /opt, or give another --program",
            err=True,
        )
    for line in text.splitlines():
        echo(line)


def _user(user: str, data_dir: str) -> str:
    """Return the lines of who runs the server. Raises UsageError for a data directory that systemd cannot make."""
    if user:
        return f"User={quote(user)}\n"
    if Path(data_dir).parent != _STATES:
        raise click.UsageError(
            f"systemd makes directories in {_STATES} alone: name the user who owns {data_dir} with --user, or choose {DATA_DIR}"
        )
    state = quote(Path(data_dir).name)
    return f"DynamicUser=yes\nUser=mooring\nStateDirectory={state}\nStateDirectoryMode=0700\n"


def _port(port: int) -> str:
    if not 0 < port < _FIRST_FREE_PORT:
        return "CapabilityBoundingSet=\n"
    return "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n"


def _file_system(config: ServerConfig, user: str) -> str:
    """Return the lines about what the server may write."""
    directories = [config[SnapshotSettings].directory(config.data_dir)]
    if (audit := config[AuditSettings].file(config.data_dir)) not in ("", "-"):
        directories.append(str(Path(audit).parent))
    scheme, _, store = config[StorageSettings].storage_url.partition(":")
    if scheme == "sqlite":
        directories.append(str(Path(store).parent))
    # A relative path of the file: a unit runs in /.
    data_dir = Path("/", config.data_dir)
    logs, writable = [], [str(data_dir)] if user else []
    for one in (Path("/", each) for each in dict.fromkeys(directories)):
        if one.is_relative_to(data_dir):
            continue
        if one == _LOGS and not user:
            wanted = _LOGS / "mooring" / Path(audit).name
            raise click.UsageError(
                f"--audit-log-path: {_LOGS} is root's: give a file in a directory of its own, such as {wanted}"
            )
        if one.is_relative_to(_LOGS) and not user:
            logs.append(str(one.relative_to(_LOGS)))
        else:
            writable.append(str(one))
    lines = ["ProtectSystem=strict", "ProtectHome=read-only"]
    if logs:
        lines.append(f"LogsDirectory={' '.join(map(quote, logs))}")
    if writable:
        lines.append(f"ReadWritePaths={' '.join(map(quote, writable))}")
    return "".join(f"{line}\n" for line in lines)
