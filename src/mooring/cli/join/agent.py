"""`mooring agent`: join if needed, then send heartbeats until stopped.

Rules kept here: with a certificate on disk no flag and no token is needed. Progress and log go to stderr, one line each.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from mooring.agent import daemon
from mooring.agent.steps import Progress
from mooring.cli.join.flags import JoinFlags, join_flags
from mooring.cli.join.progress import line
from mooring.cli.printing import logs
from mooring.cli.printing.output import echo


@click.command("agent")
@join_flags
@click.option("-v", "--verbose", count=True, help="Log more; twice for the most.")
def agent(verbose: int, **flags: Any) -> None:
    """Join the cluster at ADDRESS unless this machine is a member, then send heartbeats of its node.

    Runs until SIGTERM or SIGINT. A machine with a certificate needs no flags.
    """
    given = JoinFlags(**flags)
    plan = given.plan() if given.has_discovery else None
    options = given.options()
    logs.configure(verbose)

    def report(progress: Progress) -> None:
        if not progress.transient:
            echo(line(progress), err=True)

    asyncio.run(daemon.run(plan, options, report=report))
