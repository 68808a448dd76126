"""`mooring leave`: end the membership of this machine, and remove its files.

Rules kept here:
* What goes is listed before the question. Without a terminal --yes takes its place.
* The service of the agent is stopped first: it would join again where its file has a token. It is removed once the membership has
  ended, and started again when that failed. A unit of somebody else's stays, and the command ends before anything is changed.
* The command may be repeated: it removes what a run that was cut off has left.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from mooring.agent import leave as leaving
from mooring.agent import machineid
from mooring.agent.k3s.files import DATA_DIR, AgentFiles
from mooring.agent.leave import Membership
from mooring.agent.state import NodeState
from mooring.cli import printing as printed
from mooring.cli.join import flags, install
from mooring.cli.options.flags import REPORTED, output_option
from mooring.cli.printing import echo
from mooring.cli.systemd import Unit, specifiers
from mooring.client.files import read_limited
from mooring.clock import SystemClock
from mooring.errors import ConfigError

KUBEADM, K3S = "kubeadm", "k3s"


@click.command("leave")
@click.option("--root", default="/", metavar="DIR", help="Directory under which the files of the member are.")
@click.option(
    "--data-dir", "-d", default=DATA_DIR, metavar="DIR", help="Data directory of a machine that joined the k3s way."
)
@click.option(
    "--way", type=click.Choice((KUBEADM, K3S)), default=None, help="Way of joining, where files of both are here."
)
@click.option("--files-only", is_flag=True, help="Ask no server, and remove the files: after the Node was deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@output_option(*REPORTED)
def leave(root: str, data_dir: str, way: str | None, files_only: bool, yes: bool, output: str) -> None:
    """End the membership of this machine: its Node is deleted, its certificates are revoked, and its files are removed.

    The certificate of the machine proves the request, and no other membership is touched. To come back the machine joins again,
    with a token. With another Kubernetes API server an administrator deletes the Node first, and --files-only removes the files.
    """
    found = _found(Path(root), data_dir, way)
    if found is None:
        _print_nothing(output)
        return
    if not files_only:
        # Before the question, and before the service is stopped.
        leaving.check_machine(found, machineid.this_machine())
    unit = _service_of(found)
    if not yes:
        _ask(found, [] if unit is None else [str(unit.path)], files_only)
    try:
        has_left = False
        if unit is not None:
            # Before the membership ends: an agent that runs could write its files again.
            unit.stop()
            # One with --leave-on-stop has ended the membership, and removed the files.
            has_left = _found(Path(root), data_dir, way) is None
        is_ended = has_left or (not files_only and asyncio.run(leaving.end(found, SystemClock())))
    except BaseException:
        if unit is not None:
            # Nothing was removed yet, so that the machine goes on as a member.
            _start_again(unit)
        raise
    if unit is not None:
        # Only after the membership has ended.
        unit.uninstall()
    # Last: the certificate in the files proves a request that is made again.
    leaving.remove(found)
    config = Path(root) / flags.DEFAULT_CONFIG.lstrip("/")
    if output != "text":
        document: dict[str, Any] = {
            "kind": "LeaveResult",
            "nodeName": found.node_name,
            "server": found.server,
            "membershipEnded": is_ended,
            "serviceRemoved": unit is not None,
            "removed": [str(path) for path in found.files],
        }
        printed.print_document(document, output)
        return
    if files_only:
        echo("The files of this machine are removed. No server was asked: its Node may still be there.")
    elif is_ended:
        echo(f"This machine has left {found.server}: node {found.node_name} is deleted, its certificates are revoked.")
    else:
        echo(
            f"The membership of node {found.node_name} had ended before: {found.server} does not accept its certificate any more. "
            "The files are removed."
        )
    if config.exists():
        echo(f"{config} stays: remove it, or the token in it, unless this machine is to join again.")


def _found(root: Path, data_dir: str, way: str | None) -> Membership | None:
    if way == KUBEADM:
        return leaving.of_kubeadm(NodeState(root))
    if way == K3S:
        return leaving.of_k3s(AgentFiles(root, data_dir))
    return leaving.find(root, data_dir)


def _service_of(found: Membership) -> Unit | None:
    """Return the unit of the agent that keeps this membership; None where there is none."""
    unit = install.service()
    if not unit.path.exists() or unit.is_masked:
        return None
    condition = f"ConditionPathExists={specifiers(str(found.proof))}\n"
    return unit if condition.encode() in read_limited(unit.path) and unit.is_own() else None


def _start_again(unit: Unit) -> None:
    """Start the service beside the error that ends the command, which must not be lost for a second one."""
    try:
        unit.start()
    except ConfigError as error:
        echo(f"warning: {error}", err=True)


def _ask(found: Membership, services: list[str], files_only: bool) -> None:
    """List what goes, and ask. Raises Abort for no, UsageError without a terminal to answer at."""
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal, so the question cannot be answered: add --yes")
    if found.node_name and not files_only:
        echo(
            f"Node {found.node_name} of {found.server} will be deleted, and the certificates of this machine revoked.",
            err=True,
        )
    echo("These files will be removed:", *(f"  {path}" for path in (*services, *found.files)), err=True)
    if not click.confirm("Leave?", err=True):
        raise click.Abort


def _print_nothing(output: str) -> None:
    if output != "text":
        printed.print_document({"kind": "LeaveResult", "membershipEnded": False, "removed": []}, output)
    else:
        echo("This machine is not a member of a cluster: there is nothing to remove.")
