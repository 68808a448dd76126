"""Builds what answers the requests of one server process, from the listener to the endpoints."""

from __future__ import annotations

from functools import partial

from mooring.api.kinds import RESOURCES
from mooring.authn.guesses import GuessLimiter
from mooring.authn.login import LoginSettings
from mooring.authn.requestheader import Stripping
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.plane.parts.controllers import Controllers
from mooring.plane.parts.foundation import Foundation
from mooring.plane.parts.monitoring import health_checks
from mooring.plane.parts.status import ServerStatus, kubeconfigs
from mooring.plane.parts.supervisor import build_supervisor
from mooring.plane.parts.trust import ServedTrust
from mooring.plane.parts.upkeep import Upkeep
from mooring.server.endpoints.debugauthentication import Explanations
from mooring.server.endpoints.debugauthentication import answers as refusal_answers
from mooring.server.endpoints.discovery import TokenIssuer
from mooring.server.endpoints.leave import Departures
from mooring.server.endpoints.reviews import Reviewers
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.endpoints.state import EncryptionReport, StatusReport
from mooring.server.endpoints.table import Services
from mooring.server.endpoints.tokens import LoginParts, TokenRequests
from mooring.server.flowcontrol import FlowControl
from mooring.server.hostmetrics import QUESTION as METRICS_QUESTION
from mooring.server.hostmetrics import HostMetrics
from mooring.server.hostshare.siblings import Siblings
from mooring.server.metrics import EventLoopLag
from mooring.server.openwatches import OpenWatches
from mooring.server.pipeline import Pipeline
from mooring.server.refusedrequests import Refusals
from mooring.server.resources.handlers import Resources
from mooring.server.resources.watches import Watches
from mooring.server.response.compression import Compression
from mooring.server.router import Router
from mooring.server.transport.http import Application
from mooring.server.transport.http1 import Http1Connection
from mooring.server.transport.http2 import Http2Server
from mooring.server.transport.listener import Listener, affordable_connections
from mooring.settings.serving import FlowControlSettings


class Http:
    """The pipeline of one server process, what limits it and what it answers with."""

    def __init__(self, base: Foundation, trust: ServedTrust, controllers: Controllers, upkeep: Upkeep) -> None:
        config, registry, clock, share = base.config, base.parts.registry, base.clock, base.process.share
        authentication = trust.authentication
        self.watches = Watches(registry, clock, base.entropy)
        self.open_watches = OpenWatches(registry, base.credentials_changed, clock)
        authentication.reloading.subscribe(base.credentials_changed.set)
        self.event_loop_lag = EventLoopLag()
        self.health = health_checks(base, controllers.reconciler, self.event_loop_lag)
        self.flow = FlowControl(
            clock, anonymous_per_second=config[FlowControlSettings].anonymous_requests_per_second, share=share
        )
        self.guesses = GuessLimiter(buckets=share.buckets())
        self.refusals = Refusals()
        self.host_metrics = HostMetrics(base.metrics, share)
        questions = {METRICS_QUESTION: self.host_metrics.answer, **refusal_answers(self.refusals)}
        self.siblings = Siblings(questions, share)
        self.supervisor = build_supervisor(
            base, trust, upkeep.shared_keys, controllers.settings, lambda: self.health.report("readyz")[0]
        )
        """None unless the supervisor API of k3s is turned on."""
        sources = {**upkeep.expiry_watch.sources, **kubeconfigs(config)}
        self.status = ServerStatus(
            config=config,
            parts=base.parts,
            audit=base.audit.log,
            sources=sources,
            snapshots=controllers.snapshots,
            lost_addresses=upkeep.lost_addresses.find,
        )
        self.pipeline = Pipeline(
            authenticators=authentication.authenticators,
            second_stage=authentication.second_stage,
            refusals=self.refusals,
            schemes=authentication.schemes,
            open_watches=self.open_watches,
            stripping=Stripping(config[RequestHeaderSettings].names),
            authorize=base.parts.authorize,
            dispatch=Router(
                self._services(base, trust, upkeep), Resources(registry, self.watches, clock, base.parts.authorize)
            ),
            registry=registry,
            audiences=config[ServiceAccountSettings].audiences,
            clock=clock,
            entropy=base.entropy,
            flow=self.flow,
            guesses=self.guesses,
            audit=base.audit.auditor,
            metrics=base.metrics,
            supervisor=None if self.supervisor is None else self.supervisor.supervisor,
        )
        self.application = Application(self.pipeline, Compression().applied)
        self.listener = Listener(
            lambda: trust.context.current,
            partial(Http1Connection, self.application),
            make_http2=Http2Server(self.application, share.workers).protocol,
            max_connections=affordable_connections(),
            share=share,
        )

    def _services(self, base: Foundation, trust: ServedTrust, upkeep: Upkeep) -> Services:
        config, parts, authentication = base.config, base.parts, trust.authentication
        ca = base.key_store.ca
        address = str(config.endpoints[0])
        tokens, keys = config[ServiceAccountSettings], authentication.tokens.keys
        return Services(
            api=ServedApi(resources=RESOURCES, server_address=address),
            health=self.health,
            metrics=partial(self.host_metrics.text, self.siblings),
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
                entropy=base.entropy,
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
            departures=Departures(registry=parts.registry, entropy=base.entropy),
            logins=LoginParts(
                ttl=config[LoginSettings].login_ttl,
                from_request_header=config[LoginSettings].login_from_request_header,
                ca=ca,
                is_authority_trusted=lambda: ca.authority.certificate in authentication.client_cas.clients,
                keys=keys,
                views=parts.registry.views,
                audiences=tokens.audiences,
                entropy=base.entropy,
                count=base.metrics.login,
            ),
            explanations=Explanations(
                authenticators=authentication.authenticators,
                second_stage=authentication.second_stage,
                registry=parts.registry,
                audiences=tokens.audiences,
                refusals=self.refusals,
                siblings=self.siblings,
            ),
            encryption=EncryptionReport(
                config_hash=lambda: parts.encryption.config_hash, usage=parts.encryption.storage.usage
            ),
            revocation_list=lambda: upkeep.revocation_list.current,
            status=StatusReport(read=self.status.report),
        )
