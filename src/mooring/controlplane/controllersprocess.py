"""A process that runs controllers against any Kubernetes API server, with its health and metrics over plain HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import uvloop
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.files import check_memory_files
from mooring.client.serverversion import read_version
from mooring.clock import Clock, SystemClock
from mooring.controllers import standalonetable
from mooring.controllers.table import build, without_effect
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.lifecycle import is_gone, process_identity
from mooring.controlplane.notifier import NoticeMetrics, Notifier, notifier_of
from mooring.controlplane.signingkeys import FollowedPolicy, SignerAuthorities
from mooring.errors import ConfigError, ForbiddenError, MooringError
from mooring.listensockets import ListenError, bound_port, listen
from mooring.reconcile.leaderelection import Election, LeaderElector
from mooring.reconcile.remote import RemoteApi
from mooring.reconcile.standalonecontrollers import MANIFESTS, StandaloneControllers
from mooring.settings.controllers import StandaloneSettings
from mooring.settings.signing import ApprovalSettings, SigningSettings
from mooring.trust.kubeconfig import Selected
from mooring.trust.notices import NoticeSettings

# Health and metrics of a process without an API server, over plain HTTP.
#
# Rules kept here:
# * GET of `/healthz`, `/livez` and `/readyz` answers 200 or 500 with one line for each check, and `/metrics` the metrics. Nothing
#   else is served, and nothing secret.
# * `/livez` has the checks that a restart of the process can mend. An API server that is away is none: the process waits for it.
# * One request a connection. A request has 5 s and 8 KiB; the 33rd connection at a time is closed.

MAX_HEAD = 8 << 10
"""Bytes of a request: probes and scrapers send a tenth of this."""
SECONDS = 5.0
"""Time of one request."""
MAX_CONNECTIONS = 32
"""Connections at a time; a kubelet and a few scrapers use one each."""
LIVE_PATH = "/livez"
HEALTH_PATHS = ("/healthz", LIVE_PATH, "/readyz")

Checks = Mapping[str, Callable[[], str]]
"""Checks by name. Each returns the reason of its failure, or ""."""


class HealthServer:
    """Serves checks and metrics at one address."""

    def __init__(self, live: Checks, ready: Checks, metrics: Callable[[], bytes]) -> None:
        """`live` are the checks of every path, `ready` those of the others than /livez. `metrics` returns Prometheus text."""
        self._live = live
        self._every = {**live, **ready}
        self._metrics = metrics
        self._connections = 0
        self._servers: list[asyncio.Server] = []

    async def start(self, address: str, port: int) -> int:
        """Listen at an IP address, and return the port. Raises ListenError."""
        sockets = listen(address, port)
        bound = bound_port(sockets)
        for listening in sockets:
            self._servers.append(await asyncio.start_server(self._serve, sock=listening, limit=MAX_HEAD))
        return bound

    async def stop(self) -> None:
        """Close the listening sockets; responses that are being sent may end."""
        while self._servers:
            self._servers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            # Beyond it, a connection is closed at once: slow clients hold no more than these.
            if self._connections <= MAX_CONNECTIONS:
                async with asyncio.timeout(SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The client is gone, too slow, or sends no request.
            pass
        finally:
            self._connections -= 1
            writer.close()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        status, body, media_type = "404 Not Found", b"not found\n", "text/plain"
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", b"only GET\n"
        elif path in HEALTH_PATHS:
            checks = self._live if path == LIVE_PATH else self._every
            failures = {name: failure for name, check in checks.items() if (failure := check())}
            lines = [f"[-]{name} failed: {failures[name]}" if name in failures else f"[+]{name} ok" for name in checks]
            status = "500 Internal Server Error" if failures else "200 OK"
            body = "\n".join((*lines, "")).encode()
        elif path == "/metrics":
            status, body, media_type = "200 OK", self._metrics(), "text/plain; version=0.0.4; charset=utf-8"
        header = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return header.encode() + (b"" if method == b"HEAD" else body)


# A process that runs controllers against any Kubernetes API server, from its settings to the signal that stops it.
#
# Rules kept here:
# * The Lease decides which of several processes works. SIGTERM and SIGINT stop the controllers, release the Lease, and end the
#   process; a second signal ends it at once.
# * Names and files are checked before the first request, and a wrong one is an error at the start. A server that cannot be
#   reached is waited for.
# * A process whose clock is wrong does not lead.

log = logging.getLogger("mooring")


MAX_SKEW = timedelta(minutes=1)
"""Difference of the clocks above which this process does not lead; the Date of a response has whole seconds."""


class ClockError(MooringError):
    """This machine's clock is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneConfig:
    """Checked configuration of the process."""

    settings: StandaloneSettings
    signing: SigningSettings
    approval: ApprovalSettings
    cluster: Selected
    notices: NoticeSettings


