"""`mooring agent unit`: print a systemd unit for the agent.

Rules kept here:
* The unit holds no token: `mooring join`, or a first run of the agent with `--server`, makes the machine a member, and the unit
  starts only then. It names no address but that of `--server`.
* The sandbox leaves the agent its files and the network. Hooks run in it. With hooks the file system is not read-only, because a
  hook writes where its service reads.
* The unit does not use sd_notify: systemd takes the agent as started once the program runs (Type=exec).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mooring.agent.k3s.files import AgentFiles
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.settings import AgentSettings
from mooring.agent.state import NodeState
from mooring.cli.join import k3sconfig
from mooring.cli.join.flags import SETTINGS, SUBJECTS, Given, config_option, read_config
from mooring.cli.options.declared import settings_options
from mooring.cli.printing.output import echo
from mooring.settings.declaration import Setting
from mooring.settings.valuetypes import SWITCH

_UNIT = """\
[Unit]
Description=Mooring agent: heartbeat and certificates of this machine
Wants=network-online.target
After=network-online.target time-sync.target
ConditionPathExists={proof}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=always
RestartSec=10
UMask=0077
NoNewPrivileges=yes
{file_system}ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


UNIT_FIELDS = {"root", "register_node", "node_deletion", "server", "data_dir"}
UNIT_SETTINGS = (*(one for one in SETTINGS if one.field in UNIT_FIELDS), *SUBJECTS[AgentSettings])
"""Settings of the agent that a unit may hold, in the order of its command line."""


@click.command("unit")
@settings_options(UNIT_SETTINGS, variables=False)
@config_option(k3sconfig.DEFAULT_CONFIG, None)
@click.option("--program", default="", metavar="PATH", help="Absolute path of mooring. [default: this program]")
@click.pass_context
def unit(context: click.Context, /, program: str, config: str, **_: Any) -> None:
    """Print a systemd unit that runs the agent of a machine that has joined.

    Flags and a file that is named become those of the agent. Write the unit to /etc/systemd/system/mooring-agent.service, then run
    `systemctl enable --now mooring-agent`.
    """
    path = Path(program or shutil.which(sys.argv[0]) or sys.argv[0])
    if program and not path.is_absolute():
        raise click.UsageError("--program must be an absolute path")
    given = Given(context)
    arguments = [str(path.absolute()), "agent"]
    if config:
        arguments += ["--config", str(Path(config).absolute())]
    for one in UNIT_SETTINGS:
        if one.field in given.flags:
            arguments += _arguments(one, given.values[one.field])
    given.add(read_config(given))
    settings, more = given.read(K3sJoinSettings), given.read(AgentSettings)
    root = Path(settings.root)
    if settings.server:
        for flag, is_wanted in (
            ("--serving-certificates", more.serving_certificates),
            ("--load-balancer-port", more.load_balancer_port is not None),
        ):
            if is_wanted:
                raise click.UsageError(f"{flag} and --server belong to two ways of joining")
        files = AgentFiles(root, settings.data_dir)
        proof = files.client.current
        writable: tuple[Path, ...] = (files.directory, files.node_password.parent)
    else:
        state = NodeState(root)
        proof = state.kubeconfig
        writable = (state.kubeconfig.parent, state.certificates, state.record.path.parent)
    paths = " ".join(quote(f"-{path}") for path in writable)
    file_system = "" if more.on_renew else f"ProtectSystem=strict\nReadWritePaths={paths}\n"
    text = _UNIT.format(proof=specifiers(str(proof)), command=join(arguments), file_system=file_system)
    for line in text.splitlines():
        echo(line)


def _arguments(setting: Setting, value: Any) -> list[str]:
    """Return the arguments that give a setting this value."""
    flag = f"--{setting.name}"
    if setting.value_type is SWITCH:
        return [flag]
    if setting.name == "root":
        value = str(Path(value).absolute())
    return [part for one in (value if isinstance(value, tuple) else (value,)) for part in (flag, str(one))]


def join(arguments: Sequence[str]) -> str:
    """Return a command line for ExecStart. Raises UsageError for an argument with a line break, which no unit can hold."""
    return " ".join(quote(one).replace("$", "$$") for one in arguments)


def quote(argument: str) -> str:
    """Return one word of a unit, quoted where needed, without specifiers (systemd.syntax). Raises UsageError for a line break."""
    if not argument.isprintable():
        raise click.UsageError("a unit cannot hold line breaks or control characters: put the command into a script")
    escaped = specifiers(argument.replace("\\", "\\\\"))
    if argument and not any(one in argument for one in " \"';"):
        return escaped
    return '"' + escaped.replace('"', '\\"') + '"'


def specifiers(text: str) -> str:
    """Return `text` so that systemd reads no specifier in it."""
    return text.replace("%", "%%")
