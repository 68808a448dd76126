"""A server with several workers: how many, one of them, and the process that starts and stops them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import uvloop

from mooring.authn.host import ONCE_A_SERVER
from mooring.authn.table import PROVIDERS
from mooring.clock import SystemClock
from mooring.controlplane.addresses import cannot_listen, check_published
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.lifecycle import (
    DRAIN_SECONDS,
    FLUSH_SECONDS,
    RunningServer,
    WorkerSlot,
    WorkerSlots,
    is_gone,
    process_identity,
    running,
)
from mooring.controlplane.parts.foundation import Process
from mooring.controlplane.sharedkeys.start import in_child, prepare_keys
from mooring.controlplane.workers import pipe as words
from mooring.controlplane.workers.parent import EXIT_FAILED, Body, Limits, WorkersParent, slots_for
from mooring.controlplane.workers.pipe import WorkerPipe, beat
from mooring.errors import ConfigError, MooringError, StorageError
from mooring.listensockets import ListenError, close_all, format_addresses, listen
from mooring.server.sharedmemory import Counted
from mooring.servicenotifier import ServiceNotifier
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import AUTO, MAX_WORKERS, ServingSettings, WorkersSettings
from mooring.settings.storage import StorageSettings

# Number of workers, and of CPUs that this process may use: the CPUs that it may run on, and the quota of its control group.

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def worker_count(config: ServerConfig) -> int:
    """Return how many workers serve. A store in memory belongs to one."""
    wanted = config[WorkersSettings].workers
    if wanted != AUTO:
        return wanted
    return 1 if config[StorageSettings].in_memory else min(available_cpus(), MAX_WORKERS)


def available_cpus(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return the CPUs of the affinity mask, or fewer where a quota of cgroup v2 (`cpu.max`) allows less; a part counts as one."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not on macOS.
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota(cgroups, own))))


def _quota(cgroups: Path, own: Path) -> float:
    """Return the least quota of the control group of this process and of those above it, in CPUs; infinity without one."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return math.inf
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        return math.inf
    below = Path(path)
    return min(_quota_of(cgroups / group / "cpu.max") for group in (below, *below.parents))


def _quota_of(file: Path) -> float:
    try:
        quota, period = file.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        # No file at the root; `max` without a quota.
        return math.inf


# One worker process: a whole server on an event loop of its own, over the sockets that all workers share.
#
# Rules kept here:
# * It drains when the parent says so, when the parent has ended, after SIGTERM to itself, and when its store has failed.
#   Signals of a terminal go to the parent alone.
# * Its log lines, and its name in the list of processes, carry its number.

log = logging.getLogger("mooring")

FIRST = 1
"""Number of the first worker of a server."""
OWN_NAME = Path("/proc/self/comm")
"""Name of this process in `top` and `ps -o comm` (proc(5)), of at most 15 characters."""


def run_worker(
    config: ServerConfig,
    key_store: KeyStore,
    on_ready: Callable[[RunningServer], None],
    slot: WorkerSlot,
    pipe: WorkerPipe,
) -> int:
    """Serve until the parent ends or says so. Return the exit code."""
    _name(slot.number + FIRST)
    try:
        uvloop.run(_serve(config, key_store, on_ready, slot, pipe))
    except (MooringError, OSError) as error:
        pipe.send(words.FAILED, str(error))
        return EXIT_FAILED
    return 0


async def _serve(
    config: ServerConfig,
    key_store: KeyStore,
    on_ready: Callable[[RunningServer], None],
    slot: WorkerSlot,
    pipe: WorkerPipe,
) -> None:
    loop = asyncio.get_running_loop()
    draining = asyncio.Event()
    server: RunningServer | None = None

    def receive() -> None:
        for word, _ in pipe.receive():
            if word == words.DRAIN:
                draining.set()
            elif word == words.NEIGHBOUR_ENDED and server is not None:
                server.assembly.controllers.elector.look_now()
            elif word == words.ANNOUNCE and server is not None:
                on_ready(server)
                pipe.send(words.ANNOUNCED)
        if pipe.ended:
            loop.remove_reader(pipe.fileno())
            draining.set()

    loop.add_reader(pipe.fileno(), receive)
    loop.add_signal_handler(signal.SIGTERM, draining.set)
    process = Process(identity=process_identity(), is_gone=is_gone, share=slot.share)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(config, key_store, SystemClock(), os.urandom, process, slot))
        beat(loop, slot.share.count(Counted.BEATS))
        pipe.send(words.SERVING)
        failure = await server.until_stopped(draining)
        log.info("draining")
    if failure:
        raise StorageError(failure)


