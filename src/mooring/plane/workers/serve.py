"""A server with several workers, from its key store to the signal that stops it.

Rules kept here:
* The parent makes the keys and binds the port. It opens no store: a child takes part in the keys that servers share.
* SIGHUP reads the configuration again for new workers. What all workers share cannot change without a new parent: the address,
  the store and the number of workers.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from mooring.authn.table import PROVIDERS
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.listensockets import ListenError, close_all, format_addresses, listen
from mooring.plane.configuration import ServerConfig
from mooring.plane.listenaddress import cannot_listen, check_published
from mooring.plane.process.lifecycle import DRAIN_SECONDS, FLUSH_SECONDS, RunningServer
from mooring.plane.process.seat import Seats
from mooring.plane.sharedkeys.start import in_child, prepare_keys
from mooring.plane.workers.line import Line
from mooring.plane.workers.parent import Body, Limits, WorkersParent, seats_for
from mooring.plane.workers.worker import run_worker
from mooring.servicenotifier import ServiceNotifier
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings, WorkersSettings
from mooring.settings.storage import StorageSettings

log = logging.getLogger("mooring")

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
    seats = Seats(seats_for(count), count, sockets)

    def body_of(wanted: ServerConfig) -> Body:
        key_store = prepare_keys(wanted, SystemClock(), secrets.token_bytes, run=in_child).key_store

        def body(number: int, line: Line) -> int:
            return run_worker(wanted, key_store, on_ready, seats.of(number), line)

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
        # else clients would connect until the last worker has ended, and no process would accept them
        close_all(sockets)

    for provider in PROVIDERS:
        provider.load()  # modules that are imported here take memory once, and not in each worker
    delay = config[ServingSettings].shutdown_delay_duration.total_seconds()
    WorkersParent(
        count,
        body_of(config),
        read,
        all_serve=all_serve,
        notifier=notifier,
        worker_ended=seats.clear,
        stopping=stopping,
        beats=seats.beats,
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
