"""Diagnosis of a join that failed: its error ends with the line of `mooring doctor`, when that says more.

Rules kept here (docs/find-what-is-broken.md#after-a-join-that-failed):
* The steps of the doctor run with the settings of the join, and write nothing.
* A diagnosis ends within SECONDS. However it ends, the error of the join and its exit code stay.
* A join that a person or the server refused is not diagnosed: its error says why.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path

from mooring.agent.doctor.examination import DoctorOptions
from mooring.agent.doctor.run import AT_ONCE, diagnose
from mooring.agent.join import JoinOptions, read_named_file
from mooring.agent.k3s.membership import AgentPlan
from mooring.agent.steps import JoinError
from mooring.client.files import MAX_READ, read_limited
from mooring.client.http.requests import drive_notifying, fetch
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import Polling
from mooring.trust.discovery.file import document_cluster, fetch_document
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.doctor import FinishedStep
from mooring.trust.httpexchange import SHORTEST_WAIT
from mooring.trust.joinconfiguration import STDIN, ByAddress, ByFile, ByUrl, JoinPlan
from mooring.trust.k3s.refusals import CredentialRefusedError, NodeRefusedError
from mooring.trust.kubeconfig import address_of

SECONDS = 10.0
"""Time limit of a diagnosis: a person waits for the error."""
WAITS = 4
"""Waits in a row before a step is known to be broken: name, connection, handshake, and a request in plain HTTP."""


class DiagnosedJoinError(JoinError):
    """A join failed, and the doctor found the broken step. `reason` is without it."""

    def __init__(self, error: JoinError, found: FinishedStep) -> None:
        super().__init__(error.step, f"{error.reason}; mooring doctor: {found.sentence}")
        self.reason = error.reason
        self.found = found


@contextmanager
def diagnosed(choose_options: Callable[[DoctorOptions], Awaitable[DoctorOptions]]) -> Iterator[None]:
    """Raise DiagnosedJoinError in place of the error of a join, when the doctor finds more.

    `choose_options` adds the settings of the join to options of the doctor.
    """
    try:
        yield
    except JoinError as error:
        if (found := _examine(error, choose_options)) is None:
            raise
        raise DiagnosedJoinError(error, found) from error.__cause__


def _examine(
    error: JoinError, choose_options: Callable[[DoctorOptions], Awaitable[DoctorOptions]]
) -> FinishedStep | None:
    """Return the broken step that says more than the error; None without one, and when the time is over."""
    if not _may_be_explained(error):
        return None

    async def run() -> FinishedStep | None:
        async with asyncio.timeout(SECONDS):
            options = await choose_options(DoctorOptions(timeout=SECONDS / WAITS))
            seconds = max(SHORTEST_WAIT, options.timeout / max(1, ceil(len(options.addresses) / AT_ONCE)))
            found = await diagnose(replace(options, timeout=seconds), SystemClock())
            return found.cause_beyond(str(error))

    try:
        return asyncio.run(run())
    except (Exception, KeyboardInterrupt):
        return None


def _may_be_explained(error: JoinError) -> bool:
    """Return whether the network, the server, or the trust in it may be the cause, and no refusal."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, DiscoveryError):
        cause = cause.__cause__
    return cause is not None and not isinstance(cause, CredentialRefusedError | NodeRefusedError)


async def with_join(options: DoctorOptions, plan: JoinPlan | None, join: JoinOptions) -> DoctorOptions:
    """Return the options for a join kubeadm's way; without a plan those of a member. Raises ConfigError, PeerError."""
    options = replace(options, root=Path(join.settings.root), machine=join.machine)
    if plan is None:
        return options
    if isinstance(plan.discovery, ByFile) and plan.discovery.path == STDIN:
        # A terminal would wait for a person.
        raise ConfigError("the discovery document on standard input is read once")
    return await with_plan(replace(options, node_name=plan.node_name), plan)


async def with_plan(options: DoctorOptions, plan: JoinPlan) -> DoctorOptions:
    """Return the options with what a plan knows of the cluster. Raises ConfigError, PeerError."""
    by = plan.discovery
    if isinstance(by, ByAddress):
        options = replace(options, addresses=by.endpoints, token=by.token, pins=by.pins, ca_hash=by.ca_hash)
        return replace(options, tls_token=plan.tls_token, identity=plan.identity)
    document = await _document(by, options.timeout)
    return replace(options, document=document, token=plan.tls_token, identity=plan.identity)


async def with_k3s_join(options: DoctorOptions, plan: AgentPlan) -> DoctorOptions:
    """Return the options for a join k3s's way. Raises ConfigError."""
    settings = plan.settings
    return replace(
        options,
        addresses=tuple(map(address_of, settings.server)),
        k3s_token=plan.token.read(),
        is_k3s_way=True,
        node_name=settings.node_name,
        root=Path(settings.root),
        data_dir=settings.data_dir,
        machine=plan.machine,
    )


async def _document(by: ByFile | ByUrl, seconds: float) -> TrustedCluster:
    """Return the cluster of a discovery document, whose credentials are not read. Raises ConfigError, PeerError."""
    if isinstance(by, ByFile):
        return _read_document(by.path)
    clock, exchange = SystemClock(), fetch_document(by.url, Polling(attempts=1, total=seconds))
    return document_cluster(await drive_notifying(exchange, partial(fetch, clock=clock), clock.sleep))


def _read_document(path: str) -> TrustedCluster:
    if path == STDIN:
        return document_cluster(sys.stdin.buffer.read(MAX_READ), read_named_file)
    return document_cluster(read_limited(Path(path)), read_named_file, str(Path(path).absolute().parent))
