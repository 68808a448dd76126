"""The composition root: configuration and key store become one running server process.

Rules kept here: parts are built in order and know only what they are given; nothing is global. Starting fails whole: what was
started is stopped again. Stopping goes backwards: not ready → no new connections → controllers and watches end → requests
drain → storage closes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from OpenSSL import SSL

from mooring.api.core.service.allocation import api_address
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL, RESOURCES
from mooring.authn.guesses import GuessLimiter
from mooring.authn.stripping import Stripping
from mooring.authz import table as authz
from mooring.authz.attributes import Attributes
from mooring.authz.chain import authorize
from mooring.authz.decision import Decision
from mooring.authz.rbac.authorizer import Rbac
from mooring.clock import Clock
from mooring.controllers.table import ControllerSettings, build
from mooring.pki.rootca import RootCa
from mooring.plane.authentication import Authentication
from mooring.plane.clientbundles import NAME
from mooring.plane.compaction import compact_forever
from mooring.plane.configuration import ServerConfig
from mooring.plane.firstboot import SYSTEM_USER, FirstBoot
from mooring.plane.keystore import KeyStore
from mooring.plane.lastuses import record_forever
from mooring.plane.servicerange import keep as keep_service_range
from mooring.plane.serving.pair import ServingPair
from mooring.plane.serving.publishing import publish
from mooring.plane.trimming import trim_forever
from mooring.reconcile.leaderelection import LeaderElector
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.admission import table as admission
from mooring.registry.store import Registry
from mooring.server.audit.auditor import Auditor
from mooring.server.audit.logfile import AuditLog
from mooring.server.audit.policyfile import read_policy
from mooring.server.eventlooplag import EventLoopLag
from mooring.server.flowcontrol import FlowControl
from mooring.server.healthchecks import DONE_BEFORE_SERVING, HealthChecks
from mooring.server.metrics import Metrics
from mooring.server.pipeline import Pipeline
from mooring.server.refusedrequests import Refusals
from mooring.server.resources.handlers import Resources
from mooring.server.resources.watches import Watches
from mooring.server.response.compression import Compression
from mooring.server.router import Router
from mooring.server.services import Services
from mooring.server.transport.http import Application
from mooring.server.transport.http1.connection import Http1Connection
from mooring.server.transport.http2.connection import Http2Server
from mooring.server.transport.listener import Listener, affordable_connections
from mooring.server.transport.tls import server_context
from mooring.settings.admission import AdmissionSettings
from mooring.settings.audit import AuditSettings
from mooring.settings.authorization import AuthorizationSettings
from mooring.settings.flowcontrol import FlowControlSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import Storage
from mooring.storage.table import open_storage
from mooring.trust.discovery import clusterinfo

log = logging.getLogger("mooring.plane")

DRAIN_SECONDS = 60.0
"""kube-apiserver drains in-flight requests for up to its request timeout (docs/protocol/health.md#shutdown)."""
FLUSH_SECONDS = 5.0
"""How long clients may then take to read what was answered: 60 MB over a network of 100 Mbit/s."""


class Plane:
    """One server process. `start`, then `stop`; not both at once."""

    def __init__(
        self,
        config: ServerConfig,
        key_store: KeyStore,
        clock: Clock,
        entropy: Callable[[int], bytes],
        identity: str,
        holder_is_gone: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._key_store = key_store
        self._clock = clock
        self._entropy = entropy
        self._identity = identity
        self._holder_is_gone = holder_is_gone
        self._stack = AsyncExitStack()
        self._stopping = False
        self.port = 0

    @property
    def serving_ca_pem(self) -> bytes:
        """CAs that verify the serving certificate that is in force."""
        return self._serving.ca_pem

    async def start(self) -> None:
        """Open the store, serve, and let controllers act. Raises MooringError or OSError; then nothing is left running."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config = self._config
        storage = open_storage(config[StorageSettings].storage_url, self._clock)
        await storage.open()
        self._stack.push_async_callback(storage.close)
        await keep_service_range(
            storage, config[NetworkSettings].service_cluster_ip_range, self._clock.now(), self._entropy
        )
        self._assemble(storage)
        self._stack.push_async_callback(self._authentication.close)
        self._authentication.start()
        await self.registry.start()
        self._stack.push_async_callback(self.registry.stop)
        await self.first_boot.run()
        await self._follow_bundles()
        self._audit.start()
        self._stack.push_async_callback(self._audit.stop)
        self._stack.push_async_callback(self._drain)
        self._stack.callback(self._watches.drain)
        self.port = await self._listener.start(
            config[NetworkSettings].bind_address, config[NetworkSettings].secure_port
        )
        self._stack.callback(self._listener.stop_accepting)
        self._lateness.start()
        self._stack.callback(self._lateness.stop)
        reloading = asyncio.create_task(self._authentication.reloading.run(self._clock), name="reloading")
        self._stack.push_async_callback(_cancelled, reloading)
        elector = asyncio.create_task(self._elector.run(self._reconciler.run), name="controllers")
        self._stack.push_async_callback(_cancelled, elector)
        recorder = asyncio.create_task(
            record_forever(self._authentication.last_uses, self.registry, self._clock), name="last uses"
        )
        self._stack.push_async_callback(_cancelled, recorder)
        compactor = asyncio.create_task(compact_forever(storage, self._clock), name="compaction")
        self._stack.push_async_callback(_cancelled, compactor)
        trimmer = asyncio.create_task(trim_forever(self._clock), name="trimming")
        self._stack.push_async_callback(_cancelled, trimmer)
        gc.freeze()  # what a server begins with stays for its life: no collection of garbage need look at it again

    def _assemble(self, storage: Storage) -> None:
        config, key_store, clock = self._config, self._key_store, self._clock
        authorizers = authz.build(config[AuthorizationSettings].authorization_mode)
        rbac = next((one for one in authorizers if isinstance(one, Rbac)), None) or Rbac()

        def decide(attributes: Attributes) -> Decision:
            return authorize(attributes, authorizers, self.registry.views)

        plugins = admission.build(
            config[AdmissionSettings].disable_admission_plugins,
            services=config[NetworkSettings].service_cluster_ip_range,
        )
        self.registry = Registry(storage, tuple(BY_PLURAL.values()), clock, self._entropy, plugins, decide)
        authentication = Authentication(config, key_store, clock, self._entropy)
        self._authentication = authentication
        self._serving = ServingPair(
            config[ServingSettings],
            (key_store.serving_chain, key_store.serving_key),
            key_store.authority.certificate,
            authentication.reloading,
            clock.now,
        )
        self._root_ca = RootCa(self._serving.ca_pem)
        self.first_boot = FirstBoot(self.registry, clock, config, self._serving.ca_pem, key_store.client_ca_pem)
        refusals = Refusals()
        self._metrics = Metrics()
        if authentication.webhook:
            authentication.webhook.count = self._metrics.token_review
        self.health = HealthChecks()
        self._lateness = EventLoopLag()
        self._watches = Watches(self.registry, clock, self._entropy)
        flow = FlowControl(clock, anonymous_per_second=config[FlowControlSettings].anonymous_requests_per_second)
        guesses = GuessLimiter()
        self._audit = AuditLog(
            config[AuditSettings].file(config.data_dir),
            suffix=f"-{config[NetworkSettings].secure_port}",
            max_bytes=config[AuditSettings].audit_log_maxsize << 20,
            keep=config[AuditSettings].audit_log_maxbackup,
            max_age=config[AuditSettings].audit_log_maxage,
            now=clock.now,
        )
        address = str(config.endpoints[0])
        services = Services(
            registry=self.registry,
            clock=clock,
            entropy=self._entropy,
            authorize=decide,
            authenticators=authentication.authenticators,
            second_stage=authentication.second_stage,
            refusals=refusals,
            rbac=rbac,
            audiences=config.service_accounts.audiences,
            tokens=authentication.tokens.keys,
            issuer=config.service_accounts.issuer,
            jwks_uri=config.service_accounts.jwks_uri or f"https://{address}/openid/v1/jwks",
            max_token_seconds=int(config.service_accounts.max_token.total_seconds()),
            extend_tokens=config.service_accounts.extend,
            login_ttl=config.authentication.login_ttl,
            login_from_request_header=config.authentication.login_from_request_header,
            authority=key_store.authority,
            own_ca_believed=lambda: key_store.authority.certificate in authentication.bundles.clients,
            health=self.health,
            metrics=self._metrics,
            resources=RESOURCES,
            server_address=address,
        )
        pipeline = Pipeline(
            authenticators=authentication.authenticators,
            second_stage=authentication.second_stage,
            refusals=refusals,
            schemes=authentication.schemes,
            stripping=Stripping(authentication.bundles.names),
            authorize=decide,
            dispatch=Router(services, Resources(self.registry, self._watches, clock, decide)),
            registry=self.registry,
            audiences=services.audiences,
            clock=clock,
            entropy=self._entropy,
            flow=flow,
            guesses=guesses,
            audit=Auditor(self._audit, read_policy(config[AuditSettings].audit_policy_file), clock),
            metrics=self._metrics,
        )
        self._application = Application(pipeline, Compression().applied)
        self._listener = Listener(
            self._context(),
            partial(Http1Connection, self._application),
            make_http2=Http2Server(self._application).protocol,
            max_connections=affordable_connections(),
        )
        api = RegistryApi(self.registry, decide, clock)
        controllers = build(
            ControllerSettings(
                authority=key_store.authority,
                root_ca=self._root_ca,
                token_keys=authentication.tokens.keys,
                addresses=(config.advertise_address,) if config.advertise_address else (),
                port=config[NetworkSettings].secure_port,
                service_address=api_address(config[NetworkSettings].service_cluster_ip_range),
            )
        )
        self._reconciler = Reconciler(controllers, api, clock, self._entropy)
        self._elector = LeaderElector(api, clock, self._identity, self._holder_is_gone)
        self._name_checks(flow, guesses)

    def _context(self) -> SSL.Context:
        """For new connections: what this server shows, and whose certificates it asks for."""
        serving, bundles = self._serving, self._authentication.bundles
        return server_context(
            serving.chain, serving.key, bundles.every, http2=not self._config[ServingSettings].disable_http2_serving
        )

    async def _follow_bundles(self) -> None:
        self._authentication.bundles.changed = self._bundles_changed
        self._serving.changed = self._serving_changed
        await self._publish_bundles()

    def _renew_context(self) -> None:
        self._listener.context = self._context()

    def _serving_changed(self) -> None:
        self._renew_context()
        ca_pem = self._serving.ca_pem
        if ca_pem == self._root_ca.pem:
            return
        self._root_ca.pem = ca_pem
        self._reconciler.plan_again("root-ca-certificate-publisher-controller", "serviceaccount-token-controller")
        task = asyncio.ensure_future(self.first_boot.publish_serving_cas(ca_pem))
        task.add_done_callback(partial(_logged, name=clusterinfo.NAME))

    def _bundles_changed(self) -> None:
        self._renew_context()
        task = asyncio.ensure_future(self._publish_bundles())
        task.add_done_callback(partial(_logged, name=NAME))

    async def _publish_bundles(self) -> None:
        change = Change(SYSTEM_USER, self._clock.now())
        await publish(self.registry, self._authentication.bundles.config_map(), change)

    def _name_checks(self, flow: FlowControl, guesses: GuessLimiter) -> None:
        self.health.add("log", lambda: self._audit.running)
        self.health.add("etcd", lambda: self.registry.ready)
        self.health.add("informer-sync", lambda: self.registry.ready, "readyz")
        for name in DONE_BEFORE_SERVING:
            self.health.add(name, lambda: True)
        self.health.add("controllers", lambda: self._reconciler.healthy, "livez", "readyz")
        self.health.add("event-loop", lambda: not self._lateness.is_late, "readyz")
        self.health.add("shutdown", lambda: not self._stopping, "readyz")
        gauge = self._metrics.gauge
        gauge("apiserver_longrunning_requests", "Open watches.", lambda: self._watches.count)
        gauge("mooring_connections", "Open client connections.", lambda: len(self._listener.connections))
        gauge("mooring_connections_refused_total", "Beyond the limits.", lambda: self._listener.refused)
        gauge("mooring_connections_cut_off_total", "Readers too slow.", lambda: self._listener.held_bytes.cut_off)
        gauge("mooring_held_bytes", "Unread replies and unfinished requests.", lambda: self._listener.held_bytes.size)
        gauge("mooring_event_loop_late_seconds", "Median of recent timers.", lambda: self._lateness.seconds)
        gauge("mooring_failed_handshakes_total", "TLS handshakes.", lambda: self._listener.failed_handshakes)
        gauge("mooring_requests_queued_total", "Requests that had to wait for a seat.", lambda: flow.queued)
        gauge("mooring_requests_rejected_total", "Requests answered 429 by flow control.", lambda: flow.rejected)
        gauge("mooring_failed_authentications_total", "Failed authentications.", lambda: guesses.counters.failures)
        openid = self._authentication.openid
        gauge("mooring_oidc_issuers_unready", "Issuers whose keys are not known.", lambda: openid.unready)
        gauge("mooring_audit_dropped_total", "Audit records lost.", lambda: self._audit.lost)
        gauge("mooring_storage_revision", "Newest revision seen.", lambda: self.registry.revision)
        gauge("leader_election_master_status", "1 while controllers run here.", lambda: float(self._elector.leading))

    async def _drain(self) -> None:
        await self._application.drain(DRAIN_SECONDS)
        await self._listener.wait_until_sent(FLUSH_SECONDS)
        self._listener.abort_all()

    async def stop(self) -> None:
        """Drain and stop everything. Idempotent."""
        self._stopping = True
        if delay := self._config[ServingSettings].shutdown_delay_duration.total_seconds():
            await self._clock.sleep(delay)
        await self._stack.aclose()


def _logged(task: asyncio.Task[None], name: str) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the ConfigMap %s could not be brought up to date: %s", name, error)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
