"""`mooring doctor`: find the first broken step between this machine and its cluster.

Rules kept here (docs/find-what-is-broken.md):
* Nothing is written, and neither a membership nor root is needed.
* The result is complete in every case. The last line is the first broken step with its remedy, and the exit code is that of its
  class (`mooring.trust.doctor`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mooring.agent.doctor.examination import DoctorOptions, NoAddressError
from mooring.agent.doctor.machine import read_files
from mooring.agent.doctor.run import Notify, diagnose
from mooring.agent.k3s.files import MAX_TOKEN_FILE
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.cli import printing
from mooring.cli.cluster import ChosenCluster, chosen_kubeconfig
from mooring.cli.doctor import clusterrisks
from mooring.cli.join import flags
from mooring.cli.join.agent import plan_k3s_join, take_k3s_values
from mooring.cli.join.diagnosis import with_k3s_join, with_plan
from mooring.cli.join.flags import Given, config_option, elapsed, host_name, read_config
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import DURATION, REPORTED, check_timeout, kubeconfig_option, output_option
from mooring.cli.printing import echo, print_table, redacted
from mooring.client.files import read_limited
from mooring.client.http.requests import ignore
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.trust.discovery.pins import parse_pin
from mooring.trust.doctor import SKIPPED, Diagnosis
from mooring.trust.joinconfiguration import JoinSettings
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.agentfile import AgentFile
from mooring.trust.kubeconfig import address_of
from mooring.trust.nodename import choose_node_name

FIELDS = (
    "address",
    "token",
    "discovery_token",
    "tls_bootstrap_token",
    "identity_token_file",
    "identity_token_command",
    "discovery_token_ca_cert_hash",
    "discovery_file",
    "node_name",
    "root",
)
K3S_FIELDS = ("server", "token_file", "data_dir")
"""Settings of a join, and of one k3s's way, that this command takes, in the order of its help."""
_DECLARED = {one.field: one for one in (*JoinSettings.declared(), *K3sJoinSettings.declared())}


@click.command("doctor")
@settings_options([_DECLARED[field] for field in (*FIELDS, *K3S_FIELDS)])
@config_option(flags.DEFAULT_CONFIG)
@click.option(
    "--timeout",
    type=DURATION,
    default="5s",
    show_default=True,
    help="Time limit of each request, connection and handshake.",
)
@click.option("--cluster", "is_cluster", is_flag=True, help="Judge instead what is at risk in a cluster.")
@click.option(
    "--accept",
    multiple=True,
    metavar="ID[/SUBJECT],...",
    help="With --cluster: a finding that is accepted, and decides the exit code no more; repeatable, or with commas.",
)
@kubeconfig_option
@output_option(*REPORTED)
@click.pass_context
def doctor(
    context: click.Context,
    /,
    timeout: timedelta,
    is_cluster: bool,
    accept: tuple[str, ...],
    kubeconfig: str,
    context_name: str,
    output: str,
    **_: Any,
) -> None:
    """Find the first broken step between this machine and its cluster at ADDRESS (host:port).

    Without ADDRESS the servers in the files of this machine are examined. Nothing is written, and neither a membership nor root is
    needed. With the token of a join, the steps of that join are examined as well. The exit code is that of the class of the first
    broken step: 10 this machine, 11 network, 12 the program that answers, 13 clock, 14 trust, 15 token, 16 name or request,
    17 membership.

    With --cluster the cluster of the kubeconfig is judged: tokens, rights, approval, encryption, snapshots, certificates, keys,
    audit and clocks. Each finding has a reason and a command that mends it. The exit code is 20 while one is not accepted, or a
    check could not be made.
    """
    _refuse_mixture(context, is_cluster)
    if is_cluster:
        # Here the data directory is that of a server.
        data_dir = context.params["data_dir"] if _is_given(context, "data_dir") else None
        chosen = ChosenCluster(chosen_kubeconfig(kubeconfig, data_dir), context_name, timeout, SystemClock())
        context.exit(clusterrisks.report(chosen, accept, output))
    check_timeout(timeout)
    given = Given(context)
    options = _options(given, _read_config(given), timeout.total_seconds())
    try:
        with _progress() as notify:
            found = asyncio.run(diagnose(options, SystemClock(), notify))
    except NoAddressError as error:
        raise click.UsageError(str(error)) from None
    _print(found, output)
    if not found.healthy:
        echo(f"Error: {redacted(found.summary())}", err=True)
        context.exit(found.exit_code)


