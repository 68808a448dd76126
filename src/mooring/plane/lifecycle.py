"""Start and stop of one server process.

Rules kept here:
* A start that fails stops what it has started, in reverse order.
* A stop goes backwards: not ready → no new connections → controllers and watches end → requests drain → the store is closed.
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
from mooring.plane.compaction import compact_forever
from mooring.plane.configuration import ServerConfig
from mooring.plane.keystore import KeyStore
from mooring.plane.lastuses import record_forever
from mooring.plane.registry import open_registry
from mooring.plane.trimming import trim_forever
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings

DRAIN_SECONDS = 60.0
"""kube-apiserver drains in-flight requests for up to its request timeout (docs/protocol/health.md#shutdown)."""
FLUSH_SECONDS = 5.0
"""Time that clients then have to receive replies: 60 MB over a network of 100 Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that accepts connections."""

    assembly: Assembly
    port: int


@asynccontextmanager
async def running(
    config: ServerConfig, key_store: KeyStore, clock: Clock, entropy: Callable[[int], bytes], process: Process
) -> AsyncIterator[RunningServer]:
    """Open the store, serve, and run controllers until the block ends. Raises MooringError or OSError when the start fails."""
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(open_registry(config, clock, entropy))
        assembly = assemble(config, key_store, parts, clock, entropy, process)
        stack.push_async_callback(assembly.authentication.close)
        assembly.authentication.start()
        await assembly.first_boot.run()
        await assembly.trust_publisher.publish_client_cas()
        assembly.audit.start()
        stack.push_async_callback(assembly.audit.stop)
        stack.push_async_callback(_drain, assembly)
        stack.callback(assembly.watches.drain)
        network = config[NetworkSettings]
        port = await assembly.listener.start(network.bind_address, network.secure_port)
        stack.callback(assembly.listener.stop_accepting)
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
    return {
        "reloading": authentication.reloading.run(clock),
        "trust publisher": assembly.trust_publisher.run(),
        "controllers": assembly.elector.run(assembly.reconciler.run),
        "last uses": record_forever(authentication.last_uses, parts.registry, clock),
        "compaction": compact_forever(parts.storage, clock),
        "trimming": trim_forever(clock),
    }


async def _drain(assembly: Assembly) -> None:
    await assembly.application.drain(DRAIN_SECONDS)
    await assembly.listener.wait_until_sent(FLUSH_SECONDS)
    assembly.listener.abort_all()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
