"""`mooring agent`: join if needed, then keep the membership fresh until stopped.

Rules kept here:
* With a certificate on disk no flag and no token is needed. A machine that joined the k3s way needs `--server`, or k3s's
  configuration file.
* A flag of k3s that does not concern joining is an error on the command line, and a warning in the file.
* Progress and log go to stderr, one line each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import click

from mooring.agent import daemon
from mooring.agent.k3s import process
from mooring.agent.steps import Progress
from mooring.cli.join.flags import JoinFlags, join_flags
from mooring.cli.join.k3sflags import K3sFlags, is_given, k3s_flags
from mooring.cli.join.progress import line
from mooring.cli.printing import logs
from mooring.cli.printing.output import echo
from mooring.trust.k3s.agentfile import ignored_keys, refused_flag

log = logging.getLogger("mooring.agent")

P = ParamSpec("P")
R = TypeVar("R")


def agent_flags(function: Callable[P, R]) -> Callable[P, R]:
    """Add the flags of the agent beyond those of a join."""
    for flag in (
        click.option(
            "--on-renew",
            multiple=True,
            metavar="COMMAND",
            help="Line for /bin/sh that runs after each renewal and change of a CA, with MOORING_KIND (client, serving or ca), "
            "MOORING_CERTIFICATE and MOORING_NODE_NAME; repeatable.",
        ),
        click.option(
            "--serving-certificates",
            is_flag=True,
            help="Request a serving certificate for the addresses of the Node too, as kubelet does with serverTLSBootstrap.",
        ),
    ):
        function = flag(function)
    return function


class AgentCommand(click.Command):
    """The command, with an error of its own for a flag of k3s that does not concern joining."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if reason := refused_flag(error.option_name):
                raise click.UsageError(reason, ctx) from None
            raise


@click.command("agent", cls=AgentCommand)
@join_flags
@k3s_flags
@agent_flags
@click.option("-v", "--verbose", count=True, help="Log more; twice for the most.")
@click.pass_context
def agent(
    context: click.Context, /, verbose: int, serving_certificates: bool, on_renew: tuple[str, ...], **flags: Any
) -> None:
    """Join the cluster at ADDRESS unless this machine is a member, then keep its certificate and its Node fresh.

    Runs until SIGTERM or SIGINT. A machine with a certificate needs no flags. `mooring agent unit` prints a systemd unit.

    With --server URL it joins the k3s way instead, through k3s's supervisor API, and keeps the files of a k3s agent. The flags of
    k3s agent that concern joining are taken, in k3s's configuration file too. Those of its runtime are not: no kubelet runs here.
    """
    k3s = K3sFlags(**{name: flags.pop(name) for name in K3sFlags.__slots__})
    given = JoinFlags(**flags)
    k3s, k3s_given, file = k3s.with_file(context, given)
    servers = k3s.servers(context)
    if servers:
        token = k3s_given.token if is_given(context, "token") or "token" in file.values else ""
        plan_of_agent = k3s.plan(servers, token, k3s_given, file)
        logs.configure(verbose)
        if ignored := ignored_keys(file.ignored):
            log.warning("k3s's configuration: %s", ignored)
        asyncio.run(process.run(plan_of_agent, report=_report, on_renew=on_renew))
        return
    plan = given.plan() if given.has_discovery else None
    options = given.options()
    logs.configure(verbose)
    more = daemon.AgentOptions(serving_certificates=serving_certificates, on_renew=on_renew)
    asyncio.run(daemon.run(plan, options, report=_report, more=more))


def _report(progress: Progress) -> None:
    if not progress.transient:
        echo(line(progress), err=True)
