"""`mooring status`: show a whole cluster on one screen.

Rules kept here:
* `--watch` draws the screen again on a terminal. Elsewhere it prints the whole again after each change. Ctrl-C ends it.
* It waits at least INTERVAL between two looks, and longer where a look takes long, so that watching costs a large cluster a tenth
  of what a loop of commands would.
* It ends within INTERVAL when the reader of its output has gone, as `head` does, whether or not there is a change to print.
* A failure while watching is shown, and the next look tries again.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click

from mooring.apimachinery.schema import Obj
from mooring.cli import printing
from mooring.cli.cluster import ChosenCluster, cluster_options, is_transient
from mooring.cli.options.flags import output_option
from mooring.cli.printing import check_reader, draw, echo, redacted
from mooring.cli.status.gathering import gather, text
from mooring.cli.status.sections import SECTIONS, without_changing
from mooring.client.cluster import ClusterClient
from mooring.clock import rfc3339
from mooring.errors import MooringError

INTERVAL = 2.0
"""Seconds between two looks."""
SHARE = 10
"""Times as long as a look took that the next one waits."""


@click.command("status")
@click.option("--watch", "-w", is_flag=True, help="Go on, and show each change. Ctrl-C ends it.")
@output_option("text", "json", "yaml")
@cluster_options
def status(watch: bool, output: str, chosen: ChosenCluster) -> None:
    """Show a whole cluster: servers, CA, machines, waiting requests, tokens, revocations, encryption, snapshots and store.

    What you may not read, and what another Kubernetes API server does not have, says so, and the rest is shown.
    """
    if not watch:
        now = chosen.clock.now()
        found = chosen.run_with_retries(lambda client: gather(SECTIONS, client, chosen.selected, now))
        _print(found, output, now)
        return
    chosen.run(lambda client: _watch(client, chosen, output))


async def _watch(client: ClusterClient, chosen: ChosenCluster, form: str) -> None:
    clock, shown = chosen.clock, None
    is_screen = form == "text" and sys.stdout.isatty()
    # A wrong address ends the command; a later failure does not.
    await chosen.retry(lambda: client.read("/version"))
    while True:
        started, now = clock.monotonic(), clock.now()
        try:
            found = await gather(SECTIONS, client, chosen.selected, now)
        except MooringError as error:
            if not is_transient(error):
                raise
            message = redacted(str(error))
            if is_screen:
                draw([f"{rfc3339(now)}: {message}"])
            elif shown != message:
                echo(f"Trying again: {message}", err=True)
                shown = message
        else:
            if is_screen:
                draw([*text(SECTIONS, found, now), "", f"{rfc3339(now)}; Ctrl-C ends this"])
            elif shown != (known := repr(without_changing(found))):
                _print(found, form, now)
                sys.stdout.flush()
                shown = known
        due = clock.monotonic() + max(INTERVAL, SHARE * (clock.monotonic() - started))
        while (left := due - clock.monotonic()) > 0:
            check_reader()
            await clock.sleep(min(left, INTERVAL))


def _print(found: dict[str, Obj], form: str, now: datetime) -> None:
    if form == "text":
        echo(*text(SECTIONS, found, now))
        return
    document: dict[str, Any] = {"kind": "ClusterStatus", "time": rfc3339(now), **found}
    printing.print_document(document, form)
