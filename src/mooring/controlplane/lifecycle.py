"""Start and stop of one server process: its identity, its slot among the workers, and the order in which its parts end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mooring.clock import Clock
from mooring.controlplane.assemble import Assembly, assemble
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.maintenance import (
    compact_forever,
    record_certificates_forever,
    record_forever,
    trim_forever,
    verify_forever,
)
from mooring.controlplane.parts.foundation import Foundation, Process, build_audit, open_registry
from mooring.controlplane.parts.http import Http
from mooring.server.sharedmemory import Counted, SharedMemory, WorkerMemory
from mooring.server.transport.http import KEPT_SECONDS
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings
from mooring.storage import commitsignal
from mooring.storage.commitsignal import CommitSignal

# Identity of a server process among all that ever ran, for leader election: host, boot, process number and start time.


def process_identity(pid: int = 0) -> str:
    """Return `<host>_<boot>_<pid>_<start>` of a process, of this one by default, as far as /proc knows it.

    The boot carries the PID namespace: in another container of this machine the same number is another process.
    """
    pid = pid or os.getpid()
    return f"{socket.gethostname()}_{_boot()}_{pid}_{_start_time(pid)}"


def is_gone(identity: str) -> bool:
    """Return whether the process of that identity ran on this machine since its boot and has ended; False when unknown."""
    parts = identity.rsplit("_", 3)
    if len(parts) != 4 or parts[0] != socket.gethostname() or parts[1] != _boot() or not parts[2].isdigit():
        return False
    return identity != process_identity(int(parts[2]))


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str:
    """Return the start of a process in clock ticks since boot; "" when there is none, or only its entry, not yet collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if fields[0] not in ("Z", "X") else ""


# Place of one worker among those of its server: the sockets, the memory and the signals that they share.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot:
    """Place of one worker."""

    number: int
    """Index among the workers that live at the same time."""
    sockets: tuple[socket.socket, ...]
    commits: CommitSignal
    share: WorkerMemory


class WorkerSlots:
    """Everything that the workers share, made by the parent before its first fork."""

    def __init__(self, number: int, workers: int, sockets: tuple[socket.socket, ...]) -> None:
        """`workers`: how many serve, except during a restart."""
        self._sockets = sockets
        self._memory = SharedMemory(number, workers)
        self._descriptors = commitsignal.descriptors(number)

    def of(self, number: int) -> WorkerSlot:
        """Return a place. Called after the fork, in the worker."""
        return WorkerSlot(
            number=number,
            sockets=self._sockets,
            commits=CommitSignal(self._descriptors, number),
            share=self._memory.share_of(number),
        )

    def beats(self, number: int) -> int:
        """Return the heartbeats that a worker has counted."""
        return self._memory.row(Counted.BEATS)[number]

    def clear(self, number: int) -> None:
        """Forget what a worker that has ended counted. Called before another one takes its place."""
        self._memory.clear(number)


# Start and stop of one server process.
#
# Rules kept here:
# * A start that fails stops what it has started, in reverse order.
# * A stop goes backwards: not ready → controllers end → no new connections → clients are asked to use other connections, and
#   watches end → requests that are under way arrive, and requests drain → the store is closed.

