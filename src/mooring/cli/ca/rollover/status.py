"""`mooring ca rollover status`: show which phase was reached, and which machines are behind."""

from __future__ import annotations

import click

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificateauthorityrollover import (
    ABORTED,
    DRAIN,
    ENDED,
    ISSUE_NEW,
    PREPARED,
    TRUST_BOTH,
    next_phase,
    status_of,
)
from mooring.apimachinery.schema import Obj
from mooring.cli.ca.rollover import request
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.printing import output as printing
from mooring.cli.printing.output import echo


@click.command("status")
@output_option(*SHOWN)
@cluster_options
def status(output: str, chosen: ChosenCluster) -> None:
    """Show the rollover: its phase, both CAs, and the machines that are behind.

    Without one it says so, prints null as json and yaml, no name, and ends with 0.
    """
    rollover = chosen.run(lambda client: request.find(client, chosen))
    if rollover is None and output in ("text", "name"):
        if output == "text":
            echo("no rollover; begin one with mooring ca rollover start")
        return
    if output in ("json", "yaml"):
        printing.print_document(rollover, output)
    elif output == "name":
        echo(request.QUALIFIED)
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
    return lines + request.machine_lines(rollover)


def _uncounted(phase: str) -> str:
    """Return why a status has no number of machines; "" in the phases after Drain."""
    return f"not counted before {DRAIN}" if phase in ("", PREPARED, TRUST_BOTH, ISSUE_NEW) else ""


def _ca(ca: Obj | None) -> str:
    return f"{ca['subject']}, {ca['publicKey']}, valid until {ca['notAfter']}" if ca else ""