def _refuse_mixture(context: click.Context, is_cluster: bool) -> None:
    """Raise UsageError for flags of the other use of the command."""
    of_machine = [one for one in (*FIELDS, *K3S_FIELDS) if one != "data_dir"]
    for name in of_machine if is_cluster else ("accept", "kubeconfig", "context_name"):
        if _is_given(context, name):
            flag = "--context" if name == "context_name" else "--" + name.replace("_", "-")
            flag = "ADDRESS" if name == "address" else flag
            raise click.UsageError(f"{flag} {'is not for' if is_cluster else 'needs'} --cluster")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _read_config(given: Given) -> AgentFile:
    """Return the configuration file. The default one is left out where only root may read it. Raises ConfigError."""
    default = Path(given.values["root"]) / flags.DEFAULT_CONFIG.lstrip("/")
    if not given.values["config"] and os.path.lexists(default) and not os.access(default, os.R_OK):
        echo(f"Warning: {default} is not used: this user may not read it", err=True)
        return AgentFile()
    return read_config(given)


def _is_k3s_way(given: Given, file: AgentFile) -> bool:
    in_file = {key.replace("-", "_"): value for key, value in file.values.items()}
    values = {field: value or in_file.get(field) for field, value in given.values.items()}
    is_other_way = values["address"] or values["discovery_file"]
    return bool(values["server"]) and ("server" in given.flags or not is_other_way)


def _options(given: Given, file: AgentFile, seconds: float) -> DoctorOptions:
    """Return what the flags, variables and the file say. Raises UsageError, ConfigError."""
    if is_k3s_way := _is_k3s_way(given, file):
        take_k3s_values(given, file)
    else:
        given.add(file)
    settings = given.read(JoinSettings)
    root = Path(settings.root).absolute()
    here, name = host_name(), ""
    with suppress(ConfigError):
        name = choose_node_name("", here, "")
    if settings.node_name:
        with given.explained("node-name"):
            settings = replace(settings, node_name=choose_node_name(settings.node_name, here, ""))
    data_dir = str(given.values["data_dir"])
    options = DoctorOptions(
        addresses=settings.address,
        node_name=settings.node_name,
        host_name=name,
        root=root,
        data_dir=data_dir,
        timeout=seconds,
    )
    if is_k3s_way:
        return _with_k3s_join(given, file, options)
    if settings.discovery_file:
        wanted = replace(settings, allow_discovery_credentials=True)
    elif settings.has_credential:
        # A member needs no address: that of its files is as good.
        address = settings.address or tuple(address_of(one.server) for one in read_files(root, data_dir).clusters)
        if not address:
            raise click.UsageError(
                "no address of a server is given, and no files of this machine name one: give ADDRESS"
            )
        text = settings.token.reveal().decode("utf-8", "replace") if settings.token else ""
        # An error of its form is that of a join.
        with suppress(ConfigError):
            if k3s.has_prefix(text) and (k3s_token := k3s.parse_token(text)).bootstrap is None:
                return replace(options, addresses=address, k3s_token=k3s_token)
        wanted = replace(settings, address=address, discovery_token_unsafe_skip_ca_verification=True)
    else:
        with given.explained("discovery-token-ca-cert-hash"):
            return replace(options, pins=tuple(map(parse_pin, settings.discovery_token_ca_cert_hash)))
    with given.explained():
        plan = wanted.plan(here)
    return asyncio.run(with_plan(options, plan))


def _with_k3s_join(given: Given, file: AgentFile, options: DoctorOptions) -> DoctorOptions:
    """Return the options of a join k3s's way. Raises UsageError, ConfigError."""
    if options.addresses and "address" not in given.variables:
        raise click.UsageError("ADDRESS and --server belong to two ways of joining")
    plan = plan_k3s_join(given, file)
    if plan.token.file is not None and "token_file" not in given.lines:
        # The file that a configuration names may be gone: a member needs no token.
        read_limited(plan.token.file, MAX_TOKEN_FILE)
    found = asyncio.run(with_k3s_join(options, plan))
    return found if given.values["node_name"] else replace(found, node_name="")


@contextmanager
def _progress() -> Iterator[Notify]:
    """Yield the function that is told each step; a terminal shows the one that runs."""
    if not sys.stderr.isatty():
        yield ignore
        return
    # Only a terminal needs it.
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("examining this machine") as status:
        yield lambda name: status.update(f"examining: {name}")


def _print(found: Diagnosis, form: str) -> None:
    if form != "text":
        printing.print_document(_without_secrets(found.document()), form)
        return
    print_table(
        ("STEP", "RESULT", "TIME", "FOUND"),
        (
            (
                one.step.name,
                one.judgement.result,
                "" if one.judgement.result == SKIPPED else elapsed(one.seconds),
                redacted(one.judgement.text),
            )
            for one in found.steps
        ),
    )
    for address, one in found.others:
        echo(redacted(f"{address} was given up: {one.step.name}: {one.judgement.message}"))
    if found.healthy:
        echo(redacted(found.summary()[:1].upper() + found.summary()[1:]) + ".")


def _without_secrets(value: Any) -> Any:
    """Return a document whose texts hold nothing that looks like a secret."""
    if isinstance(value, dict):
        return {key: _without_secrets(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(one) for one in value]
    return redacted(value) if isinstance(value, str) else value
