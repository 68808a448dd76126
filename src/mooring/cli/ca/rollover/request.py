"""Requests for the phases of a rollover: reading the one object, asking for a phase, and waiting until it is reached.

Rules kept here: the server renews admin.conf in a phase, and the certificate before it may be of a CA that is trusted no more. Each
look of a wait therefore reads the kubeconfig again, and a refusal is final only when the time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import click

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificateauthorityrollover import ABORTED, DONE, KIND, RETIRED, SINGLETON, status_of
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.options.flags import DURATION, options_of
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_is_mooring
from mooring.clock import Clock
from mooring.errors import ConfigError, NotFoundError, PeerError

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}/{SINGLETON}"
LOOK_SECONDS = 0.3
"""Seconds between two looks at the status while a command waits."""

request_options = options_of(
    click.option(
        "--wait",
        type=DURATION,
        default="30s",
        show_default=True,
        help="How long to wait until the server has reached the phase; 0s asks for it only.",
    ),
    output_option(*SHOWN),
    ending_options,
)
"""Flags of every command that asks for a phase."""

Work = Callable[[ClusterClient], Awaitable[Obj]]


async def check_server(client: ClusterClient) -> None:
    """Raise NotMooringError for another API server, whose CA Mooring did not make."""
    await check_is_mooring(
        client,
        "replaces its own CA. The CA of that cluster belongs to the program that made it, such as kubeadm: replace it as its "
        "documentation says",
    )


async def read(client: ClusterClient, chosen: ChosenCluster) -> Obj:
    """Return the rollover. Raises ConfigError when there is none, NotMooringError for another API server."""
    rollover = await find(client, chosen)
    if rollover is None:
        raise ConfigError("no rollover of the CA is under way; begin one with mooring ca rollover start")
    return rollover


async def find(client: ClusterClient, chosen: ChosenCluster) -> Obj | None:
    """Return the rollover; None when there is none. Raises NotMooringError for another API server."""
    await check_server(client)
    try:
        return await chosen.retry(lambda: client.get(PLURAL, SINGLETON))
    except NotFoundError:
        return None


async def ask(client: ClusterClient, rollover: Obj, phase: str, *, force: bool, compromised: bool = False) -> Obj:
    """Ask for a phase of the rollover that was read. Raises ConflictError when it changed meanwhile."""
    spec = {**spec_of(rollover), "phase": phase}
    if force:
        spec["force"] = phase
    if compromised:
        spec["compromised"] = True
    return await client.update(PLURAL, {**rollover, "spec": spec})


def wait_until_reached(look: Callable[[], Obj], rollover: Obj, clock: Clock, limit: timedelta) -> Obj:
    """Return the rollover when its wanted phase is reached, or when `limit` is over.

    `look` reads it again over a new connection. Raises its last PeerError when the time is over.
    """
    wanted = spec_of(rollover).get("phase")
    reached = {RETIRED: (DONE,), ABORTED: (ABORTED, DONE)}.get(str(wanted), (wanted,))
    deadline = clock.monotonic() + limit.total_seconds()
    while status_of(rollover).get("phase") not in reached and clock.monotonic() < deadline:
        asyncio.run(clock.sleep(LOOK_SECONDS))
        try:
            rollover = look()
        except PeerError:
            if clock.monotonic() >= deadline:
                raise
    return rollover


def is_reached(rollover: Obj) -> bool:
    """Return whether the wanted phase is reached."""
    wanted, phase = spec_of(rollover).get("phase"), status_of(rollover).get("phase")
    return phase == (DONE if wanted == RETIRED else wanted) or phase == DONE


def machine_lines(rollover: Obj) -> list[str]:
    """Return a line for each machine that the status names."""
    status = status_of(rollover)
    named = status.get("machinesBehind") or []
    width = max((len(one["name"]) for one in named), default=0)
    lines = [f"  {one['name']:<{width}}  {one.get('reason', '')}" for one in named]
    if (more := status.get("machinesBehindTotal", 0) - len(named)) > 0:
        lines.append(f"  and {more} more")
    return lines


def run(chosen: ChosenCluster, form: str, work: Work, wait: timedelta) -> None:
    """Run `work`, wait for the phase of the rollover that it returns, and print that. Exit with 1 when it is not reached."""

    def look() -> Obj:
        current = cluster.selected(chosen.kubeconfig, chosen.context_name)
        return cluster.run(current, chosen.clock, lambda client: client.get(PLURAL, SINGLETON))

    rollover = wait_until_reached(look, chosen.run(work), chosen.clock, wait)
    if form in ("json", "yaml"):
        output.print_document(rollover, form)
    elif form == "name":
        echo(QUALIFIED)
    else:
        wanted, status = spec_of(rollover).get("phase"), status_of(rollover)
        if is_reached(rollover):
            echo(f"reached {status['phase']}")
        else:
            echo(f"asked for {wanted}, reached {status.get('phase') or 'nothing yet'}: {status.get('message', '')}")
            if lines := machine_lines(rollover):
                echo(*lines)
    if not is_reached(rollover):
        raise click.exceptions.Exit(1)
