"""`mooring ca rollover advance`: go on to the next phase.

Rules kept here: the phase that locks machines out is refused while machines are behind, and they are named. The server checks
again.
"""

from __future__ import annotations

from datetime import timedelta

import click

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificateauthorityrollover import ABORTED, RETIRED, next_phase, status_of
from mooring.apimachinery.schema import Obj
from mooring.cli.ca.rollover import request
from mooring.cli.cluster import ChosenCluster
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.errors import ConfigError


@click.command("advance")
@click.option(
    "--force",
    is_flag=True,
    help="Do not wait for machines that are behind: they have to join again. Nothing else is passed over.",
)
@click.option(
    "--compromised",
    is_flag=True,
    help="The key of the old CA turned out to be in other hands: neither CA vouches for the other any more.",
)
@request.request_options
def advance(force: bool, compromised: bool, wait: timedelta, output: str, chosen: ChosenCluster) -> None:
    """Go on to the next phase: IssueNew, Drain, Retired.

    Retired is refused while machines would be locked out. They are named with the reason. Each phase waits until client-ca-file,
    root-ca-file and cluster-info hold the new CA, with --force as well.
    """

    async def work(client: ClusterClient) -> Obj:
        rollover = await request.read(client, chosen)
        phase = next_phase(rollover)
        if not phase:
            state = "was aborted" if spec_of(rollover).get("phase") == ABORTED else "has ended or is about to"
            raise ConfigError(f"there is no next phase: the rollover {state}; see mooring ca rollover status")
        if phase == RETIRED:
            _check_machines(rollover, force)
        return await request.ask(client, rollover, phase, force=force, compromised=compromised)

    request.run(chosen, output, work, wait)


def _check_machines(rollover: Obj, force: bool) -> None:
    """Print the machines that are behind. Raises ConfigError without `force`."""
    total = status_of(rollover).get("machinesBehindTotal", 0)
    if not total:
        return
    machines = "1 machine" if total == 1 else f"{total} machines"
    if not force:
        raise ConfigError(
            f"{machines} would be locked out when the old CA is retired; wait until they have renewed, or give --force: "
            + "; ".join(" ".join(line.split()) for line in request.machine_lines(rollover))
        )
    echo(
        f"warning: {machines} may be locked out, and then have to join again:",
        *request.machine_lines(rollover),
        err=True,
    )
