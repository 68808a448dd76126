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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from mooring.agent import daemon
from mooring.agent.k3s import process
from mooring.agent.k3s.membership import TokenNeededError
from mooring.agent.settings import AgentSettings
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Progress
from mooring.cli.join import k3sconfig
from mooring.cli.join.flags import (
    SETTINGS,
    Given,
    config_option,
    host_name,
    join_options,
    names_discovery,
    report_lowering,
)
from mooring.cli.join.k3sflags import choose_way, plan_k3s_join
from mooring.cli.join.progress import line
from mooring.cli.options.bysubject import CommandBySubject
from mooring.cli.options.declared import settings_options
from mooring.cli.printing import logs
from mooring.cli.printing.output import echo
from mooring.servicenotifier import ServiceNotifier
from mooring.trust.joinconfiguration import JoinSettings
from mooring.trust.k3s.agentfile import AgentFile, ignored_keys, refused_flag

log = logging.getLogger("mooring.agent")


class AgentCommand(CommandBySubject):
    """The command, with an error of its own for a flag of k3s that does not concern joining."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if reason := refused_flag(error.option_name):
                raise click.UsageError(reason, ctx) from None
            raise


@click.command("agent", cls=AgentCommand)
@settings_options(SETTINGS)
@config_option(
    f"{k3sconfig.DEFAULT_CONFIG}, else {k3sconfig.K3S_CONFIG} for a join the k3s way, which takes $K3S_CONFIG_FILE, too,"
)
@click.option("-v", "--verbose", count=True, help="Log more; twice for the most.")
@click.pass_context
def agent(context: click.Context, /, verbose: int, **_: Any) -> None:
    """Join the cluster at ADDRESS unless this machine is a member, then keep its certificate and its Node fresh.

    Runs until SIGTERM or SIGINT. A machine with a certificate needs no flags. `mooring agent unit` prints a systemd unit.

    With --server URL it joins the k3s way instead, through k3s's supervisor API, and keeps the files of a k3s agent. The flags of
    k3s agent that concern joining are taken, in k3s's configuration file too. Those of its runtime are not: no kubelet runs here.
    """
    notifier = ServiceNotifier.of_environment()
    given = Given(context)
    is_k3s, file = choose_way(given)
    more = given.read(AgentSettings)
    if is_k3s:
        plan_of_agent = plan_k3s_join(given, file)
        logs.configure(verbose)
        _warn(file)
        with _explained_token(given):
            asyncio.run(process.run(plan_of_agent, report=_report, on_renew=more.on_renew, notifier=notifier))
        return
    settings = given.read(JoinSettings)
    with given.explained():
        plan = settings.plan(host_name()) if names_discovery(given, settings) else None
    if plan is not None:
        report_lowering(settings)
    options = join_options(settings, given)
    logs.configure(verbose)
    _warn(file)
    asyncio.run(daemon.run(plan, options, report=_report, more=more, notifier=notifier))


@contextmanager
def _explained_token(given: Given) -> Iterator[None]:
    """Add to the error about a missing token which value is empty, and which variable chose the k3s way."""
    try:
        yield
    except JoinError as error:
        if not isinstance(error.__cause__, TokenNeededError):
            raise
        reasons = [error.reason]
        if "token" in given.flags and not given.values["token"]:
            reasons.append("the value after --token is empty")
        kubeconfig = NodeState(Path(given.values["root"])).kubeconfig
        if (variable := given.variables.get("server")) and kubeconfig.exists():
            reasons.append(
                f"this machine joined kubeadm's way ({kubeconfig} is there), and {variable} chooses k3s's: unset it"
            )
        raise JoinError(error.step, "; ".join(reasons)) from error.__cause__


def _warn(file: AgentFile) -> None:
    if ignored := ignored_keys(file.ignored):
        log.warning("k3s's configuration: %s", ignored)


def _report(progress: Progress) -> None:
    if not progress.transient:
        echo(line(progress), err=True)
