"""`mooring join`: make this machine a member of a cluster.

Rules kept here (docs/protocol/discovery-and-join.md): progress is printed as it happens. An error names the step, the reason and
the remedy. `-o json` prints one document, for a failure too. The command can be repeated safely.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from typing import Any

import click

from mooring.agent import recovery
from mooring.agent.doctor.machine import SYSTEMD
from mooring.agent.join import Joined, JoinOptions
from mooring.agent.join import join as join_cluster
from mooring.agent.registration import NONE as NO_NODE
from mooring.agent.steps import JoinError, Progress, Report
from mooring.cli import printing as printed
from mooring.cli.join import flags, install
from mooring.cli.join.diagnosis import DiagnosedJoinError, diagnosed, with_join
from mooring.cli.join.flags import (
    Given,
    config_option,
    host_name,
    join_options,
    names_discovery,
    read_config,
    report_lowering,
)
from mooring.cli.join.install import AgentUnit, agent_unit
from mooring.cli.options.declared import CommandBySubject, settings_options
from mooring.cli.options.flags import REPORTED, output_option
from mooring.cli.printing import echo, redacted
from mooring.clock import SystemClock, rfc3339
from mooring.errors import ConfigError
from mooring.trust.joinconfiguration import JoinPlan, JoinSettings


@click.command("join", cls=CommandBySubject)
@settings_options(JoinSettings.declared())
@config_option(flags.DEFAULT_CONFIG)
@click.option("--dry-run", is_flag=True, help="Perform discovery only, print the other steps, and write nothing.")
@click.option(
    "--discover-only",
    is_flag=True,
    help="Verify the cluster, write its CA and a bootstrap kubeconfig, and leave the certificate to a kubelet.",
)
@click.option(
    "--service",
    "is_service",
    is_flag=True,
    help="Install the agent as a service of systemd afterwards, as mooring agent install does: it keeps the membership.",
)
@output_option(*REPORTED)
@click.pass_context
def join(
    context: click.Context, /, dry_run: bool, discover_only: bool, is_service: bool, output: str, **_: Any
) -> None:
    """Make this machine a member of the cluster at ADDRESS (host:port).

    With several addresses of one cluster, each is tried until one passes. The command can be repeated: it continues where it
    stopped. A machine that was a member before needs no flags: an expired certificate is used to ask for another.
    """
    wanted = _checked_service(context, dry_run, discover_only) if is_service else None
    given = Given(context)
    file = read_config(given)
    if "server" in file.values:
        raise ConfigError(f"{file.places['server']}: server is for a join the k3s way: run mooring agent")
    given.add(file)
    settings = given.read(JoinSettings)
    options = join_options(settings, given, dry_run=dry_run, discover_only=discover_only)
    if not settings.has_credential:
        # Without a token the files here are all that there is, and those of another machine must not be used.
        recovery.check_machine(options)
    is_alone = not names_discovery(given, settings) and not discover_only
    if is_alone and (member := recovery.read_member(options)) is not None:
        recovery.check_name(member.node_name, options)
        plan = None
    elif is_alone and options.state.problems():
        raise recovery.not_a_member(options, "")
    else:
        with given.explained():
            plan = settings.plan(host_name())
        report_lowering(settings)
    if output != "text":
        _join_with_document(plan, options, wanted, output)
        return
    with flags.progress_printer() as report:
        joined = _run(plan, options, report)
    for line in _result_lines(joined, options):
        echo(line)
    if wanted is not None and joined.pair is not None:
        for line in install.lines(install.installed(wanted, install.service(), start=True)):
            echo(line)
    elif joined.pair is not None and (step := next_step(options.settings)):
        echo("Next, keep its certificate and its Node fresh: without the agent it is not Ready after 50 s.")
        echo(f"  {step}")


def _checked_service(context: click.Context, dry_run: bool, discover_only: bool) -> AgentUnit:
    """Return the unit of the agent. Raises ConfigError for a machine on which it cannot be installed: before a token is used."""
    if discover_only:
        raise click.UsageError("--service and --discover-only exclude each other: a kubelet keeps the membership then")
    wanted = agent_unit(context)
    if not dry_run:
        install.service().check(start=True)
    return wanted


def next_step(settings: JoinSettings) -> str:
    """Return the command that keeps a membership; "" where a kubelet does, or where the service is there already."""
    if settings.register_node == NO_NODE or os.path.lexists(install.service().path):
        return ""
    root = "" if settings.root == "/" else f" --root {shlex.quote(settings.root)}"
    return f"mooring agent{root}" if root or not SYSTEMD.is_dir() else "mooring agent install"


def _run(plan: JoinPlan | None, options: JoinOptions, report: Report) -> Joined:
    with diagnosed(lambda found: with_join(found, plan, options)):
        if plan is None:
            return asyncio.run(recovery.rejoin(options, SystemClock(), report))
        return asyncio.run(join_cluster(plan, options, report=report))


def _join_with_document(plan: JoinPlan | None, options: JoinOptions, wanted: AgentUnit | None, form: str) -> None:
    steps: list[dict[str, Any]] = []

    def collect(progress: Progress) -> None:
        step: dict[str, Any] = {"step": progress.step, "message": redacted(progress.message)}
        if progress.seconds is not None:
            step["seconds"] = round(progress.seconds, 6)
        steps.append(step)
        if plan is not None and plan.asks and not progress.transient:
            # A person compares the code while the machine waits.
            echo(flags.line(progress), err=True)

    document: dict[str, Any] = {
        "kind": "JoinResult",
        "nodeName": plan.node_name if plan is not None else "",
        "dryRun": options.dry_run,
        "steps": steps,
    }
    try:
        joined = _run(plan, options, collect)
    except JoinError as error:
        # The document is printed also for an error: a program reads one in any case.
        problem: dict[str, Any] = {"step": error.step, "message": redacted(error.reason)}
        if isinstance(error, DiagnosedJoinError):
            found = error.found.document()
            problem["doctor"] = {
                "step": found["name"],
                "class": found["class"],
                "message": redacted(found["message"]),
                "remedy": redacted(found["remedy"]),
            }
        document |= {"joined": False, "error": problem}
        printed.print_document(document, form)
        raise
    except KeyboardInterrupt:
        step = steps[-1]["step"] if steps else ""
        document |= {"joined": False, "error": {"step": step, "message": "interrupted"}}
        printed.print_document(document, form)
        raise
    document |= result(joined)
    if wanted is not None and joined.pair is not None:
        try:
            document["service"] = install.installed(wanted, install.service(), start=True)
        except ConfigError as error:
            printed.print_document(document | {"error": {"step": "service", "message": redacted(str(error))}}, form)
            raise
    elif joined.pair is not None and (step := next_step(options.settings)):
        document["next"] = step
    printed.print_document(document, form)


def result(joined: Joined) -> dict[str, Any]:
    """Return the result of a join as a document."""
    found: dict[str, Any] = {
        "joined": joined.pair is not None,
        "nodeName": joined.node_name,
        "alreadyMember": joined.already_member,
        "server": joined.server,
        "kubeconfig": str(joined.files.kubeconfig),
        "caFile": str(joined.files.ca),
        "certificateFile": str(joined.files.client.current),
    }
    if joined.request_name:
        found["request"] = joined.request_name
    if joined.pair is not None:
        found["notAfter"] = rfc3339(joined.pair.leaf.not_valid_after_utc)
    if joined.warnings:
        found["warnings"] = list(joined.warnings)
    if joined.pair is None and not joined.planned:
        found["bootstrapKubeconfig"] = str(joined.files.bootstrap)
    if joined.planned:
        found["planned"] = list(joined.planned)
    return found


def _result_lines(joined: Joined, options: JoinOptions) -> list[str]:
    if options.dry_run:
        return ["Nothing was written: this was a dry run."]
    if joined.pair is None:
        state = joined.files
        node_ip = f" --node-ip={','.join(addresses)}" if (addresses := options.settings.node_ip) else ""
        return [
            f"The cluster {joined.server} is trusted. A kubelet requests its certificate with these files:",
            f"  kubelet --bootstrap-kubeconfig={state.bootstrap} --kubeconfig={state.kubeconfig} "
            f"--cert-dir={state.certificates} --hostname-override={joined.node_name}{node_ip}",
            f"  clientCAFile of its configuration: {state.ca}",
        ]
    was = "was a member already" if joined.already_member else "is a member now"
    return [
        f"This machine {was}: node {joined.node_name} of {joined.server}.",
        f"  kubeconfig   {joined.files.kubeconfig}",
        f"  certificate  {joined.files.client.current}, valid until {rfc3339(joined.pair.leaf.not_valid_after_utc)}",
    ]
