"""How commands talk to a cluster: one client for one run, and the patience of kubeadm.

Source: docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands, docs/protocol/discovery-and-join.md#objects-that-join-reads.

Rules kept here: while a server cannot be reached or is not ready it is asked again every 500 ms, up to
`--timeout` (1 m); a refusal is final at once. The first failure is told, so that nobody waits without knowing why.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from mooring.cli.options.flags import DURATION
from mooring.cli.options.machine import default_data_dir
from mooring.cli.printing.output import echo
from mooring.cli.printing.redaction import redacted
from mooring.client import kubeconfigfiles
from mooring.client.cluster import ClusterClient, connect
from mooring.client.serverversion import NotMooringError
from mooring.clock import Clock
from mooring.duration import format_duration
from mooring.errors import (
    InternalServerError,
    MooringError,
    PeerError,
    RequestTimeoutError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from mooring.trust.discovery.errors import CertificateError, ClockSkewError, NotKubernetesError, NotTlsError
from mooring.trust.kubeconfig.model import Selected

P = ParamSpec("P")
T = TypeVar("T")

RETRY_EVERY = 0.5
"""Seconds: kubeadm's interval."""
RETRY_FOR = timedelta(minutes=1)
"""kubeadm's `timeouts.kubernetesAPICall`."""
_AUDIT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
"""What is repeated of an id that a server made."""
_LASTING = (NotTlsError, CertificateError, ClockSkewError, NotKubernetesError, NotMooringError)
"""What asking again does not mend."""


def timeout_option(function: Callable[P, T]) -> Callable[P, T]:
    """Add `--timeout`."""
    return click.option(
        "--timeout", type=DURATION, default=format_duration(RETRY_FOR), show_default=True,
        help="How long to ask again while the server cannot be reached.",
    )(function)  # fmt: skip


def selected(kubeconfig: str, context_name: str) -> Selected:
    """The cluster and user that the flags mean. Raises ConfigError."""
    return kubeconfigfiles.load(kubeconfig, context_name, defaults=default_kubeconfigs())


def default_kubeconfigs() -> tuple[Path, ...]:
    """Where a kubeconfig is looked for that nobody names."""
    data_dir = Path(os.environ.get("MOORING_DATA_DIR") or default_data_dir())
    return kubeconfigfiles.default_paths(Path.home(), data_dir)


def run(chosen: Selected, clock: Clock, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """What `work` returns, given a client that is closed afterwards."""

    async def session() -> T:
        async with connect(chosen, clock) as client:
            return await work(client)

    try:
        return asyncio.run(session())
    except UnauthorizedError as error:
        raise PeerError(
            f'{chosen.cluster.server} does not accept the credentials of user "{chosen.user.name}" in the kubeconfig: they may '
            "have expired, or be of another cluster; name another kubeconfig with --kubeconfig, or renew this one"
            + _where_the_reason_is(error.audit_id)
        ) from None


def _where_the_reason_is(audit_id: str) -> str:
    """For who may ask; "" when the server gave no id that can be repeated."""
    if not _AUDIT_ID.fullmatch(audit_id):
        return ""
    return f"; whoever runs a Mooring server learns the reason with: mooring auth explain {audit_id}"


def is_transient(error: MooringError) -> bool:
    """Whether asking again might help."""
    if isinstance(error, PeerError):
        return not isinstance(error, _LASTING)
    return isinstance(error, InternalServerError | RequestTimeoutError | ServiceUnavailableError)


async def retry(ask: Callable[[], Awaitable[T]], clock: Clock, limit: timedelta) -> T:
    """What `ask` returns, asked again while it fails in a way that may pass. Raises the last error when time is up."""
    deadline = clock.monotonic() + limit.total_seconds()
    told = False
    while True:
        try:
            return await ask()
        except MooringError as error:
            if not is_transient(error) or clock.monotonic() + RETRY_EVERY > deadline:
                raise
            if not told:
                told = True
                echo(f"Trying again for {format_duration(limit)}: {redacted(str(error))}", err=True)
        await clock.sleep(RETRY_EVERY)
