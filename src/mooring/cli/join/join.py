"""`mooring join`: make this machine a member of a cluster.

Rules kept here (docs/protocol/discovery-and-join.md): progress is printed as it happens. An error names the step, the reason and
the remedy. `-o json` prints one document, for a failure too. The command can be repeated safely.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from mooring.agent.join import Joined, JoinOptions
from mooring.agent.join import join as join_cluster
from mooring.agent.steps import JoinError, Progress
from mooring.cli.join import progress
from mooring.cli.join.flags import JoinFlags, join_flags
from mooring.cli.options.client import output_option
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo
from mooring.cli.printing.redaction import redacted
from mooring.clock import rfc3339
from mooring.trust.joinconfiguration import JoinPlan


@click.command("join")
@join_flags
@click.option("--dry-run", is_flag=True, help="Perform discovery only, print the other steps, and write nothing.")
@output_option("text", "json")
def join(dry_run: bool, output: str, **flags: Any) -> None:
    """Make this machine a member of the cluster at ADDRESS (host:port).

    With several addresses of one cluster, each is tried until one passes. The command can be repeated: it continues where it
    stopped.
    """
    given = JoinFlags(**flags)
    plan, options = given.plan(), given.options(dry_run=dry_run)
    if output == "json":
        _join_with_json_output(plan, options)
        return
    with progress.progress_printer() as report:
        joined = asyncio.run(join_cluster(plan, options, report=report))
    for line in _result_lines(joined, dry_run):
        echo(line)


def _join_with_json_output(plan: JoinPlan, options: JoinOptions) -> None:
    steps: list[dict[str, Any]] = []

    def collect(progress: Progress) -> None:
        step: dict[str, Any] = {"step": progress.step, "message": redacted(progress.message)}
        if progress.seconds is not None:
            step["seconds"] = round(progress.seconds, 6)
        steps.append(step)

    document: dict[str, Any] = {
        "kind": "JoinResult",
        "nodeName": plan.node_name,
        "dryRun": options.dry_run,
        "steps": steps,
    }
    try:
        joined = asyncio.run(join_cluster(plan, options, report=collect))
    except JoinError as error:
        document |= {"joined": False, "error": {"step": error.step, "message": redacted(error.reason)}}
        printed.print_document(document, "json")
        raise
    except KeyboardInterrupt:
        step = steps[-1]["step"] if steps else ""
        document |= {"joined": False, "error": {"step": step, "message": "interrupted"}}
        printed.print_document(document, "json")
        raise
    printed.print_document(document | result(joined), "json")


def result(joined: Joined) -> dict[str, Any]:
    """Return the result of a join as a document."""
    found: dict[str, Any] = {
        "joined": joined.pair is not None,
        "alreadyMember": joined.already_member,
        "server": joined.cluster.server,
        "kubeconfig": str(joined.state.kubeconfig),
        "caFile": str(joined.state.ca),
        "certificateFile": str(joined.state.current),
    }
    if joined.request_name:
        found["request"] = joined.request_name
    if joined.pair is not None:
        found["notAfter"] = rfc3339(joined.pair.leaf.not_valid_after_utc)
    if joined.warnings:
        found["warnings"] = list(joined.warnings)
    if joined.planned:
        found["planned"] = list(joined.planned)
    return found


def _result_lines(joined: Joined, dry_run: bool) -> list[str]:
    if dry_run:
        return ["Nothing was written: this was a dry run."]
    assert joined.pair is not None  # only a dry run ends without a certificate
    was = "was a member already" if joined.already_member else "is a member now"
    return [
        f"This machine {was}: node {joined.node_name} of {joined.cluster.server}.",
        f"  kubeconfig   {joined.state.kubeconfig}",
        f"  certificate  {joined.state.current}, valid until {rfc3339(joined.pair.leaf.not_valid_after_utc)}",
    ]
