"""Connection of a command to a cluster: the kubeconfig, one client for one run, retries, and the output of deletions."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from mooring.api.paths import GROUP
from mooring.cli.options.flags import DURATION, Command, default_data_dir, kubeconfig_option, options_of
from mooring.cli.printing import echo, print_document, redacted
from mooring.client import kubeconfigfiles
from mooring.client.cluster import ClusterClient, connect
from mooring.client.files import home
from mooring.client.serverversion import NotMooringError, other_program
from mooring.clock import Clock, SystemClock
from mooring.duration import format_duration
from mooring.errors import (
    InternalServerError,
    MooringError,
    PeerError,
    RequestTimeoutError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import (
    BalancerAnswerError,
    CertificateError,
    ClockSkewError,
    EndpointDownError,
    NotKubernetesError,
    NotTlsError,
)
from mooring.trust.kubeconfig import Selected

# Connection of a command to a cluster: the kubeconfig, one client for one run, and retries.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands,
# docs/protocol/discovery-and-join.md#objects-that-join-reads):
# * While a server cannot be reached or is not ready, a request is repeated every 500 ms, up to `--timeout` (1 m). A refusal is
#   final at once. The first failure is printed.
# * A refused connection is final at once, as for kubectl: no program listens there. With `--timeout` on the command line, and after
#   the server has answered the command once, it is repeated as well: someone waits for a start, or the server restarts.
# * A command that changes a cluster says on stderr which one. A command that ends something asks a person first, unless a flag
#   chose the cluster or it is that of the data directory of this machine: KUBECONFIG may name a cluster that was not meant.

T = TypeVar("T")

RETRY_SECONDS = 0.5
"""Interval, as in kubeadm."""
RETRY_FOR = timedelta(minutes=1)
"""kubeadm's `timeouts.kubernetesAPICall`."""
_ADMIN = "admin.conf"
_HAS_ANSWERED = "mooring.cluster.has-answered"
"""Entry of click's context once a server has answered the command."""
_ONE_CLUSTER = options_of(
    kubeconfig_option,
    click.option(
        "--timeout",
        type=DURATION,
        default=format_duration(RETRY_FOR),
        show_default=True,
        help="Time limit of retries while the server cannot be reached. Without the flag a refused connection is not retried.",
    ),
)
_CLUSTER_OPTIONS = options_of(
    _ONE_CLUSTER,
    click.option(
        "--data-dir",
        metavar="DIR",
        help="Data directory of a server of the cluster, whose admin.conf is used.",
    ),
)
_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask whether this is the right cluster.")
_FINAL = (NotTlsError, CertificateError, ClockSkewError, NotKubernetesError, NotMooringError)
"""Errors that a retry does not resolve."""


def selected(kubeconfig: str, context_name: str) -> Selected:
    """Return the cluster and user that the flags mean. Raises ConfigError."""
    return kubeconfigfiles.load(kubeconfig, context_name, defaults=default_kubeconfigs())


class Effect(Enum):
    """Effect of a command on a cluster."""

    READS = "reads"
    CHANGES = "changes"
    """The command says which cluster it talks to."""
    ENDS = "ends"
    """The command takes something away, and asks a person first whether this is the right cluster."""


