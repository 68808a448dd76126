"""Composition root: builds every part of one server process once, whole, in the order in which the parts depend on each other.

Rules kept here:
* A part gets as arguments what it uses, and nothing is assigned to it afterwards. Nothing is global, and nothing is started here.
* What happens at run time is passed on by events that exist before the parts: `trust_changed`, `credentials_changed`, `stopping`.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mooring.api.core.service.allocation import api_address
from mooring.api.kinds import RESOURCES
from mooring.apimachinery.schema import Obj
from mooring.authn.guesses import GuessLimiter
from mooring.authn.login.settings import LoginSettings
from mooring.authn.recovery.settings import RecoverySettings
from mooring.authn.requestheader.settings import RequestHeaderSettings
from mooring.authn.serviceaccount.settings import ServiceAccountSettings
from mooring.authn.stripping import Stripping
from mooring.clock import Clock
from mooring.controllers.certificates.names.nameevidence import serving_names_config_map
from mooring.controllers.certificates.noderecovery import NodeRecovery
from mooring.controllers.table import ControllerSettings, build, checks_before_password, selected
from mooring.pki.x509.clientissuers import ClientIssuers
from mooring.plane.background.encryptionlease import EncryptionLease
from mooring.plane.background.expirywatch import ExpiryWatch
from mooring.plane.background.masterleases import MasterLeases
from mooring.plane.background.revocationlist import RevocationListPublisher
from mooring.plane.configuration import ServerConfig
from mooring.plane.encryption import EncryptionMetrics
from mooring.plane.files.reloading import Reloading
from mooring.plane.keys.carenewal import CaRenewal
from mooring.plane.keys.keystore import KeyStore
from mooring.plane.parts.audit import Audit
from mooring.plane.parts.authentication import Authentication
from mooring.plane.parts.expiring import expiring, server_label
from mooring.plane.parts.monitoring import add_metrics, health_checks, watch_expiry, watch_snapshots
from mooring.plane.parts.registry import RegistryParts
from mooring.plane.parts.supervisor import SupervisorApi, SupervisorParts, build_supervisor
from mooring.plane.publishing.firstboot import FirstBoot
from mooring.plane.publishing.trustpublisher import TrustPublisher
from mooring.plane.rollover.files import RolloverFiles
from mooring.plane.rollover.runner import CaRollover
from mooring.plane.serving.context import ServingContext
from mooring.plane.serving.pair import ServingPair
from mooring.plane.sharedkeys.share import SharedKeys, shares_keys
from mooring.plane.signing.authorities import SignerAuthorities
from mooring.plane.signing.policy import FollowedPolicy
from mooring.plane.snapshots.schedule import ScheduledSnapshots
from mooring.reconcile.fencing import FencedApi
from mooring.reconcile.leaderelection import LeaderElector
from mooring.reconcile.lineage import LineageWriter
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.registryapi import RegistryApi
from mooring.server.audit.logfile import AuditLog
from mooring.server.endpoints.debugauthentication import Explanations
from mooring.server.endpoints.debugauthentication import answers as refusal_answers
from mooring.server.endpoints.encryptionatrest import EncryptionReport
from mooring.server.endpoints.issuerdiscovery import TokenIssuer
from mooring.server.endpoints.leave import Departures
from mooring.server.endpoints.login import LoginParts
from mooring.server.endpoints.reviews import Reviewers
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.endpoints.services import Services
from mooring.server.endpoints.tokenrequest import TokenRequests
from mooring.server.eventlooplag import EventLoopLag
from mooring.server.flowcontrol import FlowControl
from mooring.server.healthchecks import HealthChecks
from mooring.server.hostmetrics import QUESTION as METRICS_QUESTION
from mooring.server.hostmetrics import HostMetrics
from mooring.server.hostshare.share import HostShare
from mooring.server.hostshare.siblings import Siblings
from mooring.server.metrics import Metrics
from mooring.server.openwatches import OpenWatches
from mooring.server.pipeline import Pipeline
from mooring.server.refusedrequests import Refusals
from mooring.server.resources.handlers import Resources
from mooring.server.resources.watches import Watches
from mooring.server.response.compression import Compression
from mooring.server.router import Router
from mooring.server.transport.http import Application
from mooring.server.transport.http1.connection import Http1Connection
from mooring.server.transport.http2.connection import Http2Server
from mooring.server.transport.listener import Listener, affordable_connections
from mooring.settings.approval import ApprovalSettings
from mooring.settings.controllers import ControllerManagerSettings
from mooring.settings.flowcontrol import FlowControlSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.nodes import NodeSettings
from mooring.settings.serving import ServingSettings
from mooring.settings.signing import SigningSettings
from mooring.settings.snapshots import SnapshotSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.lineage.chain import LineageKey

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that this server is, for leader election and for limits of the host."""

    identity: str
    is_gone: Callable[[str], bool]
    """Returns whether the process of another identity is known to have ended."""
    share: HostShare = field(default_factory=HostShare)
    """Part of this process in the state that the workers of the host share; by default that of a process that is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of one server process that are started, stopped or observed."""

    parts: RegistryParts
    authentication: Authentication
    serving: ServingPair
    context: ServingContext
    first_boot: FirstBoot
    trust_publisher: TrustPublisher
    ca_renewal: CaRenewal
    ca_rollover: CaRollover | None
    """None when the CA is in memory only."""
    master_leases: MasterLeases | None
    """None for a server that is alone on its store."""
    shared_keys: SharedKeys | None
    """None when the CA or the store is in memory only."""
    reconciler: Reconciler
    elector: LeaderElector
    snapshots: ScheduledSnapshots | None
    """None without a schedule."""
    supervisor: SupervisorApi | None
    """None unless the supervisor API of k3s is turned on."""
    watches: Watches
    open_watches: OpenWatches
    revocation_list: RevocationListPublisher
    expiry_watch: ExpiryWatch
    encryption_lease: EncryptionLease
    audit: AuditLog
    event_loop_lag: EventLoopLag
    health: HealthChecks
    metrics: Metrics
    host_metrics: HostMetrics
    siblings: Siblings
    pipeline: Pipeline
    application: Application
    listener: Listener
    stopping: asyncio.Event
    """Set when the server begins to stop: it is not ready from then on."""


