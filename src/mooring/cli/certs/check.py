"""`mooring certs check`: list what ends soon, with an exit code for cron.

Rules kept here:
* Exit code 0: nothing ends within the time. 1: something ends or has ended, or not everything could be read. 2: wrong command line.
* With `--data-dir` the files of a server on this machine are read, and no server is needed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import click

from mooring.cli.certs import ending
from mooring.cli.certs.ending import Ends
from mooring.cli.certs.inventory import KnownCertificate
from mooring.cli.cluster import ChosenCluster, one_cluster_options
from mooring.cli.options.client import LISTED, output_option
from mooring.cli.options.flags import DAYS
from mooring.cli.printing import output as printing
from mooring.cli.printing.output import echo
from mooring.clock import human_duration, parse_rfc3339
from mooring.duration import format_duration

HEADERS = ("WHAT", "WHERE", "ENDS", "LEFT")


@click.command("check")
@click.option(
    "--within",
    type=DAYS,
    default="30d",
    show_default=True,
    help="Time within which an end is reported, such as 30d or 36h.",
)
@click.option(
    "--data-dir",
    default=None,
    metavar="DIR",
    help="Read the files of the server on this machine, in this data directory, and ask no server.",
)
@output_option(*LISTED)
@one_cluster_options
def check(within: timedelta, data_dir: str | None, output: str, chosen: ChosenCluster) -> int:
    """List what ends soon or has ended: certificates of servers, machines and users, and CAs. The exit code is then 1.

    Through the API: certificates and CAs of the servers in the kubeconfig, client and serving certificates of machines, and
    those of users. With --data-dir: the files of a server. A certificate that was renewed, revoked, or whose Node was deleted, is
    left out.
    """
    now = chosen.clock.now()
    if data_dir == "":
        raise click.UsageError("--data-dir is empty: name the data directory of a server")
    if data_dir is not None:
        if chosen.kubeconfig or chosen.context_name:
            raise click.UsageError("--data-dir cannot be mixed with --kubeconfig or --context: it asks no server")
        ends = ending.of_data_dir(Path(data_dir), now)
    else:
        ends, _ = chosen.run_with_retries(lambda client: ending.fetch(client, chosen.selected, now))
    return _report(ends, within, output, now)


def _report(ends: Ends, within: timedelta, form: str, now: datetime) -> int:
    found = ends.within(within, now)
    if form in ("json", "yaml"):
        items = [ending.document(one, now) for one in found]
        document = {
            "kind": "ExpiryReport",
            "within": format_duration(within),
            "checked": len(ends.certificates),
            "items": items,
            "unreadable": list(ends.unreadable),
        }
        printing.print_document(document, form)
    elif form == "name":
        for one in found:
            echo(one.serial_number)
    elif found:
        printing.print_table(HEADERS, [cells(one, now) for one in found])
    elif not ends.unreadable:
        echo(f"Nothing ends within {human_duration(within)}: {len(ends.certificates)} certificates were checked.")
    for missing in ends.unreadable:
        echo(f"warning: not checked: {missing}", err=True)
    return 1 if found or ends.unreadable else 0


def cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    """Return one row of the table."""
    return ending.what(one), ending.where(one), _day(one.expires), ending.left(one, now)


def _day(text: str) -> str:
    return f"{parse_rfc3339(text):%Y-%m-%d}"
