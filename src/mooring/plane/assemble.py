"""Composition root: builds every part of one server process once, whole, in the order in which the parts depend on each other.

Rules kept here:
* A part gets as arguments what it uses, and nothing is assigned to it afterwards. Nothing is global, and nothing is started here.
* What happens at run time is passed on by events that exist before the parts: `trust_changed`, `stopping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mooring.api.core.service.allocation import api_address
from mooring.api.kinds import RESOURCES
from mooring.authn.guesses import GuessLimiter
from mooring.authn.login.settings import LoginSettings
from mooring.authn.requestheader.settings import RequestHeaderSettings
from mooring.authn.serviceaccount.settings import ServiceAccountSettings
from mooring.authn.stripping import Stripping
from mooring.clock import Clock
from mooring.controllers.table import ControllerSettings, build
from mooring.plane.authentication import Authentication
from mooring.plane.configuration import ServerConfig
from mooring.plane.firstboot import FirstBoot
from mooring.plane.keystore import KeyStore
from mooring.plane.monitoring import add_gauges, health_checks
from mooring.plane.registry import RegistryParts
from mooring.plane.serving.context import ServingContext
from mooring.plane.serving.pair import ServingPair
from mooring.plane.trustpublisher import TrustPublisher
from mooring.reconcile.leaderelection import LeaderElector
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.registryapi import RegistryApi
from mooring.server.audit.auditor import Auditor
from mooring.server.audit.logfile import AuditLog
from mooring.server.audit.policyfile import read_policy
from mooring.server.endpoints.debugauthentication import Explanations
from mooring.server.endpoints.issuerdiscovery import TokenIssuer
from mooring.server.endpoints.login import Logins
from mooring.server.endpoints.reviews import Reviewers
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.endpoints.services import Services
from mooring.server.endpoints.tokenrequest import TokenRequests
from mooring.server.eventlooplag import EventLoopLag
from mooring.server.flowcontrol import FlowControl
from mooring.server.healthchecks import HealthChecks
from mooring.server.metrics import Metrics
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
from mooring.settings.audit import AuditSettings
from mooring.settings.flowcontrol import FlowControlSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import ServingSettings

Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that this server is, for leader election."""

    identity: str
    is_gone: Callable[[str], bool]
    """Returns whether the process of another identity is known to have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of one server process that are started, stopped or observed."""

    parts: RegistryParts
    authentication: Authentication
    serving: ServingPair
    context: ServingContext
    first_boot: FirstBoot
    trust_publisher: TrustPublisher
    reconciler: Reconciler
    elector: LeaderElector
    watches: Watches
    audit: AuditLog
    event_loop_lag: EventLoopLag
    health: HealthChecks
    metrics: Metrics
    pipeline: Pipeline
    application: Application
    listener: Listener
    stopping: asyncio.Event
    """Set when the server begins to stop: it is not ready from then on."""