def assemble(
    config: ServerConfig,
    key_store: KeyStore,
    parts: RegistryParts,
    clock: Clock,
    entropy: Entropy,
    process: Process,
    audit: Audit,
) -> Assembly:
    """Build the parts of a server over an open registry. Raises ConfigError for settings and files that cannot be used."""
    registry = parts.registry
    trust_changed, credentials_changed, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def client_cas_changed() -> None:
        trust_changed.set()
        credentials_changed.set()

    metrics = Metrics()
    metrics.registry.register(EncryptionMetrics(parts.encryption, process.identity))
    reloading = Reloading()
    parts.encryption.follow(reloading)
    signing = SignerAuthorities(config[SigningSettings], key_store.ca.for_signer, reloading)
    policy = FollowedPolicy(config[SigningSettings].cluster_signing_policy_file, reloading)
    issuers = ClientIssuers(key_store.ca, signing.client_cas)
    signing.subscribe(issuers.notify)
    authentication = Authentication(
        config,
        key_store,
        clock,
        entropy,
        reloading=reloading,
        issuers=issuers,
        client_cas_changed=client_cas_changed,
        credentials_changed=credentials_changed.set,
        count_review=metrics.token_review,
        workers=process.share.workers,
    )
    signing.warn_of_client_cas(authentication.client_cas.clients)
    serving = ServingPair(
        config[ServingSettings],
        (key_store.serving_chain, key_store.serving_key),
        key_store.ca,
        authentication.reloading,
        clock.now,
        changed=trust_changed.set,
        endpoints=config.endpoints,
    )
    ca_renewal = CaRenewal(config, key_store, serving, clock, entropy)
    ca_renewal.follow(authentication.reloading)
    context = ServingContext(
        serving,
        lambda: authentication.client_cas.every,
        config[ServingSettings].tls_profile(),
        http2=not config[ServingSettings].disable_http2_serving,
    )

    def api_of(writer: str) -> RegistryApi:
        return RegistryApi(registry, parts.authorize, clock, writer)

    master_leases = _master_leases(config, parts, clock, process.share)
    addresses = _addresses(config, master_leases)
    controller_settings = _controller_settings(config, signing, policy, authentication, serving, addresses)
    controllers = build(controller_settings, selected(config[ControllerManagerSettings].controllers))
    elector = LeaderElector(api_of("leader-election"), clock, process.identity, process.is_gone)

    def fenced(writer: str) -> FencedApi:
        return FencedApi(api_of(writer), lambda: elector.may_write)

    lineage = LineageWriter(
        fenced("lineage"),
        LineageKey(key_store.lineage_key) if key_store.lineage_key is not None else None,
    )
    reconciler = Reconciler(controllers, fenced("controllers"), clock, entropy, record=lineage.append, api_of=fenced)
    snapshots = _scheduled_snapshots(config, parts, elector, clock)
    first_boot = FirstBoot(registry, clock, config, serving.root_ca, issuers)
    trust_publisher = TrustPublisher(
        trust_changed,
        context,
        serving.root_ca,
        issuers,
        authentication.client_cas.bundles.config_map,
        lambda: _serving_names(config, serving),
        registry,
        first_boot,
        reconciler,
        clock,
    )
    ca_rollover = shared_keys = None
    if key_store.pki is not None:
        if not config[StorageSettings].in_memory:
            shared_keys = SharedKeys(config, parts.stored, entropy, clock)
        ca_rollover = CaRollover(
            registry,
            RolloverFiles(key_store.pki.parent),
            ca_renewal,
            serving.root_ca,
            lambda: authentication.client_cas.clients,
            lambda: elector.leading,
            clock,
            entropy,
            process.identity,
            shared_keys if shares_keys(config) else None,
            shared_keys.claim if shared_keys is not None else None,
        )
    encryption_lease = EncryptionLease(
        parts.encryption, api_of("encryption-lease"), clock, process.identity, process.is_gone
    )
    watches = Watches(registry, clock, entropy)
    open_watches = OpenWatches(registry, credentials_changed, clock)
    authentication.reloading.subscribe(credentials_changed.set)
    event_loop_lag = EventLoopLag()
    health = health_checks(audit.log, registry, parts.encryption, reconciler, event_loop_lag, stopping, parts.mark)
    share = process.share
    rate = config[FlowControlSettings].anonymous_requests_per_second
    flow = FlowControl(clock, anonymous_per_second=rate, share=share)
    guesses = GuessLimiter(buckets=share.buckets())
    refusals = Refusals()
    revocation_list = RevocationListPublisher(registry, key_store.ca, key_store.pki, clock)
    host_metrics = HostMetrics(metrics, share)
    siblings = Siblings({METRICS_QUESTION: host_metrics.answer, **refusal_answers(refusals)}, share)
    services = _services(
        config,
        key_store,
        parts,
        entropy,
        authentication,
        refusals,
        siblings,
        health,
        metrics,
        partial(host_metrics.text, siblings),
        revocation_list,
    )
    supervisor = build_supervisor(
        SupervisorParts(
            config=config,
            authentication=authentication,
            serving=serving,
            registry=registry,
            encryption=parts.encryption,
            clock=clock,
            ready=lambda: health.report("readyz")[0],
            signing=signing,
            ca=key_store.ca,
            entropy=entropy,
            shared_keys=shared_keys,
            checks=checks_before_password(controller_settings),
            authorize=parts.authorize,
        ),
        share,
    )
    pipeline = Pipeline(
        authenticators=authentication.authenticators,
        second_stage=authentication.second_stage,
        refusals=refusals,
        schemes=authentication.schemes,
        open_watches=open_watches,
        stripping=Stripping(config[RequestHeaderSettings].names),
        authorize=parts.authorize,
        dispatch=Router(services, Resources(registry, watches, clock, parts.authorize)),
        registry=registry,
        audiences=config[ServiceAccountSettings].audiences,
        clock=clock,
        entropy=entropy,
        flow=flow,
        guesses=guesses,
        audit=audit.auditor,
        metrics=metrics,
        supervisor=None if supervisor is None else supervisor.supervisor,
    )
    application = Application(pipeline, Compression().applied)
    listener = Listener(
        lambda: context.current,
        partial(Http1Connection, application),
        make_http2=Http2Server(application, share.workers).protocol,
        max_connections=affordable_connections(),
        share=share,
    )
    add_metrics(
        metrics,
        watches=watches,
        listener=listener,
        event_loop_lag=event_loop_lag,
        flow=flow,
        guesses=guesses,
        authentication=authentication,
        audit=audit.log,
        auditor=audit.auditor,
        registry=registry,
        storage=parts.storage,
        elector=elector,
    )
    expiry_watch = ExpiryWatch(
        expiring(config, key_store.ca, serving, authentication, signing),
        registry,
        clock,
        server_label(config),
        lambda now: credentials_changed.set() if authentication.client_cas.crls.has_passed(now) else None,
    )
    watch_expiry(expiry_watch, health, metrics)
    if snapshots is not None:
        watch_snapshots(snapshots, health, metrics)
    return Assembly(
        parts=parts,
        authentication=authentication,
        serving=serving,
        context=context,
        first_boot=first_boot,
        trust_publisher=trust_publisher,
        ca_renewal=ca_renewal,
        ca_rollover=ca_rollover,
        master_leases=master_leases,
        shared_keys=shared_keys,
        reconciler=reconciler,
        elector=elector,
        snapshots=snapshots,
        supervisor=supervisor,
        watches=watches,
        open_watches=open_watches,
        revocation_list=revocation_list,
        expiry_watch=expiry_watch,
        encryption_lease=encryption_lease,
        audit=audit.log,
        event_loop_lag=event_loop_lag,
        health=health,
        metrics=metrics,
        host_metrics=host_metrics,
        siblings=siblings,
        pipeline=pipeline,
        application=application,
        listener=listener,
        stopping=stopping,
    )


