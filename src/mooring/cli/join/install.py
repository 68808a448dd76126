"""`mooring agent install` and `mooring agent uninstall`: the agent as a service of systemd.

Rules kept here: a service is installed on a machine that has joined, because the unit holds no token. What removes it leaves the
membership as it is.
"""

from __future__ import annotations

from typing import Any

import click

from mooring.cli import systemd
from mooring.cli.join.unit import NAME, AgentUnit, agent_unit, unit_options
from mooring.cli.options.flags import REPORTED, output_option
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo
from mooring.cli.systemd import Unit
from mooring.errors import ConfigError

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
    """Stop, disable and remove the service. The machine stays a member; mooring leave ends its membership."""
    unit = service(unit_dir)
    was_there = unit.uninstall()
    if output != "text":
        printed.print_document(
            {"kind": "Service", "name": unit.name, "unit": str(unit.path), "removed": was_there}, output
        )
    elif was_there:
        echo(f"The service {unit.name} was stopped and {unit.path} removed.")
        echo("  This machine stays a member until its certificate ends.")
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