def check(settings: StandaloneSettings, signing: SigningSettings) -> None:
    """Raise ConfigError for names of controllers that do not exist, and for a signer without a CA. Opens nothing."""
    if standalonetable.SIGNER in standalonetable.selected(settings.controllers) and not signing.files:
        raise ConfigError(
            "cluster-signing-cert-file: csrsigner needs it, and cluster-signing-key-file: the CA that signs certificates"
        )


def serve(config: StandaloneConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises MooringError when the process cannot start."""
    if "clientCertificate" in config.cluster.user.credentials:
        # Before anything starts: the key of the client is given to OpenSSL by such a file.
        check_memory_files()
    uvloop.run(serve_until_signal(config, SystemClock()))


async def serve_until_signal(config: StandaloneConfig, clock: Clock) -> None:
    """Run on the running event loop until SIGTERM or SIGINT. Raises MooringError when the process cannot start."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def stop() -> None:
        if signalled.is_set():
            # A second signal: the Lease is not released.
            os._exit(130)
        signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with running(config, clock, os.urandom):
        await signalled.wait()
        log.info("stopping")


@asynccontextmanager
async def running(config: StandaloneConfig, clock: Clock, entropy: Callable[[int], bytes]) -> AsyncIterator[None]:
    """Run the controllers whenever this process holds the Lease, until the block ends. Raises MooringError."""
    settings = config.settings
    reloading = Reloading()
    async with connect(config.cluster, clock) as client:
        elector = LeaderElector(LeaseApi(client), clock, process_identity(), is_gone, _election(settings))
        notifier = notifier_of(config.notices, config.cluster.cluster.server, reloading, clock)
        controllers = _controllers(
            config,
            client,
            reloading,
            clock,
            entropy,
            lambda: elector.may_write or not settings.leader_elect,
            notifier.add if notifier is not None else lambda event: None,
        )
        work = elector.run(controllers.run) if settings.leader_elect else _run_always(controllers, clock)
        tasks = [asyncio.create_task(work, name="controllers"), asyncio.create_task(reloading.run(clock), name="files")]
        if notifier is not None:
            tasks.append(asyncio.create_task(notifier.run(), name="notices"))
        probe = ApiServerProbe(client, clock, _election(settings))
        if not settings.leader_elect:
            tasks.append(asyncio.create_task(probe.run(), name="probe"))
        health = HealthServer(
            {task.get_name(): partial(_end_of, task) for task in tasks},
            _readiness(elector, probe, controllers),
            partial(_metrics, elector, controllers, notifier),
        )
        try:
            if settings.healthz_port:
                await _listen(health, settings)
            log.info("%s: %s", config.cluster.cluster.server, ", ".join(standalonetable.selected(settings.controllers)))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Last: probes are answered until the controllers have ended.
            await health.stop()


class LeaseApi(RemoteApi):
    """Access to the Lease for a process whose clock agrees with the server's. Controllers judge expiry by their own clock."""

    def __init__(self, client: ClusterClient) -> None:
        super().__init__(client)
        self._of = client

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        """Read the Lease. Raises ClockError while this machine's clock is wrong, so that another process leads."""
        try:
            return await super().get(plural, namespace, name)
        finally:
            # Also after an error: the Date of an error response tells the time of the server, too.
            self._check_clock()

    def _check_clock(self) -> None:
        server, here = self._of.server_time or (None, None)
        if server is None or here is None or abs(here - server) <= MAX_SKEW:
            return
        seconds, side = round(abs(here - server).total_seconds()), "behind" if here < server else "ahead of"
        raise ClockError(
            f"this machine's clock is {seconds} s {side} the server's: set it by NTP; the controllers would delete tokens and date "
            "certificates by it"
        )


class ApiServerProbe:
    """Requests to the API server in a process without a Lease. With one, the renewals show whether the server answers."""

    def __init__(self, client: ClusterClient, clock: Clock, election: Election) -> None:
        self._client = client
        self._clock = clock
        self._election = election
        self.failure = ""
        """Message of the last request; "" when the server answered it."""

    async def run(self) -> None:
        """Request the version with the period and the deadline of a Lease, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._election.renew_seconds):
                    await read_version(self._client)
                self.failure = ""
            except ForbiddenError:
                # An answer, although /version is not for this user.
                self.failure = ""
            except TimeoutError:
                self.failure = "no answer in time"
            except MooringError as error:
                self.failure = str(error)
            await self._clock.sleep(self._election.retry_seconds)


def _controllers(
    config: StandaloneConfig,
    client: ClusterClient,
    reloading: Reloading,
    clock: Clock,
    entropy: Callable[[int], bytes],
    may_write: Callable[[], bool],
    event_written: Callable[[Obj], None],
) -> StandaloneControllers:
    signing = config.signing
    settings = standalonetable.settings(
        SignerAuthorities(signing, standalonetable.no_authority, reloading).authority_for,
        signing.cluster_signing_duration,
        config.settings.node_monitor_grace_period,
        config.approval.inventory_required,
        FollowedPolicy(signing.cluster_signing_policy_file, reloading).current,
        config.approval.node_dns_suffixes,
        config.settings.end_silent_members_after,
    )
    names = standalonetable.selected(config.settings.controllers)
    for line in without_effect(settings, names):
        log.warning("%s", line)
    built = build(settings, names)
    scopes = standalonetable.scopes_of([one.name for one in built])
    command = manifests_command(config.settings.controllers)
    return StandaloneControllers(
        built, lambda: RemoteApi(client, scopes), scopes, clock, entropy, may_write, command, event_written
    )


def manifests_command(items: Sequence[str]) -> str:
    """Return the command that prints the objects which a selection of controllers needs."""
    chosen = ",".join(items)
    return MANIFESTS if chosen == "*" else f"{MANIFESTS} --controllers={shlex.quote(chosen)}"


def _election(settings: StandaloneSettings) -> Election:
    return Election(
        namespace=settings.leader_elect_resource_namespace,
        name=settings.leader_elect_resource_name,
        lease_seconds=settings.leader_elect_lease_duration.total_seconds(),
        renew_seconds=settings.leader_elect_renew_deadline.total_seconds(),
        retry_seconds=settings.leader_elect_retry_period.total_seconds(),
    )


async def _run_always(controllers: StandaloneControllers, clock: Clock) -> None:
    """Run the controllers without a Lease; start them again when they end."""
    while True:
        try:
            await controllers.run()
        except Exception:
            log.exception("the controllers stopped; starting them again")
        await clock.sleep(Election().retry_seconds)


async def _listen(health: HealthServer, settings: StandaloneSettings) -> None:
    try:
        await health.start(settings.healthz_bind_address, settings.healthz_port)
    except ListenError as error:
        reason = (error.strerror or "").lower()
        raise ConfigError(f"healthz-port: cannot listen on {error.where}: {reason}; choose another port") from error


def _end_of(task: asyncio.Task[None]) -> str:
    """Return that a task has ended, which no task does before the process; "" while it runs."""
    return "it has ended; the process has to be started again" if task.done() else ""


def _readiness(elector: LeaderElector, probe: ApiServerProbe, controllers: StandaloneControllers) -> Checks:
    """Return the checks that need the API server."""

    def loop_failure() -> str:
        return "" if controllers.healthy else "the loop of the controllers failed; the log has the reason"

    return {
        "leaderElection": lambda: elector.failure,
        "apiServer": lambda: probe.failure,
        "controllerLoop": loop_failure,
    }


def _metrics(elector: LeaderElector, controllers: StandaloneControllers, notifier: Notifier | None) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    Gauge("leader_election_master_status", "1 while controllers run here.", registry=registry).set(elector.leading)
    running = Gauge("mooring_controller_running", "1 for a running controller.", ["controller"], registry=registry)
    for name in controllers.running:
        running.labels(name).set(1)
    for name in controllers.stopped:
        running.labels(name).set(0)
    if notifier is not None:
        registry.register(NoticeMetrics(notifier))
    return generate_latest(registry)
