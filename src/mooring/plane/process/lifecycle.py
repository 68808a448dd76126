"""Start and stop of one server process.

Rules kept here:
* A start that fails stops what it has started, in reverse order.
* The audit log is opened first and closed last: what the server writes at its start and at its end is recorded, too.
* A stop goes backwards: not ready → controllers end → no new connections → clients are asked to use other connections, and watches
  end → requests that are under way arrive, and requests drain → the store is closed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mooring.clock import Clock
from mooring.plane.assemble import Assembly, Process, assemble
from mooring.plane.background.compaction import compact_forever
from mooring.plane.background.lastuses import record_forever
from mooring.plane.background.trimming import trim_forever
from mooring.plane.background.verification import verify_forever
from mooring.plane.configuration import ServerConfig
from mooring.plane.keys.keystore import KeyStore
from mooring.plane.parts.audit import build_audit
from mooring.plane.parts.registry import open_registry
from mooring.plane.process.seat import Seat
from mooring.server.transport.http import KEPT_SECONDS
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings

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
        storage = self.assembly.parts.storage
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
    seat: Seat | None = None,
) -> AsyncIterator[RunningServer]:
    """Open the store, serve, and run controllers until the block ends. Raises MooringError or OSError when the start fails.

    `seat`: place among the workers of a server; None for a server of one process.
    """
    async with AsyncExitStack() as stack:
        commits = seat.commits if seat is not None else None
        audit = build_audit(config, clock, entropy, process.share)
        audit.log.start()
        stack.push_async_callback(audit.log.stop)
        registry = open_registry(config, clock, entropy, commits, audit.auditor.written)
        parts = await stack.enter_async_context(registry)
        assembly = assemble(config, key_store, parts, clock, entropy, process, audit)
        stack.push_async_callback(assembly.authentication.close)
        assembly.authentication.start()
        if assembly.shared_keys is not None:
            await assembly.shared_keys.claim()
        await assembly.first_boot.run()
        if parts.mark is not None:
            await parts.mark.judge()
        await assembly.trust_publisher.publish_client_cas()
        await assembly.trust_publisher.publish_serving_names()
        stack.push_async_callback(_leave, assembly)
        stack.push_async_callback(_drain, assembly)
        stack.callback(assembly.watches.drain)
        stack.callback(assembly.application.leave)
        if assembly.supervisor is not None:
            stack.push_async_callback(assembly.supervisor.passwords.close)
            stack.callback(assembly.supervisor.tunnels.drain)
        if seat is None:
            network = config[NetworkSettings]
            port = await assembly.listener.start(network.bind_address, network.secure_port)
        else:
            port = assembly.listener.start_shared(seat.sockets)
        stack.callback(assembly.listener.stop_accepting)
        assembly.host_metrics.publish()
        assembly.siblings.start()
        assembly.event_loop_lag.start()
        stack.callback(assembly.event_loop_lag.stop)
        for name, work in _background_work(assembly, clock).items():
            stack.push_async_callback(cancelled, asyncio.create_task(work, name=name))
        gc.freeze()  # objects of the start live as long as the server: garbage collections need not visit them
        yield RunningServer(assembly=assembly, port=port)
        assembly.stopping.set()
        if delay := config[ServingSettings].shutdown_delay_duration.total_seconds():
            await clock.sleep(delay)


def _background_work(assembly: Assembly, clock: Clock) -> dict[str, Coroutine[Any, Any, None]]:
    """Return the coroutines that run beside requests, by the names of their tasks; the last one is cancelled first."""
    parts, authentication = assembly.parts, assembly.authentication
    rollover = {}
    if assembly.ca_rollover is not None:
        rollover = {
            "rollover of the CA": assembly.ca_rollover.run(),
            "renewal of certificates": assembly.ca_renewal.run(),
        }
    shared = {"shared keys": assembly.shared_keys.run(clock)} if assembly.shared_keys is not None else {}
    leases = {}
    if assembly.master_leases is not None:
        leases = {
            "master leases": assembly.master_leases.run(lambda: assembly.reconciler.plan_again(KUBERNETES_SERVICE))
        }
    levels = {}
    if parts.format_level is not None:
        levels = {"format level": parts.format_level.run(lambda: assembly.elector.leading, _stop_process)}
    snapshots = {"snapshots": assembly.snapshots.run()} if assembly.snapshots is not None else {}
    tokens = {}
    if assembly.supervisor is not None and assembly.supervisor.tokens is not None:
        tokens = {"token files": assembly.supervisor.tokens.run(assembly.serving.root_ca, clock)}
    return {
        **tokens,
        **rollover,
        **snapshots,
        **shared,
        **leases,
        **levels,
        "first boot": assembly.first_boot.complete(),
        "reloading": authentication.reloading.run(clock),
        "open watches": assembly.open_watches.run(),
        "revocation list": assembly.revocation_list.run(),
        "expiry watch": assembly.expiry_watch.run(),
        "encryption lease": assembly.encryption_lease.run(),
        "trust publisher": assembly.trust_publisher.run(),
        "controllers": assembly.elector.run(assembly.reconciler.run),
        "last uses": record_forever(authentication.last_uses, parts.registry, clock),
        "compaction": compact_forever(parts.storage, clock),
        "verification": verify_forever(parts.storage, clock, lambda: assembly.elector.leading),
        "trimming": trim_forever(clock),
    }


def _stop_process() -> None:
    """Stop this process as a service manager does: it drains, and its next start says why it cannot go on."""
    os.kill(os.getpid(), signal.SIGTERM)


async def _leave(assembly: Assembly) -> None:
    """Publish what this worker has counted, and answer the others no more."""
    await assembly.siblings.stop()
    assembly.host_metrics.publish()


async def _drain(assembly: Assembly) -> None:
    now = asyncio.get_running_loop().time
    end = now() + DRAIN_SECONDS
    for _ in range(2):  # replies that had begun did not say that the connection ends
        await assembly.listener.wait_until_requested(KEPT_SECONDS)
        await assembly.application.drain(max(0.0, end - now()))
    await assembly.listener.wait_until_sent(FLUSH_SECONDS)
    assembly.listener.abort_all()


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and return when it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