def _name(number: int) -> None:
    """Put the number of this worker in the list of processes and in front of each log line. Only the first logs `ONCE_A_SERVER`."""
    # Not on macOS.
    with suppress(OSError):
        OWN_NAME.write_text(f"mooring-{number}")

    def numbered(record: logging.LogRecord) -> bool:
        if number > FIRST and any(getattr(record, mark, False) for mark in ONCE_A_SERVER):
            return False
        record.msg = f"worker {number}: {record.msg}"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(numbered)


# A server with several workers, from its key store to the signal that stops it.
#
# Rules kept here:
# * The parent makes the keys and binds the port. It opens no store: a child takes part in the keys that servers share.
# * SIGHUP reads the configuration again for new workers. What all workers share cannot change without a new parent: the address,
#   the store and the number of workers.

STOP_SECONDS = 15.0
"""Time beyond the drain that a worker may take to close its store, before a restart goes on without it."""

ReadConfig = Callable[[], ServerConfig]
"""Reads the configuration again. Raises MooringError."""


def serve_with_workers(
    config: ServerConfig,
    count: int,
    read_config: ReadConfig,
    on_ready: Callable[[RunningServer], None],
    notifier: ServiceNotifier,
) -> None:
    """Serve with `count` workers until SIGTERM or SIGINT. Raises MooringError when the server cannot start.

    `on_ready` is called once, in one worker, when all serve.
    """
    network = config[NetworkSettings]
    try:
        sockets = listen(network.bind_address, network.secure_port)
    except ListenError as error:
        raise cannot_listen(error) from error
    slots = WorkerSlots(slots_for(count), count, sockets)

    def body_of(wanted: ServerConfig) -> Body:
        key_store = prepare_keys(wanted, SystemClock(), secrets.token_bytes, run=in_child).key_store

        def body(number: int, pipe: WorkerPipe) -> int:
            return run_worker(wanted, key_store, on_ready, slots.of(number), pipe)

        return body

    def read() -> Body:
        wanted = read_config()
        _refuse_shared_changes(config, wanted)
        check_published(wanted)
        return body_of(wanted)

    serving = f"serving on {format_addresses(sockets)} with {count} workers, reached as {config.endpoints[0].url}"

    def all_serve() -> None:
        log.info("%s", serving)
        notifier.ready(serving)

    def stopping() -> None:
        notifier.stopping()
        # Else clients would connect until the last worker has ended, and no process would accept them.
        close_all(sockets)

    for provider in PROVIDERS:
        # Modules that are imported here take memory once, and not in each worker.
        provider.load()
    delay = config[ServingSettings].shutdown_delay_duration.total_seconds()
    WorkersParent(
        count,
        body_of(config),
        read,
        all_serve=all_serve,
        notifier=notifier,
        worker_ended=slots.clear,
        stopping=stopping,
        beats=slots.beats,
        limits=Limits(drain=delay + DRAIN_SECONDS + FLUSH_SECONDS + STOP_SECONDS),
    ).run()


def _refuse_shared_changes(config: ServerConfig, wanted: ServerConfig) -> None:
    """Raise ConfigError when a setting changed that the workers share."""
    old, new = config[NetworkSettings], wanted[NetworkSettings]
    changed = {
        "bind-address": (old.bind_address, new.bind_address),
        "secure-port": (old.secure_port, new.secure_port),
        "storage": (config[StorageSettings].storage_url, wanted[StorageSettings].storage_url),
        "etcd-prefix": (config[StorageSettings].etcd_prefix, wanted[StorageSettings].etcd_prefix),
        "data-dir": (config.data_dir, wanted.data_dir),
        "workers": (config[WorkersSettings].workers, wanted[WorkersSettings].workers),
    }
    for key, (before, after) in changed.items():
        if before != after:
            raise ConfigError(f"{key}: it cannot change while the server runs; stop and start the server")
