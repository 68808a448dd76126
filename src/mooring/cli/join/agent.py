"""`mooring agent`: join if needed, in the way that its flags choose, then keep the membership fresh until stopped."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mooring.agent import daemon, leave
from mooring.agent.k3s import process
from mooring.agent.k3s.files import DESCRIPTORS, ID_SUFFIX, MAX_TOKEN_FILE, GivenToken
from mooring.agent.k3s.membership import AgentPlan, TokenNeededError
from mooring.agent.k3s.settings import DEFAULT_ENVIRONMENT_FILE, K3sJoinSettings
from mooring.agent.machineid import CopiedFilesError
from mooring.agent.settings import AgentSettings
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Progress
from mooring.cli import serverlogs
from mooring.cli.join import flags
from mooring.cli.join.diagnosis import diagnosed, with_join, with_k3s_join
from mooring.cli.join.flags import (
    SETTINGS,
    SUBJECTS,
    Given,
    config_option,
    host_name,
    join_options,
    line,
    names_discovery,
    read_config,
    report_lowering,
)
from mooring.cli.join.install import EXIT_COPIED
from mooring.cli.options.declared import CommandBySubject, settings_options
from mooring.cli.printing import echo
from mooring.client.files import read_limited
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.servicenotifier import ServiceNotifier
from mooring.trust.joinconfiguration import JoinSettings
from mooring.trust.k3s.agentfile import AgentFile, ignored_keys, refused_flag
from mooring.trust.k3s.exchanges import JOIN_POLLING
from mooring.trust.k3s.nodepassword import MAX_NODE_NAME
from mooring.trust.k3s.token import TokenFormatError, parse_token
from mooring.trust.nodename import choose_node_name

# Way of joining that the flags of `agent` choose, and the plan of a join the k3s way.
#
# Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
# * `--server`, the key `server`, or K3S_URL without a flag of the other way of joining, chooses this way. Both ways together are an
#   error that names them. K3S_URL does not count beside MOORING_ADDRESS or MOORING_DISCOVERY_FILE: the token is for theirs.
# * The token is that of `--token`, `--token-file`, K3S_TOKEN_FILE, K3S_TOKEN or MOORING_TOKEN, in this order. It may be missing for
#   a member. A flag for it replaces both keys of the file. Of two variables the file wins, as in k3s, and a line says so.
# * A token on the command line can be read by every user of the machine: the title of the process is the command line without it.
#   Hooks and other children do not get it from the environment.

TOKENS = ("token", "token-file")
"""Keys of a file that a flag replaces."""
STANDARD_ERROR = 2
"""Descriptors up to this one stay open."""
K3S_CONFIG_VARIABLE = "K3S_CONFIG_FILE"
K3S_VARIABLES = {"token": "K3S_TOKEN", "token_file": "K3S_TOKEN_FILE", "node_name": "K3S_NODE_NAME"}
"""Variables of k3s that count before Mooring's, and where a flag is empty."""
K3S_WAY = tuple(one.field for one in SUBJECTS[K3sJoinSettings])
"""Fields of a join the k3s way alone."""
OTHER_WAY = (*(one.field for one in SUBJECTS[JoinSettings]), "serving_certificates", "load_balancer_port")
"""Fields of a join as kubeadm does it alone; the first is the address."""


def choose_way(given: Given) -> tuple[bool, AgentFile]:
    """Return whether the join is to be the k3s way, and the configuration file, whose values are added to those that are given.

    Raises UsageError for flags of both ways, ConfigError.
    """
    others = [field for field in OTHER_WAY if field in given.flags]
    if others[:1] == ["address"] and all(text.isdecimal() for text in given.values["address"]):
        raise click.UsageError("-v takes no number: -v and -vv make Mooring's agent log more")
    is_addressed = any(field in given.variables for field in ("address", "discovery_file"))
    file, is_of_k3s = _read_file(given, is_other_way=bool(others) or is_addressed)
    in_file = {key.replace("-", "_") for key in file.values}
    others += [field for field in OTHER_WAY if field in in_file]
    names_server = "server" in given.flags or "server" in in_file
    is_k3s = names_server or bool(given.values["server"] and not others and not is_addressed)
    if not is_k3s:
        file = AgentFile() if is_of_k3s else file
        given.add(file)
        _check_other_way(given)
        return False, file
    file = take_k3s_values(given, file)
    if names_server and others:
        with given.explained("server", others[0]):
            raise ConfigError(
                f"{_flag(others[0])} and --server belong to two ways of joining: give the address of an API server, or --server"
            )
    return True, file


