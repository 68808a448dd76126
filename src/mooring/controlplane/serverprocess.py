"""A server from its key store to the signal that stops it: one process, or several workers (`mooring.controlplane.workers`).

Rules kept here:
* SIGTERM and SIGINT drain, and a second one ends the process at once. One line is logged when the server is ready.
* A process whose store has failed drains, too, and ends with an error, so that a service manager starts it again.
* The service manager that started the process hears of readiness and of the stop, and gets signs of life from the event loop.
* SIGHUP stops no server of one process, unless its terminal was closed, and does not reload: new connections would wait until the
  running requests have ended, for up to a minute. Workers restart without that (`mooring.controlplane.workers.serve`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from mooring.clock import SystemClock
from mooring.controlplane.addresses import cannot_listen, check_listening, check_published
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.datadirectory import only_server
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.lifecycle import RunningServer, cancelled, is_gone, process_identity, running
from mooring.controlplane.parts.foundation import Process
from mooring.controlplane.sharedkeys.start import prepare_keys
from mooring.controlplane.workers.parent import is_terminal
from mooring.controlplane.workers.serve import ReadConfig, serve_with_workers, worker_count
from mooring.errors import StorageError
from mooring.listensockets import ListenError
from mooring.servicenotifier import ServiceNotifier

log = logging.getLogger("mooring")

HANGUP_IGNORED = (
    "SIGHUP: one process does not read its flags and its configuration file again; restart it, or run it with --workers 2, which "
    "restarts its workers one after the other"
)

OnReady = Callable[[RunningServer], None]


def serve(config: ServerConfig, on_ready: OnReady | None = None, read_config: ReadConfig | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises MooringError when the server cannot start.

    `read_config` reads the configuration again, for a restart of the workers; by default it stays.
    """
    notifier = ServiceNotifier.of_environment()
    # First of all: a second server on the directory must change nothing in it.
    with only_server(Path(config.data_dir)):
        # Before the keys: what cannot work is not written to admin.conf.
        check_published(config)
        if (count := worker_count(config)) > 1:
            read_again, announce = read_config or (lambda: config), on_ready or (lambda server: None)
            serve_with_workers(config, count, read_again, announce, notifier)
            return
        # Before the keys, too: a start that fails must not have published the address.
        check_listening(config)
        # In a loop of its own, which has ended before the one that serves begins: the store is opened again there.
        prepared = prepare_keys(config, SystemClock(), secrets.token_bytes)
        uvloop.run(serve_until_signal(config, prepared.key_store, on_ready, notifier))


async def serve_until_signal(
    config: ServerConfig,
    key_store: KeyStore,
    on_ready: OnReady | None = None,
    notifier: ServiceNotifier = ServiceNotifier(),
) -> None:
    """Serve on the running event loop until SIGTERM or SIGINT. Raises MooringError when the server cannot start."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def stop() -> None:
        if signalled.is_set():
            # A second signal: no drain.
            os._exit(130)
        signalled.set()

    has_terminal = is_terminal()

    def hang_up() -> None:
        if has_terminal and not is_terminal():
            signalled.set()
        else:
            log.warning(HANGUP_IGNORED)

    # Before anything is opened: a signal during the start is kept, and the server stops in order once it has started.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # nohup ignores it, and that stays so.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        alive = asyncio.create_task(notifier.keep_alive(clock), name="service manager")
        stack.push_async_callback(cancelled, alive)
        process = Process(identity=process_identity(), is_gone=is_gone)
        try:
            server = await stack.enter_async_context(running(config, key_store, clock, os.urandom, process))
        except ListenError as error:
            raise cannot_listen(error) from error
        serving = f"serving on {server.assembly.http.listener.listens_at}, reached as {config.endpoints[0].url}"
        log.info("%s", serving)
        # Only once connections are accepted: units that wait for this one connect at once.
        notifier.ready(serving)
        if on_ready is not None:
            on_ready(server)
        failure = await server.until_stopped(signalled)
        log.info("draining")
        # Before the stack closes: the drain may take a minute, which the service manager has to know.
        notifier.stopping()
    # After the drain: requests that are under way get their replies.
    if failure:
        raise StorageError(failure)