def assemble(
    config: ServerConfig, key_store: KeyStore, parts: RegistryParts, clock: Clock, entropy: Entropy, process: Process
) -> Assembly:
    """Build the parts of a server over an open registry. Raises ConfigError for settings and files that cannot be used."""
    registry = parts.registry
    trust_changed, stopping = asyncio.Event(), asyncio.Event()
    metrics = Metrics()
    authentication = Authentication(
        config,
        key_store,
        clock,
        entropy,
        client_cas_changed=trust_changed.set,
        count_review=metrics.token_review,
    )
    serving = ServingPair(
        config[ServingSettings],
        (key_store.serving_chain, key_store.serving_key),
        key_store.authority.certificate,
        authentication.reloading,
        clock.now,
        changed=trust_changed.set,
    )
    context = ServingContext(
        serving,
        lambda: authentication.client_cas.every,
        http2=not config[ServingSettings].disable_http2_serving,
    )
    api = RegistryApi(registry, parts.authorize, clock)
    controllers = build(_controller_settings(config, key_store, authentication, serving))
    reconciler = Reconciler(controllers, api, clock, entropy)
    elector = LeaderElector(api, clock, process.identity, process.is_gone)
    first_boot = FirstBoot(registry, clock, config, serving.root_ca, key_store.client_ca_pem)
    trust_publisher = TrustPublisher(
        trust_changed,
        context,
        serving.root_ca,
        authentication.client_cas.bundles.config_map,
        registry,
        first_boot,
        reconciler,
        clock,
    )
    watches = Watches(registry, clock, entropy)
    audit = _audit_log(config, clock)
    event_loop_lag = EventLoopLag()
    health = health_checks(audit, registry, reconciler, event_loop_lag, stopping)
    flow = FlowControl(clock, anonymous_per_second=config[FlowControlSettings].anonymous_requests_per_second)
    guesses = GuessLimiter()
    refusals = Refusals()
    services = _services(config, key_store, parts, entropy, authentication, refusals, health, metrics)
    pipeline = Pipeline(
        authenticators=authentication.authenticators,
        second_stage=authentication.second_stage,
        refusals=refusals,
        schemes=authentication.schemes,
        stripping=Stripping(config[RequestHeaderSettings].names),
        authorize=parts.authorize,
        dispatch=Router(services, Resources(registry, watches, clock, parts.authorize)),
        registry=registry,
        audiences=config[ServiceAccountSettings].audiences,
        clock=clock,
        entropy=entropy,
        flow=flow,
        guesses=guesses,
        audit=Auditor(audit, read_policy(config[AuditSettings].audit_policy_file), clock),
        metrics=metrics,
    )
    application = Application(pipeline, Compression().applied)
    listener = Listener(
        lambda: context.current,
        partial(Http1Connection, application),
        make_http2=Http2Server(application).protocol,
        max_connections=affordable_connections(),
    )
    add_gauges(
        metrics,
        watches=watches,
        listener=listener,
        event_loop_lag=event_loop_lag,
        flow=flow,
        guesses=guesses,
        authentication=authentication,
        audit=audit,
        registry=registry,
        elector=elector,
    )
    return Assembly(
        parts=parts,
        authentication=authentication,
        serving=serving,
        context=context,
        first_boot=first_boot,
        trust_publisher=trust_publisher,
        reconciler=reconciler,
        elector=elector,
        watches=watches,
        audit=audit,
        event_loop_lag=event_loop_lag,
        health=health,
        metrics=metrics,
        pipeline=pipeline,
        application=application,
        listener=listener,
        stopping=stopping,
    )


def _controller_settings(
    config: ServerConfig, key_store: KeyStore, authentication: Authentication, serving: ServingPair
) -> ControllerSettings:
    network = config[NetworkSettings]
    return ControllerSettings(
        authority=key_store.authority,
        root_ca=serving.root_ca,
        token_keys=authentication.tokens.keys,
        addresses=(config.advertise_address,) if config.advertise_address else (),
        port=network.secure_port,
        service_address=api_address(network.service_cluster_ip_range),
    )


def _audit_log(config: ServerConfig, clock: Clock) -> AuditLog:
    audit = config[AuditSettings]
    return AuditLog(
        audit.file(config.data_dir),
        suffix=f"-{config[NetworkSettings].secure_port}",
        max_bytes=audit.audit_log_maxsize << 20,
        keep=audit.audit_log_maxbackup,
        max_age=audit.audit_log_maxage,
        now=clock.now,
    )


def _services(
    config: ServerConfig,
    key_store: KeyStore,
    parts: RegistryParts,
    entropy: Entropy,
    authentication: Authentication,
    refusals: Refusals,
    health: HealthChecks,
    metrics: Metrics,
) -> Services:
    address = str(config.endpoints[0])
    tokens, keys = config[ServiceAccountSettings], authentication.tokens.keys
    return Services(
        api=ServedApi(resources=RESOURCES, server_address=address),
        health=health,
        metrics=metrics,
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
        logins=Logins(
            ttl=config[LoginSettings].login_ttl,
            from_request_header=config[LoginSettings].login_from_request_header,
            authority=key_store.authority,
            is_authority_trusted=lambda: key_store.authority.certificate in authentication.client_cas.clients,
            keys=keys,
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
        ),
    )
