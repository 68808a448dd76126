"""Start and stop of one server process.

Rules kept here:
* A start that fails stops what it has started, in reverse order.
* A stop goes backwards: not ready → no new connections → controllers and watches end → requests of new connections arrive and
  requests drain → the store is closed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mooring.clock import Clock
from mooring.plane.assemble import Assembly, Process, assemble
from mooring.plane.background.compaction import compact_forever
from mooring.plane.background.lastuses import record_forever
from mooring.plane.background.trimming import trim_forever
from mooring.plane.configuration import ServerConfig
from mooring.plane.keystore import KeyStore
from mooring.plane.registry import open_registry
from mooring.plane.seat import Seat
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings

KUBERNETES_SERVICE = "kubernetes-service-controller"
DRAIN_SECONDS = 60.0
"""kube-apiserver drains in-flight requests for up to its request timeout (docs/protocol/health.md#shutdown)."""
FIRST_REQUEST_SECONDS = 1.0
"""Time for the first request of a connection that was accepted just before the drain; a client that has one sends it at once."""
FLUSH_SECONDS = 5.0
"""Time that clients then have to receive replies: 60 MB over a network of 100 Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that accepts connections."""

    assembly: Assembly
    port: int


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
        parts = await stack.enter_async_context(open_registry(config, clock, entropy, commits))
        assembly = assemble(config, key_store, parts, clock, entropy, process)
        stack.push_async_callback(assembly.authentication.close)
        assembly.authentication.start()
        if assembly.shared_keys is not None:
            await assembly.shared_keys.claim()
        await assembly.first_boot.run()
        await assembly.trust_publisher.publish_client_cas()
        assembly.audit.start()
        stack.push_async_callback(assembly.audit.stop)
        stack.push_async_callback(_leave, assembly)
        stack.push_async_callback(_drain, assembly)
        stack.callback(assembly.watches.drain)
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
            stack.push_async_callback(_cancel, asyncio.create_task(work, name=name))
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
    head = {"lineage head": assembly.lineage_head.run()} if assembly.lineage_head is not None else {}
    snapshots = {"snapshots": assembly.snapshots.run()} if assembly.snapshots is not None else {}
    tokens = {}
    if assembly.supervisor is not None and assembly.supervisor.tokens is not None:
        tokens = {"token files": assembly.supervisor.tokens.run(assembly.serving.root_ca, clock)}
    return {
        **head,
        **tokens,
        **rollover,
        **snapshots,
        **shared,
        **leases,
        "reloading": authentication.reloading.run(clock),
        "certificate watches": assembly.certificate_watches.run(),
        "revocation list": assembly.revocation_list.run(),
        "encryption lease": assembly.encryption_lease.run(),
        "trust publisher": assembly.trust_publisher.run(),
        "controllers": assembly.elector.run(assembly.reconciler.run),
        "last uses": record_forever(authentication.last_uses, parts.registry, clock),
        "compaction": compact_forever(parts.storage, clock),
        "trimming": trim_forever(clock),
    }


async def _leave(assembly: Assembly) -> None:
    """Publish what this worker has counted, and answer the others no more."""
    await assembly.siblings.stop()
    assembly.host_metrics.publish()


async def _drain(assembly: Assembly) -> None:
    await assembly.listener.wait_until_requested(FIRST_REQUEST_SECONDS)
    await assembly.application.drain(DRAIN_SECONDS)
    await assembly.listener.wait_until_sent(FLUSH_SECONDS)
    assembly.listener.abort_all()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