def take_k3s_values(given: Given, file: AgentFile) -> AgentFile:
    """Take the values of a file and of k3s's variables. Return the file without a token that a flag replaces."""
    if given.flags & {"token", "token_file"}:
        file = replace(file, values={key: value for key, value in file.values.items() if key not in TOKENS})
    given.add(file, over_variables=True)
    former = given.values["token"] if "token" in given.variables else ""
    for field, variable in K3S_VARIABLES.items():
        given.add_variable(field, variable)
    if former and former != given.values["token"]:
        echo("Warning: MOORING_TOKEN and K3S_TOKEN hold two tokens: that in K3S_TOKEN is used", err=True)
    return file


def _read_file(given: Given, *, is_other_way: bool) -> tuple[AgentFile, bool]:
    """Return the configuration file, and whether it is k3s's own, on which a join and a member kubeadm's way do not depend."""
    named = given.values["config"]
    of_k3s = "" if named or is_other_way else os.environ.get(K3S_CONFIG_VARIABLE, "")
    if of_k3s:
        return flags.read(of_k3s, SETTINGS), True
    file, root = read_config(given), Path(given.values["root"])
    is_member = NodeState(root).kubeconfig.exists() and not given.values["server"]
    if named or is_other_way or is_member or file.values:
        return file, False
    return flags.read("", SETTINGS, root / flags.K3S_CONFIG.lstrip("/")), True


def _check_other_way(given: Given) -> None:
    """Raise UsageError, or ConfigError for a file, for values of the k3s way without a server, and a file that chooses no way."""
    for field in (*(one for one in K3S_WAY if one in given.flags), *(one for one in K3S_WAY if one in given.lines)):
        with given.explained(field):
            raise ConfigError(f"{_flag(field)} needs --server: it is for a join the k3s way")
    values = given.values
    is_chosen = values["address"] or values["discovery_file"] or NodeState(Path(values["root"])).kubeconfig.exists()
    if "config" in given.flags and not is_chosen:
        raise click.UsageError(
            "--config: the file names no server; give the key server, or --server; or an address, to join kubeadm's way"
        )


def plan_k3s_join(given: Given, file: AgentFile) -> AgentPlan:
    """Return the validated plan. Raises UsageError, ConfigError."""
    settings = given.read(K3sJoinSettings)
    token = _token(given, settings, file)
    with given.explained():
        suffix = ID_SUFFIX if settings.with_node_id else 0
        name = choose_node_name(
            settings.node_name, host_name(), settings.register_node, suffix=suffix, longest=MAX_NODE_NAME
        )
    report_lowering(settings)
    settings = replace(settings, node_name=name, token=None, root=str(Path(settings.root).absolute()))
    polling = replace(JOIN_POLLING, total=settings.discovery_timeout.total_seconds())
    return AgentPlan(settings=settings, token=token, polling=polling)