@dataclass
class ChosenCluster:
    """Cluster that the flags of a command choose, and how long its requests are repeated."""

    kubeconfig: str
    context_name: str
    timeout: timedelta
    clock: Clock
    effect: Effect = Effect.READS
    yes: bool = False
    """Do not ask."""
    _is_announced: bool = field(default=False, init=False)

    @cached_property
    def selected(self) -> Selected:
        """The cluster and the user. The kubeconfig is read once, since it may be a pipe. Raises ConfigError."""
        return selected(self.kubeconfig, self.context_name)

    def with_effect(self, effect: Effect) -> ChosenCluster:
        """Return the same cluster for a command with another effect."""
        return replace(self, effect=effect)

    def run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """Run `work` with a client and return its result. The client is closed afterwards. Raises Abort when a person says no."""
        if self.effect is not Effect.READS and not self._is_announced:
            self._announce()
        return run(self.selected, self.clock, work)

    def _announce(self) -> None:
        """Say which cluster it is, and ask when that was not chosen for this command."""
        # Before the question: a command that runs several times asks once.
        self._is_announced = True
        echo(f"On {self.selected.cluster.server} as {self.selected.user.name}:", err=True)
        # Who names the cluster has chosen it for this command.
        is_chosen = bool(self.yes or self.kubeconfig or self.context_name)
        if self.effect is Effect.ENDS and not is_chosen and sys.stdin.isatty() and not _is_of_data_dir(self.selected):
            click.confirm("Is this the right cluster?", err=True, abort=True)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `call`, repeated for at most `--timeout` while it fails with a transient error."""
        return await retry(call, self.clock, self.timeout)

    def run_with_retries(self, call: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """Return the result of `call`, repeated as by `retry`, with a client."""
        return self.run(lambda client: self.retry(lambda: call(client)))


def cluster_options(command: Command) -> Command:
    """Add the flags of a command that reads from a cluster, which it gets as the argument `chosen`."""
    return _CLUSTER_OPTIONS(_with_cluster(command, Effect.READS))


def one_cluster_options(command: Command) -> Command:
    """Add the flags of a command that has a `--data-dir` of its own."""
    return _ONE_CLUSTER(_with_cluster(command, Effect.READS, own_data_dir=True))


def changing_options(command: Command) -> Command:
    """Add the flags of a command that changes a cluster."""
    return _CLUSTER_OPTIONS(_with_cluster(command, Effect.CHANGES))


def ending_options(command: Command) -> Command:
    """Add the flags of a command that ends something, with `--yes`."""
    return options_of(_CLUSTER_OPTIONS, _YES)(_with_cluster(command, Effect.ENDS))


def _with_cluster(command: Command, effect: Effect, *, own_data_dir: bool = False) -> Command:
    @wraps(command)
    def with_cluster(*args: Any, kubeconfig: str, context_name: str, timeout: timedelta, **values: Any) -> Any:
        yes = bool(values.pop("yes", False)) if effect is Effect.ENDS else False
        data_dir = None if own_data_dir else values.pop("data_dir")
        kubeconfig = chosen_kubeconfig(kubeconfig, data_dir)
        chosen = ChosenCluster(kubeconfig, context_name, timeout, SystemClock(), effect, yes)
        return command(*args, chosen=chosen, **values)

    return with_cluster


def chosen_kubeconfig(kubeconfig: str, data_dir: str | None) -> str:
    """Return the kubeconfig that `--kubeconfig` and `--data-dir` name; "" for the default. Raises UsageError."""
    if data_dir is None:
        return kubeconfig
    if not data_dir:
        raise click.UsageError("--data-dir: the directory is not named; leave the flag out for the default")
    if kubeconfig:
        raise click.UsageError("give --kubeconfig or --data-dir, not both")
    return str(Path(data_dir) / _ADMIN)


def default_kubeconfigs() -> tuple[Path, ...]:
    """Return the paths of a kubeconfig when neither a flag nor KUBECONFIG names one."""
    return kubeconfigfiles.default_paths(home(), _data_dir())


def _data_dir() -> Path:
    return Path(os.environ.get("MOORING_DATA_DIR") or default_data_dir())


def _is_of_data_dir(chosen: Selected) -> bool:
    """Return True when the cluster is that of the data directory of this machine: its admin.conf names the same CA."""
    try:
        own = kubeconfigfiles.load(str(_data_dir() / _ADMIN))
    except MooringError:
        return False
    return own.cluster.ca_pem == chosen.cluster.ca_pem


def run(chosen: Selected, clock: Clock, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Run `work` with a client and return its result. The client is closed afterwards."""

    # Not as the result of the task: at its end asyncio.run makes a text of the complete result and drops it (CPython's
    # signal.signal compares the handler of SIGINT with an enum).
    results: list[T] = []

    async def session() -> None:
        async with connect(chosen, clock) as client:
            results.append(await work(client))

    try:
        asyncio.run(session())
    except UnauthorizedError as error:
        raise PeerError(
            f'{chosen.cluster.server} does not accept the credentials of user "{chosen.user.name}" in the kubeconfig: they may '
            "have expired, or be of another cluster; name another kubeconfig with --kubeconfig, or renew this one"
            + explained_by(error.audit_id)
        ) from None
    return results[0]


async def not_served(client: ClusterClient, plural: str, *, controller: str = "") -> PeerError:
    """Return the error for a server without a kind of Mooring's. `controller`: one to choose by name, whose kind it is."""
    kind = f"{plural}.{GROUP}"
    if program := await other_program(client):
        flags = f" --controllers='*,{controller}'" if controller else ""
        return NotMooringError(
            f"{client.server} is {program}, not Mooring, and does not serve {kind}: apply what mooring controllers "
            f"manifests{flags} prints"
        )
    return PeerError(f"{client.server} does not serve {kind}: its version is older than this command")


def is_unreadable(error: MooringError) -> bool:
    """Return True for the answer that a stored object cannot be read, in the words of kube-apiserver."""
    return isinstance(error, InternalServerError) and "unable to transform key" in error.message


def is_transient(error: MooringError) -> bool:
    """Return True when a retry may succeed. An object that cannot be read waits for a person."""
    if is_unreadable(error):
        return False
    if isinstance(error, PeerError):
        return isinstance(error, BalancerAnswerError) or not isinstance(error, _FINAL)
    return isinstance(error, InternalServerError | RequestTimeoutError | ServiceUnavailableError)


def _is_down(error: MooringError) -> bool:
    """Return True for a refused connection that the command does not wait out."""
    context = click.get_current_context(silent=True)
    return (
        isinstance(error, EndpointDownError)
        and error.is_refused
        and context is not None
        and context.get_parameter_source("timeout") is ParameterSource.DEFAULT
        and _HAS_ANSWERED not in context.meta
    )


async def retry(call: Callable[[], Awaitable[T]], clock: Clock, limit: timedelta) -> T:
    """Return the result of `call`, repeated while it fails with a transient error. Raises the last error after `limit`."""
    deadline = clock.monotonic() + limit.total_seconds()
    reported = False
    while True:
        try:
            result = await call()
        except MooringError as error:
            if not is_transient(error) or _is_down(error) or clock.monotonic() + RETRY_SECONDS > deadline:
                raise
            if not reported:
                reported = True
                echo(f"Trying again for {format_duration(limit)}: {redacted(str(error))}", err=True)
        else:
            if (context := click.get_current_context(silent=True)) is not None:
                context.meta[_HAS_ANSWERED] = True
            return result
        await clock.sleep(RETRY_SECONDS)


# Output of commands that delete objects: a line for each when it is done, or one document at the end.
#
# Rules kept here: the document lists what was deleted, also when a later deletion fails.


@contextmanager
def printed_deletions(form: str, *, dry_run: bool = False) -> Iterator[Callable[[str, str], None]]:
    """Yield the function that takes the name of a deleted object and its line of text."""
    deleted: list[str] = []

    def report(name: str, line: str) -> None:
        deleted.append(name)
        if form in ("text", "name"):
            echo(line if form == "text" else name)

    try:
        yield report
    finally:
        if form in ("json", "yaml"):
            print_document({"kind": "DeleteResult", "dryRun": dry_run, "deleted": deleted}, form)
