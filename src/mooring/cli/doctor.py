"""`mooring doctor`: find the first broken step between this machine and its cluster.

Rules kept here (docs/find-what-is-broken.md):
* Nothing is written, and neither a membership nor root is needed.
* The result is complete in every case. The last line is the first broken step with its remedy, and the exit code is that of its
  class (`mooring.trust.doctor`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mooring.agent.doctor.machine import read_files
from mooring.agent.doctor.run import DoctorOptions, NoAddressError, Notify, diagnose, ignore
from mooring.cli import clusterrisks, printing
from mooring.cli.cluster import ChosenCluster, chosen_kubeconfig, cluster_flags
from mooring.cli.join import flags
from mooring.cli.join.flags import Given, config_option, elapsed, host_name, read_config
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import DURATION, REPORTED, output_option
from mooring.cli.printing import echo, print_table, redacted
from mooring.client.files import read_limited
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.trust.discovery.pins import parse_pin
from mooring.trust.discovery.trustedcluster import TrustedCluster, trusted_cluster
from mooring.trust.doctor import SKIPPED, Diagnosis, FinishedStep
from mooring.trust.joinconfiguration import ByFile, ByToken, JoinSettings
from mooring.trust.kubeconfig import address_of, discovery_cluster, flatten_cluster, resolve_paths
from mooring.trust.kubeconfigtext import parse_kubeconfig
from mooring.trust.nodename import choose_node_name

FIELDS = ("address", "token", "discovery_token_ca_cert_hash", "discovery_file", "node_name", "root")
"""Settings of a join that this command takes, in the order of its help."""
_DECLARED = {one.field: one for one in JoinSettings.declared()}
LONGEST_TIMEOUT = timedelta(minutes=5)


@click.command("doctor")
@settings_options([_DECLARED[field] for field in FIELDS])
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
@cluster_flags
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
    data_dir: str | None,
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
        kubeconfig = chosen_kubeconfig(kubeconfig, data_dir)
        chosen = ChosenCluster(kubeconfig, context_name, timeout, SystemClock())
        context.exit(clusterrisks.report(chosen, accept, output))
    if not timedelta() < timeout <= LONGEST_TIMEOUT:
        raise click.UsageError("--timeout must be longer than 0, and at most 5m")
    given = Given(context)
    given.add(read_config(given))
    options = replace(_options(given), timeout=timeout.total_seconds())
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
    for name in FIELDS if is_cluster else ("accept", "kubeconfig", "context_name", "data_dir"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "ADDRESS" if name == "address" else "--" + name.removesuffix("_name").replace("_", "-")
            flag = "--node-name" if name == "node_name" else flag
            raise click.UsageError(f"{flag} {'is not for' if is_cluster else 'needs'} --cluster")


def _options(given: Given) -> DoctorOptions:
    """Return what the flags, variables and the file say. Raises UsageError, ConfigError."""
    settings = given.read(JoinSettings)
    root = Path(settings.root).absolute()
    here, name = host_name(), ""
    with suppress(ConfigError):
        name = choose_node_name("", here, "")
    if settings.node_name:
        with given.explained("node-name"):
            settings = replace(settings, node_name=choose_node_name(settings.node_name, here, ""))
    options = DoctorOptions(addresses=settings.address, node_name=settings.node_name, host_name=name, root=root)
    has_token = bool(settings.token or settings.discovery_token or settings.tls_bootstrap_token)
    if settings.discovery_file:
        with given.explained():
            plan = replace(settings, allow_discovery_credentials=True).plan(here)
        if not isinstance(plan.discovery, ByFile):
            raise click.UsageError("--discovery-file: save the document at the URL in a file, and name the file")
        return replace(options, document=_document(plan.discovery.path), token=plan.tls_token)
    if has_token:
        # A member needs no address: that of its files is as good.
        address = settings.address or tuple(address_of(one.server) for one in read_files(root).clusters)
        if not address:
            raise click.UsageError(
                "no address of a server is given, and no files of this machine name one: give ADDRESS"
            )
        with given.explained():
            plan = replace(settings, address=address, discovery_token_unsafe_skip_ca_verification=True).plan(here)
        by = plan.discovery
        assert isinstance(by, ByToken)  # there is no document
        return replace(options, addresses=by.endpoints, token=by.token, pins=by.pins, ca_hash=by.ca_hash)
    with given.explained("discovery-token-ca-cert-hash"):
        pins = tuple(parse_pin(text) for text in settings.discovery_token_ca_cert_hash)
    return replace(options, pins=pins)


def _document(path: str) -> TrustedCluster:
    """Return the cluster of a discovery document. Its credentials are not read. Raises ConfigError."""
    text = sys.stdin.buffer.read() if path == "-" else read_limited(Path(path))
    config = parse_kubeconfig(text)
    if path != "-":
        config = resolve_paths(config, str(Path(path).absolute().parent))
    cluster = flatten_cluster(discovery_cluster(config), lambda name: read_limited(Path(name)))
    return trusted_cluster(f"reading {path}", config, cluster, "file")


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
    print_table(("STEP", "RESULT", "TIME", "FOUND"), map(_row, found.steps))
    for address, one in found.others:
        echo(redacted(f"{address} was given up: {one.step.name}: {one.judgement.message}"))
    if found.healthy:
        echo(redacted(found.summary()[:1].upper() + found.summary()[1:]) + ".")


def _row(one: FinishedStep) -> tuple[str, str, str, str]:
    judgement = one.judgement
    text = f"{judgement.message}; {judgement.remedy}" if judgement.remedy else judgement.message
    time = "" if judgement.result == SKIPPED else elapsed(one.seconds)
    return one.step.name, judgement.result, time, redacted(text)


def _without_secrets(value: Any) -> Any:
    """Return a document whose texts hold nothing that looks like a secret."""
    if isinstance(value, dict):
        return {key: _without_secrets(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(one) for one in value]
    return redacted(value) if isinstance(value, str) else value