def _token(given: Given, settings: K3sJoinSettings, config: AgentFile) -> GivenToken:
    """Return the token and its places. Raises UsageError, ConfigError."""
    value, file = settings.token, settings.token_file
    is_variable = given.variables.keys() & {"token", "token_file"}
    if value is not None and file and len(is_variable) > 1:
        echo(
            f"Warning: {given.variables['token']} and {given.variables['token_file']} are both set: the token in {file} is used, "
            "as by k3s",
            err=True,
        )
        value = None
    elif value is not None and "token_file" in is_variable:
        file = ""
    elif file and "token" in is_variable:
        value = None
    if value is not None and file:
        with given.explained():
            raise ConfigError("--token and --token-file cannot both be given")
    for name in ("K3S_TOKEN", "MOORING_TOKEN"):
        # Children of this process do not get it.
        os.environ.pop(name, None)
    place = "--token"
    if file.startswith(DESCRIPTORS):
        place, value, file = "the token", _read_descriptor(file), ""
    if value is not None:
        try:
            parse_token(value.reveal())
        except TokenFormatError as error:
            with given.explained():
                raise ConfigError(f"{place}: {error}") from None
    default = Path(settings.root).absolute() / DEFAULT_ENVIRONMENT_FILE.lstrip("/")
    named = tuple(Path(one).absolute() for one in settings.token_env_file)
    return GivenToken(
        value,
        Path(file).absolute() if file else None,
        named + tuple(Path(one).absolute() for one in config.token_paths),
        () if named else (default,),
        settings.keep_token_file,
    )


def _read_descriptor(place: str) -> Secret | None:
    """Return the token behind a descriptor, which is closed then. Raises ConfigError."""
    token = Secret(read_limited(Path(place), MAX_TOKEN_FILE).strip())
    number = place.rpartition("/")[2]
    if number.isdecimal() and int(number) > STANDARD_ERROR:
        os.close(int(number))
    return token or None


def _flag(field: str) -> str:
    return "ADDRESS" if field == "address" else "--" + field.replace("_", "-")


# `mooring agent`: join if needed, then keep the membership fresh until stopped.
#
# Rules kept here:
# * With a certificate on disk no flag and no token is needed. A machine that joined the k3s way needs `--server`, or k3s's
#   configuration file.
# * A flag of k3s that does not concern joining is an error on the command line, and a warning in the file.
# * Progress and log go to stderr, one line each.

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
    f"{flags.DEFAULT_CONFIG}, else {flags.K3S_CONFIG} for a join the k3s way, which takes $K3S_CONFIG_FILE, too,"
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Let this machine have the membership whose files came from another one: after a replaced board or a restored disk.",
)
@serverlogs.log_options
@click.pass_context
def agent(context: click.Context, /, adopt: bool, verbose: int, log_format: str, **_: Any) -> None:
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
        plan_of_agent = replace(plan_k3s_join(given, file), adopts=adopt)
        serverlogs.configure(verbose, log_format)
        _warn(file)
        with _explained_token(given), _final(), diagnosed(lambda found: with_k3s_join(found, plan_of_agent)):
            asyncio.run(process.run(plan_of_agent, report=_report, on_renew=more.on_renew, notifier=notifier))
        if more.leave_on_stop:
            asyncio.run(leave.on_stop(lambda: leave.of_k3s(plan_of_agent.files()), SystemClock()))
        return
    settings = given.read(JoinSettings)
    with given.explained():
        plan = settings.plan(host_name()) if names_discovery(given, settings) else None
    if plan is not None:
        report_lowering(settings)
    options = join_options(settings, given, adopts=adopt)
    serverlogs.configure(verbose, log_format)
    _warn(file)
    with _final(), diagnosed(lambda found: with_join(found, plan, options)):
        asyncio.run(daemon.run(plan, options, report=_report, more=more, notifier=notifier))
    # It returns after a signal alone: every other end is an error.
    if more.leave_on_stop:
        asyncio.run(leave.on_stop(lambda: leave.of_kubeadm(options.state), SystemClock()))


class CopiedFiles(click.ClickException):
    """The files of this machine are those of another one."""

    exit_code = EXIT_COPIED


@contextmanager
def _final() -> Iterator[None]:
    """Give the error about files of another machine the status after which systemd does not start the agent again."""
    try:
        yield
    except CopiedFilesError as error:
        raise CopiedFiles(str(error)) from None


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
    """Print a step of a join, or log it where each line is a JSON object."""
    if progress.transient:
        return
    if serverlogs.is_json():
        log.info("%s", line(progress))
    else:
        echo(line(progress), err=True)
