"""`mooring ca rollover`: replacement of the CA, phase by phase."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import click

from mooring.api.mooring.certificateauthorityrollover import (
    ABORTED,
    DONE,
    DRAIN,
    ENDED,
    ISSUE_NEW,
    KIND,
    PREPARED,
    RETIRED,
    SINGLETON,
    TRUST_BOTH,
    next_phase,
    status_of,
)
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster, printing
from mooring.cli.cluster import ChosenCluster, cluster_options, ending_options
from mooring.cli.options.flags import DURATION, SHOWN, options_of, output_option
from mooring.cli.printing import echo
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_is_mooring
from mooring.clock import Clock
from mooring.errors import ConfigError, NotFoundError, PeerError

# Requests for the phases of a rollover: reading the one object, asking for a phase, and waiting until it is reached.
#
# Rules kept here: the server renews admin.conf in a phase, and the certificate before it may be of a CA that is trusted no more.
# Each look of a wait therefore reads the kubeconfig again, and a refusal is final only when the time is over.

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
        # Read again: a rollover changes the CAs in admin.conf.
        current = cluster.selected(chosen.kubeconfig, chosen.context_name)
        return cluster.run(current, chosen.clock, lambda client: client.get(PLURAL, SINGLETON))

    rollover = wait_until_reached(look, chosen.run(work), chosen.clock, wait)
    if form in ("json", "yaml"):
        printing.print_document(rollover, form)
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


# `mooring ca rollover start`: make a new CA, and trust it beside the old one.


@click.command("start")
@click.option(
    "--compromised",
    is_flag=True,
    help="The key of the old CA is in other hands: keep nothing for the return of machines that are off.",
)
@request_options
def start(compromised: bool, wait: timedelta, output: str, chosen: ChosenCluster) -> None:
    """Make a new CA, and trust it beside the old one everywhere.

    Nothing is issued from the new CA yet. Each further phase needs mooring ca rollover advance.
    """

    async def work(client: ClusterClient) -> Obj:
        await check_server(client)
        try:
            found = await chosen.retry(lambda: client.get(PLURAL, SINGLETON))
        except NotFoundError:
            pass
        else:
            await _remove_ended(client, found)
        return await client.create(
            PLURAL,
            {
                "apiVersion": KIND.resource.api_version,
                "kind": KIND.resource.kind,
                "metadata": {"name": SINGLETON},
                "spec": {"phase": TRUST_BOTH, **({"compromised": True} if compromised else {})},
            },
        )

    run(chosen, output, work, wait)


async def _remove_ended(client: ClusterClient, found: Obj) -> None:
    phase = status_of(found).get("phase", "")
    if phase not in ENDED:
        raise ConfigError(
            f"a rollover is under way, it has reached {phase or 'nothing yet'}; see mooring ca rollover status"
        )
    # By its uid: a rollover that another administrator began meanwhile stays.
    await client.delete(PLURAL, SINGLETON, uid=found["metadata"]["uid"])


# `mooring ca rollover status`: show which phase was reached, and which machines are behind.


@click.command("status")
@output_option(*SHOWN)
@cluster_options
def status(output: str, chosen: ChosenCluster) -> None:
    """Show the rollover: its phase, both CAs, and the machines that are behind.

    Without one it says so, prints null as json and yaml, no name, and ends with 0.
    """
    rollover = chosen.run(lambda client: find(client, chosen))
    if rollover is None and output in ("text", "name"):
        if output == "text":
            echo("no rollover; begin one with mooring ca rollover start")
        return
    if output in ("json", "yaml"):
        printing.print_document(rollover, output)
    elif output == "name":
        echo(QUALIFIED)
    elif rollover is not None:
        echo(*status_lines(rollover))


def status_lines(rollover: Obj) -> list[str]:
    """Return the status as lines of text."""
    spec, found = spec_of(rollover), status_of(rollover)
    lost = "new" if spec.get("phase") == ABORTED else "old"
    labelled = [
        ("Phase", found.get("phase") or "<none>"),
        ("Wanted", "" if found.get("phase") in ENDED else spec.get("phase", "")),
        ("Next", f"{phase}, with mooring ca rollover advance" if (phase := next_phase(rollover)) else ""),
        ("Message", found.get("message", "")),
        ("Old CA", _ca(found.get("oldCA"))),
        ("New CA", _ca(found.get("newCA"))),
        ("Compromised", f"yes: nothing of the {lost} CA is kept" if spec.get("compromised") else ""),
        *((f"Reached {one['phase']}", one.get("time", "")) for one in found.get("transitions") or ()),
        ("Machines behind", str(found.get("machinesBehindTotal", _uncounted(found.get("phase", ""))))),
    ]
    lines = [f"{label + ':':<20}{value}" for label, value in labelled if value]
    return lines + machine_lines(rollover)


def _uncounted(phase: str) -> str:
    """Return why a status has no number of machines; "" in the phases after Drain."""
    return f"not counted before {DRAIN}" if phase in ("", PREPARED, TRUST_BOTH, ISSUE_NEW) else ""


def _ca(ca: Obj | None) -> str:
    # In the first second of a rollover not every field is known.
    known = ca or {}
    end = f"valid until {known['notAfter']}" if "notAfter" in known else ""
    return ", ".join(filter(None, (known.get("subject"), known.get("publicKey"), end)))


# `mooring ca rollover advance`: go on to the next phase.
#
# Rules kept here: the phase that locks machines out is refused while machines are behind, and they are named. The server checks
# again.


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
@request_options
def advance(force: bool, compromised: bool, wait: timedelta, output: str, chosen: ChosenCluster) -> None:
    """Go on to the next phase: IssueNew, Drain, Retired.

    Retired is refused while machines would be locked out. They are named with the reason. Each phase waits until client-ca-file,
    root-ca-file and cluster-info hold the new CA, with --force as well.
    """

    async def work(client: ClusterClient) -> Obj:
        rollover = await read(client, chosen)
        phase = next_phase(rollover)
        if not phase:
            state = "was aborted" if spec_of(rollover).get("phase") == ABORTED else "has ended or is about to"
            raise ConfigError(f"there is no next phase: the rollover {state}; see mooring ca rollover status")
        if phase == RETIRED:
            _check_machines(rollover, force)
        return await ask(client, rollover, phase, force=force, compromised=compromised)

    run(chosen, output, work, wait)


def _check_machines(rollover: Obj, force: bool) -> None:
    """Print the machines that are behind. Raises ConfigError without `force`."""
    total = status_of(rollover).get("machinesBehindTotal", 0)
    if not total:
        return
    machines = "1 machine" if total == 1 else f"{total} machines"
    if not force:
        raise ConfigError(
            f"{machines} would be locked out when the old CA is retired; wait until they have renewed, or give --force: "
            + "; ".join(" ".join(line.split()) for line in machine_lines(rollover))
        )
    echo(
        f"warning: {machines} may be locked out, and then have to join again:",
        *machine_lines(rollover),
        err=True,
    )


# `mooring ca rollover abort`: go back to the old CA.


@click.command("abort")
@click.option(
    "--force",
    is_flag=True,
    help="Do not wait for machines with a certificate of the new CA: they have to join again. Nothing else is passed over.",
)
@click.option(
    "--compromised",
    is_flag=True,
    help="The key of the new CA is in other hands: neither CA vouches for the other any more.",
)
@request_options
def abort(force: bool, compromised: bool, wait: timedelta, output: str, chosen: ChosenCluster) -> None:
    """Go back to the old CA. This is possible until the old CA is retired.

    The new CA stays trusted until machines have replaced the certificates that it issued.
    """

    async def work(client: ClusterClient) -> Obj:
        rollover = await read(client, chosen)
        return await ask(client, rollover, ABORTED, force=force, compromised=compromised)

    run(chosen, output, work, wait)