def _scheduled_snapshots(
    config: ServerConfig, parts: RegistryParts, elector: LeaderElector, clock: Clock
) -> ScheduledSnapshots | None:
    settings = config[SnapshotSettings]
    if settings.snapshot_schedule_cron is None:
        return None
    return ScheduledSnapshots(
        parts.stored,
        settings.snapshot_schedule_cron,
        Path(settings.directory(config.data_dir)),
        clock,
        keep=settings.snapshot_retention,
        compressed=settings.snapshot_compress,
        leads=lambda: elector.leading,
    )


def _master_leases(config: ServerConfig, parts: RegistryParts, clock: Clock, share: HostShare) -> MasterLeases | None:
    """Return the lease of this server; None when no other server can have its store."""
    storage = config[StorageSettings]
    if storage.in_memory or (storage.is_in_data_dir and not shares_keys(config)):
        return None
    return MasterLeases(parts.stored, config.advertise_address, clock, is_alone=share.alone)


def _addresses(config: ServerConfig, leases: MasterLeases | None) -> Callable[[], tuple[str, ...]]:
    """Return a function that returns the addresses of the servers that live."""
    own = (config.advertise_address,) if config.advertise_address else ()
    return lambda: leases.addresses if leases is not None else own


def _controller_settings(
    config: ServerConfig,
    signing: SignerAuthorities,
    policy: FollowedPolicy,
    authentication: Authentication,
    serving: ServingPair,
    addresses: Callable[[], tuple[str, ...]],
) -> ControllerSettings:
    network = config[NetworkSettings]
    return ControllerSettings(
        authority_for=signing.authority_for,
        signing_duration=config[SigningSettings].cluster_signing_duration,
        signing_policy=policy.current,
        root_ca=serving.root_ca,
        token_keys=authentication.tokens.keys,
        addresses=addresses,
        port=network.secure_port,
        service_address=api_address(network.service_cluster_ip_range),
        node_monitor_grace_period=config[ControllerManagerSettings].node_monitor_grace_period,
        trusts_source_address=True,
        machine_inventory_required=config[ApprovalSettings].inventory_required,
        node_dns_suffixes=config[ApprovalSettings].node_dns_suffixes,
        server_names=lambda: _names(config, serving),
        node_recovery=NodeRecovery(config[RecoverySettings].rule_age),
        crls=authentication.client_cas.crls,
        deletion_ends_membership=config[NodeSettings].deletion_ends_membership,
    )


