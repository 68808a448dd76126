"""`mooring agent unit`, `mooring agent install` and `mooring agent uninstall`: the agent as a service of systemd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mooring.agent.k3s.files import AgentFiles
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.settings import AgentSettings
from mooring.agent.state import NodeState
from mooring.cli import printing as printed
from mooring.cli import systemd
from mooring.cli.join import flags
from mooring.cli.join.flags import SETTINGS, SUBJECTS, Given, config_option, read_config
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import REPORTED, options_of, output_option
from mooring.cli.printing import echo
from mooring.cli.systemd import (
    SANDBOX,
    WATCHDOG_SECONDS,
    Unit,
    arguments_of,
    command_line,
    program_words,
    quote,
    specifiers,
)
from mooring.errors import ConfigError

# `mooring agent unit`: print a systemd unit for the agent.
#
# Rules kept here:
# * The unit holds no token: `mooring join`, or a first run of the agent with `--server`, makes the machine a member, and the unit
#   starts only then. It names no address but that of `--server`.
# * The sandbox leaves the agent its files and the network. Hooks run in it. With hooks the file system is not read-only, because
#   a hook writes where its service reads.
# * The agent says when it is a member (Type=notify). systemd waits for that as long as it takes, as for k3s's agent: a request
#   may wait for a person.

_UNIT = """\
[Unit]
Description=Mooring agent: heartbeat and certificates of this machine
Wants=network-online.target
After=network-online.target time-sync.target
ConditionPathExists={proof}
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
Restart=always
RestartSec=10
RestartPreventExitStatus={final}
TimeoutStartSec=infinity
WatchdogSec={watchdog}
{stop}{sandbox}
[Install]
WantedBy=multi-user.target
"""

STOP_SECONDS = 30
"""Time that systemd gives an agent that leaves when it is stopped: that of the agent, and of its tasks before."""
NAME = "mooring-agent"
EXIT_COPIED = 78
"""Status of an agent whose files were copied from another machine (EX_CONFIG of sysexits.h). Only a person can decide what to do:
systemd does not start it again."""
UNIT_FIELDS = {"root", "node_ip", "register_node", "node_deletion", "server", "data_dir"}
UNIT_SETTINGS = (*(one for one in SETTINGS if one.field in UNIT_FIELDS), *SUBJECTS[AgentSettings])
"""Settings of the agent that a unit may hold, in the order of its command line."""


@dataclass(frozen=True, slots=True)
class AgentUnit:
    """A unit, and the file that proves that this machine is a member."""

    text: str
    proof: Path


unit_options = options_of(
    settings_options(UNIT_SETTINGS, variables=False),
    config_option(flags.DEFAULT_CONFIG, None),
    click.option("--program", default="", metavar="PATH", help="Absolute path of mooring. [default: this program]"),
)
"""Flags of an agent that a unit may hold, `--config` and `--program`."""


@click.command("unit")
@unit_options
@click.pass_context
def unit(context: click.Context, /, **_: Any) -> None:
    """Print a systemd unit that runs the agent of a machine that has joined.

    Flags and a file that is named become those of the agent. `mooring agent install` writes, enables and starts the same unit.
    """
    for line in agent_unit(context).text.splitlines():
        echo(line)


def agent_unit(context: click.Context) -> AgentUnit:
    """Return the unit for the flags of `unit_options`, or of another command with some of them. Raises UsageError, ConfigError."""
    given = Given(context)
    config = str(given.values["config"])
    arguments = [*program_words(str(given.values.get("program", ""))), "agent"]
    if config:
        arguments += ["--config", str(Path(config).absolute())]
    arguments += arguments_of(UNIT_SETTINGS, {one: given.values[one] for one in {*given.flags, *given.variables}})
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
    paths = " ".join(quote(f"-{path.absolute()}") for path in writable)
    read_only = "" if more.on_renew else f"ProtectSystem=strict\nReadWritePaths={paths}\n"
    text = _UNIT.format(
        proof=specifiers(str(proof.absolute())),
        command=command_line(arguments),
        watchdog=WATCHDOG_SECONDS,
        stop=f"TimeoutStopSec={STOP_SECONDS}\n" if more.leave_on_stop else "",
        final=EXIT_COPIED,
        sandbox=SANDBOX.format(file_system=f"{read_only}ProtectHome=read-only\n"),
    )
    return AgentUnit(text, proof.absolute())


# `mooring agent install` and `mooring agent uninstall`: the agent as a service of systemd.
#
# Rules kept here: a service is installed on a machine that has joined, because the unit holds no token. What removes it leaves
# the membership as it is.

_WRITER = "mooring agent install"


def service(unit_dir: str = "") -> Unit:
    """Return the unit of the agent on this machine; by default in the directory for units of an administrator."""
    return Unit(unit_dir or systemd.UNITS, NAME, _WRITER)


def unit_dir_option(function: Any) -> Any:
    """Add `--unit-dir`."""
    return click.option(
        "--unit-dir",
        default=systemd.UNITS,
        show_default=True,
        metavar="DIR",
        help="Directory in which systemd reads units.",
    )(function)


@click.command("install")
@unit_options
@unit_dir_option
@click.option("--no-start", is_flag=True, help="Do not start the service: its first start is at the next boot.")
@output_option(*REPORTED)
@click.pass_context
def install(context: click.Context, /, unit_dir: str, no_start: bool, output: str, **_: Any) -> None:
    """Write a unit to /etc/systemd/system, enable and start it: it runs the agent of this machine.

    Join the machine before. Run it again to change the flags of the agent, or after the program has moved.
    """
    wanted, unit = agent_unit(context), service(unit_dir)
    if not no_start and not wanted.proof.exists():
        raise ConfigError(
            f"this machine is not a member of a cluster ({wanted.proof} is missing): join it first, or use mooring join --service"
        )
    document = installed(wanted, unit, start=not no_start)
    if output != "text":
        printed.print_document({"kind": "Service", **document}, output)
        return
    for line in lines(document):
        echo(line)


@click.command("uninstall")
@unit_dir_option
@output_option(*REPORTED)
def uninstall(unit_dir: str, output: str) -> None:
    """Stop, disable and remove the service. The machine stays a member; mooring leave ends its membership.

    An agent with --leave-on-stop ends it when it is stopped.
    """
    unit = service(unit_dir)
    was_there = unit.uninstall()
    if output != "text":
        printed.print_document(
            {"kind": "Service", "name": unit.name, "unit": str(unit.path), "removed": was_there}, output
        )
    elif was_there:
        echo(f"The service {unit.name} was stopped and {unit.path} removed.")
        echo("  This machine stays a member until its certificate ends, unless its agent had --leave-on-stop.")
    else:
        echo(f"There is no service to remove: {unit.path} is missing.")


def installed(wanted: AgentUnit, unit: Unit, *, start: bool) -> dict[str, Any]:
    """Install the unit. Return what was done, as a document. Raises ConfigError."""
    unit.install(wanted.text, start=start)
    return {"name": unit.name, "unit": str(unit.path), "enabled": True, "started": start}


def lines(document: dict[str, Any]) -> list[str]:
    """Return what `installed` did, for people."""
    name = document["name"]
    state = "runs now and at each boot" if document["started"] else "starts at the next boot"
    return [
        f"The service {name} {state}; it renews the certificate and keeps the Node.",
        f"  unit         {document['unit']}",
        f"  its state    systemctl status {name}",
    ]