KUBERNETES_SERVICE = "kubernetes-service-controller"
DRAIN_SECONDS = 60.0
"""kube-apiserver drains in-flight requests for up to its request timeout (docs/protocol/health.md#shutdown)."""
FLUSH_SECONDS = 5.0
"""Time that clients then have to receive replies: 60 MB over a network of 100 Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that accepts connections."""

    assembly: Assembly
    port: int

    async def until_stopped(self, stopped: asyncio.Event) -> str:
        """Wait until `stopped` is set, or the store has failed so that this process must end. Return the reason then, else ""."""
        storage = self.assembly.base.parts.storage
        waits = [asyncio.create_task(event.wait()) for event in (stopped, storage.failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return storage.problem if storage.failed.is_set() else ""


@asynccontextmanager
async def running(
    config: ServerConfig,
    key_store: KeyStore,
    clock: Clock,
    entropy: Callable[[int], bytes],
    process: Process,
    slot: WorkerSlot | None = None,
) -> AsyncIterator[RunningServer]:
    """Open the store, serve, and run controllers until the block ends. Raises MooringError or OSError when the start fails.

    `slot`: place among the workers of a server; None for a server of one process.
    """
    async with AsyncExitStack() as stack:
        commits = slot.commits if slot is not None else None
        audit = build_audit(config, clock, entropy, process.share)
        # First, so that it is closed last: the writes of the start and of the end are recorded.
        audit.log.start()
        stack.push_async_callback(audit.log.stop)
        registry = open_registry(config, clock, entropy, commits, audit.auditor.written)
        parts = await stack.enter_async_context(registry)
        base = Foundation(
            config=config,
            key_store=key_store,
            parts=parts,
            clock=clock,
            entropy=entropy,
            process=process,
            audit=audit,
        )
        assembly = assemble(base)
        trust, upkeep, http = assembly.trust, assembly.upkeep, assembly.http
        stack.push_async_callback(trust.authentication.close)
        # Its end is registered before its begin: a start that fails half-way is stopped, too.
        trust.authentication.start()
        # Before the first object: a store of another cluster's keys must not be written.
        if upkeep.shared_keys is not None:
            await upkeep.shared_keys.claim()
        await upkeep.first_boot.run()
        if parts.watermark is not None:
            # Before requests are served: what an older store lacks is known before anything is issued.
            await parts.watermark.judge()
        await upkeep.trust_publisher.publish_client_cas()
        await upkeep.trust_publisher.publish_serving_names()
        # The stack is left in reverse order: accepting ends, then watches, then requests drain. What is pushed first is
        # done last.
        stack.push_async_callback(_leave, http)
        stack.push_async_callback(_drain, http)
        stack.callback(http.watches.drain)
        stack.callback(http.application.leave)
        if http.supervisor is not None:
            stack.push_async_callback(http.supervisor.passwords.close)
            stack.callback(http.supervisor.tunnels.drain)
        if slot is None:
            network = config[NetworkSettings]
            port = await http.listener.start(network.bind_address, network.secure_port)
        else:
            port = http.listener.start_shared(slot.sockets)
        # After the listener has started: before that there is nothing to stop.
        stack.callback(http.listener.stop_accepting)
        http.host_metrics.publish()
        http.worker_queries.start()
        http.event_loop_lag.start()
        stack.callback(http.event_loop_lag.stop)
        # Last, so that they are cancelled first: no controller works while requests drain.
        for name, work in _background_work(assembly, clock).items():
            stack.push_async_callback(cancelled, asyncio.create_task(work, name=name))
        # Objects of the start live as long as the server: garbage collections need not visit them.
        gc.freeze()
        yield RunningServer(assembly=assembly, port=port)
        # First of the stop: `/readyz` fails, and load balancers look elsewhere during the delay, in which requests are
        # served.
        assembly.base.stopping.set()
        if delay := config[ServingSettings].shutdown_delay_duration.total_seconds():
            await clock.sleep(delay)


def _background_work(assembly: Assembly, clock: Clock) -> dict[str, Coroutine[Any, Any, None]]:
    """Return the coroutines that run beside requests, by the names of their tasks; the last one is cancelled first."""
    parts, trust, controllers = assembly.base.parts, assembly.trust, assembly.controllers
    upkeep, http = assembly.upkeep, assembly.http
    work: dict[str, Coroutine[Any, Any, None]] = {}
    if controllers.notifier is not None:
        # First: it is cancelled last, when nothing writes Events any more.
        work["notices"] = controllers.notifier.run()
    if http.supervisor is not None and http.supervisor.tokens is not None:
        work["token files"] = http.supervisor.tokens.run(trust.serving.root_ca, clock)
    if upkeep.ca_rollover is not None:
        work["rollover of the CA"] = upkeep.ca_rollover.run()
        work["renewal of certificates"] = trust.ca_renewal.run()
    if controllers.snapshots is not None:
        work["snapshots"] = controllers.snapshots.run()
    if upkeep.shared_keys is not None:
        work["shared keys"] = upkeep.shared_keys.run(clock)
    if controllers.master_leases is not None:
        plan_again = partial(controllers.reconciler.plan_again, KUBERNETES_SERVICE)
        work["master leases"] = controllers.master_leases.run(plan_again)
    if parts.format_level is not None:
        work["format level"] = parts.format_level.run(lambda: controllers.elector.leading, _stop_process)
    return {
        **work,
        "first boot": upkeep.first_boot.complete(),
        "reloading": trust.authentication.reloading.run(clock),
        "open watches": http.open_watches.run(),
        "revocation list": upkeep.revocation_list.run(),
        "expiry watch": upkeep.expiry_watch.run(),
        "lost addresses": upkeep.lost_addresses.run(clock),
        "encryption lease": upkeep.encryption_lease.run(),
        "trust publisher": upkeep.trust_publisher.run(),
        "controllers": controllers.elector.run(controllers.reconciler.run),
        "last uses": record_forever(trust.authentication.last_uses, parts.registry, clock),
        "certificate uses": record_certificates_forever(trust.authentication.certificate_uses, parts.registry, clock),
        "compaction": compact_forever(parts.storage, clock),
        "verification": verify_forever(parts.storage, clock, lambda: controllers.elector.leading),
        "trimming": trim_forever(clock),
    }


def _stop_process() -> None:
    """Stop this process as a service manager does: it drains, and its next start says why it cannot go on."""
    os.kill(os.getpid(), signal.SIGTERM)


async def _leave(http: Http) -> None:
    """Publish what this worker has counted, and answer the others no more."""
    await http.worker_queries.stop()
    http.host_metrics.publish()


async def _drain(http: Http) -> None:
    now = asyncio.get_running_loop().time
    end = now() + DRAIN_SECONDS
    # Replies that had begun did not say that the connection ends.
    for _ in range(2):
        await http.listener.wait_until_requested(KEPT_SECONDS)
        await http.application.drain(max(0.0, end - now()))
    await http.listener.wait_until_sent(FLUSH_SECONDS)
    # Clients that do not read would hold the process for ever.
    http.listener.abort_all()


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and return when it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