def _serving_names(config: ServerConfig, serving: ServingPair) -> Obj:
    """Return the ConfigMap with the names of this server, which its machine and its data directory identify."""
    server = f"{platform.node()}:{Path(config.data_dir).resolve()}"
    return serving_names_config_map(server, _names(config, serving), serving.chain[0].not_valid_after_utc)


def _names(config: ServerConfig, serving: ServingPair) -> tuple[str, ...]:
    """Return the names and addresses of the serving certificate, and those that are published: a wildcard may stand for them."""
    return (*serving.names, *(endpoint.host for endpoint in config.endpoints))


def _services(
    config: ServerConfig,
    key_store: KeyStore,
    parts: RegistryParts,
    entropy: Entropy,
    authentication: Authentication,
    refusals: Refusals,
    siblings: Siblings,
    health: HealthChecks,
    metrics: Metrics,
    metrics_text: Callable[[], Awaitable[bytes]],
    revocation_list: RevocationListPublisher,
) -> Services:
    address = str(config.endpoints[0])
    tokens, keys = config[ServiceAccountSettings], authentication.tokens.keys
    return Services(
        api=ServedApi(resources=RESOURCES, server_address=address),
        health=health,
        metrics=metrics_text,
        reviewers=Reviewers(
            registry=parts.registry,
            authorize=parts.authorize,
            rbac=parts.rbac,
            authenticators=authentication.authenticators,
            second_stage=authentication.second_stage,
            audiences=tokens.audiences,
        ),
        token_requests=TokenRequests(
            registry=parts.registry,
            authorize=parts.authorize,
            entropy=entropy,
            keys=keys,
            audiences=tokens.audiences,
            max_seconds=int(tokens.service_account_max_token_expiration.total_seconds()),
            extend=tokens.service_account_extend_token_expiration,
        ),
        issuer=TokenIssuer(
            url=tokens.issuer,
            jwks_uri=tokens.service_account_jwks_uri or f"https://{address}/openid/v1/jwks",
            keys=keys,
        ),
        departures=Departures(registry=parts.registry, entropy=entropy),
        logins=LoginParts(
            ttl=config[LoginSettings].login_ttl,
            from_request_header=config[LoginSettings].login_from_request_header,
            ca=key_store.ca,
            is_authority_trusted=lambda: key_store.ca.authority.certificate in authentication.client_cas.clients,
            keys=keys,
            views=parts.registry.views,
            audiences=tokens.audiences,
            entropy=entropy,
            count=metrics.login,
        ),
        explanations=Explanations(
            authenticators=authentication.authenticators,
            second_stage=authentication.second_stage,
            registry=parts.registry,
            audiences=tokens.audiences,
            refusals=refusals,
            siblings=siblings,
        ),
        encryption=EncryptionReport(
            config_hash=lambda: parts.encryption.config_hash, usage=parts.encryption.storage.usage
        ),
        revocation_list=lambda: revocation_list.current,
    )
