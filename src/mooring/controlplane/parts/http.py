"""The listener and what it serves: the pipeline, the router, and the endpoints of k3s's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial

from mooring.api.kinds import RESOURCES
from mooring.apimachinery.schema import Obj
from mooring.authn.authfailures import AuthFailureLimiter
from mooring.authn.joinrule import JoinRuleAuthenticator
from mooring.authn.k3stoken import K3sTokenAuthenticator
from mooring.authn.login import LoginSettings
from mooring.authn.requestheader import HeaderStripper
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.controllers.certificates.approval import would_approve
from mooring.controllers.certificates.issuance import IssuanceCheck
from mooring.controllers.table import ControllerSettings, checks_before_password
from mooring.controlplane.parts.controllers import Controllers, Upkeep
from mooring.controlplane.parts.foundation import Foundation
from mooring.controlplane.parts.status import ServerStatus, health_checks, kubeconfigs
from mooring.controlplane.parts.trust import ServedTrust
from mooring.controlplane.sharedkeys.joining import agent_config, server_keys
from mooring.controlplane.sharedkeys.share import SharedKeys
from mooring.controlplane.sharedkeys.tokenfile import JoinTokenFiles
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.server.endpoints.debugauthentication import Explanations
from mooring.server.endpoints.debugauthentication import answers as refusal_answers
from mooring.server.endpoints.discovery import TokenIssuer
from mooring.server.endpoints.leave import LeaveHandler
from mooring.server.endpoints.reviews import Reviewers
from mooring.server.endpoints.routes import Services
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.endpoints.state import EncryptionReport, StatusReport
from mooring.server.endpoints.supervisor.certificates import NodeCertificates
from mooring.server.endpoints.supervisor.nodepasswords import NodePasswords
from mooring.server.endpoints.supervisor.routes import SupervisorServices, routes
from mooring.server.endpoints.supervisor.servers import api_server_addresses
from mooring.server.endpoints.supervisor.tunnel import Tunnels
from mooring.server.endpoints.tokens import LoginParts, TokenRequests
from mooring.server.flowcontrol import FlowControl
from mooring.server.hostmetrics import QUESTION as METRICS_QUESTION
from mooring.server.hostmetrics import HostMetrics
from mooring.server.metrics import EventLoopLag
from mooring.server.openwatches import OpenWatches
from mooring.server.pipeline import Pipeline
from mooring.server.refusedrequests import Refusals
from mooring.server.requestcontext import InFlight, Supervisor
from mooring.server.resources.handlers import Resources
from mooring.server.resources.watches import Watches
from mooring.server.response.compression import Compression
from mooring.server.router import Router
from mooring.server.transport.http import Application
from mooring.server.transport.http1 import Http1Connection
from mooring.server.transport.http2 import Http2Server
from mooring.server.transport.listener import Listener, affordable_connections
from mooring.server.workerqueries import WorkerQueries
from mooring.settings.serving import FlowControlSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.encryption import keychange
from mooring.trust.encryption.configuration import GroupResource
from mooring.trust.k3s.settings import K3sSettings, encryption_status
from mooring.trust.notices import combined

# Builds the supervisor API of k3s for one server process.

SECRETS = GroupResource("", "secrets")


class SupervisorApi:
    """The supervisor API of one server process."""

    def __init__(
        self,
        base: Foundation,
        trust: ServedTrust,
        shared_keys: SharedKeys | None,
        checks: tuple[IssuanceCheck, ...],
        ready: Callable[[], bool],
        event_written: Callable[[Obj], None],
    ) -> None:
        """`checks` see a request before its node password is stored. `shared_keys`: None for a store in memory."""
        self._base = base
        self._trust = trust
        self._counting = asyncio.Lock()
        self.tunnels = Tunnels(base.clock)
        self.passwords = NodePasswords(
            base.parts.registry,
            base.clock,
            base.entropy,
            fail_open=base.config[K3sSettings].k3s_node_password_fail_open,
            workers=base.process.share.workers,
            event_written=event_written,
        )
        self.tokens = None if base.config[StorageSettings].in_memory else JoinTokenFiles(base.config)
        """None for a server without a data directory."""
        self.supervisor = Supervisor(
            find=routes(self._services(shared_keys, checks, ready)),
            authenticators=trust.authentication.supervisor_authenticators,
            schemes=trust.authentication.supervisor_schemes,
            in_flight=InFlight(base.process.share),
        )

    def _services(
        self, shared_keys: SharedKeys | None, checks: tuple[IssuanceCheck, ...], ready: Callable[[], bool]
    ) -> SupervisorServices:
        trust, config, clock, registry = self._trust, self._base.config, self._base.clock, self._base.parts.registry
        authorize = self._base.parts.registry.authorize
        return SupervisorServices(
            server_ca=lambda: trust.serving.root_ca.pem,
            client_ca=lambda: certificates_pem(trust.authentication.client_cas.clients),
            config=self._agent_config,
            apiservers=lambda: api_server_addresses(registry.views) or tuple(map(str, config.endpoints)),
            ready=ready,
            certificates=NodeCertificates(
                registry=registry,
                passwords=self.passwords,
                chain_for=self._chain_for,
                clock=clock,
                would_approve=lambda csr: would_approve(csr, checks, registry.views, clock.now(), authorize),
            ),
            tunnels=self.tunnels,
            encryption=self._encryption_status,
            server_keys=server_keys(
                config,
                shared_keys,
                self._agent_config,
                lambda: trust.serving.root_ca.pem,
                registry.views,
                self._read_tokens,
            ),
        )

    def _read_tokens(self) -> None:
        for authenticator in self._trust.authentication.supervisor_authenticators:
            if isinstance(authenticator, K3sTokenAuthenticator):
                authenticator.read_again()

    def _chain_for(self, signer_name: str) -> tuple[Certificate, ...]:
        """Return the CA that signs for a signer, and the CAs that are trusted beside it."""
        ca = self._base.key_store.ca
        others = (one for one in ca.trusted if one != ca.authority.certificate)
        return self._trust.signing.chain_for(signer_name) or (ca.authority.certificate, *others)

    def _agent_config(self) -> Obj:
        encrypts_secrets = self._base.parts.encryption.providers.is_configured(SECRETS)
        return agent_config(self._base.config, encrypts_secrets=encrypts_secrets)

    async def _encryption_status(self) -> Obj:
        encryption, registry = self._base.parts.encryption, self._base.parts.registry
        # Reads every stored value.
        async with self._counting:
            usage = await encryption.storage.usage()
        leases = keychange.live_servers(
            [one for one in registry.views["leases"].list("kube-system") if _is_of_server(one)], self._base.clock.now()
        )
        hashes = [(one["metadata"].get("annotations") or {}).get(keychange.HASH_ANNOTATION, "") for one in leases]
        return encryption_status(
            encryption.providers.transformers.configuration.providers_of(SECRETS),
            sum(one.stale for one in usage if one.resource == SECRETS),
            {encryption.config_hash, *hashes},
        )


def build_supervisor(
    base: Foundation,
    trust: ServedTrust,
    shared_keys: SharedKeys | None,
    settings: ControllerSettings,
    ready: Callable[[], bool],
    event_written: Callable[[Obj], None],
) -> SupervisorApi | None:
    """Return the supervisor API; None unless it is turned on."""
    if not base.config[K3sSettings].k3s_supervisor:
        return None
    return SupervisorApi(base, trust, shared_keys, checks_before_password(settings), ready, event_written)


def _is_of_server(lease: Obj) -> bool:
    return keychange.SERVER_LABEL in (lease["metadata"].get("labels") or {})


# Builds what answers the requests of one server process, from the listener to the endpoints.

NOTICES_QUESTION = "notices"
"""Question to a worker for the state of its notices."""
ISSUERS_QUESTION = "join-rule-issuers"
"""Question to a worker for the issuers of join rules that did not give it their keys."""


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
        self.auth_failures = AuthFailureLimiter(buckets=share.buckets())
        self.refusals = Refusals()
        self.host_metrics = HostMetrics(base.metrics, share)
        self._notifier = controllers.notifier
        self._authenticators = authentication.authenticators
        questions = {
            METRICS_QUESTION: self.host_metrics.answer,
            NOTICES_QUESTION: lambda _: json.dumps(self._notifier and self._notifier.report()).encode(),
            ISSUERS_QUESTION: lambda _: json.dumps(self._own_unready_issuers()).encode(),
            **refusal_answers(self.refusals),
        }
        self.worker_queries = WorkerQueries(questions, share)
        self.supervisor = build_supervisor(
            base,
            trust,
            upkeep.shared_keys,
            controllers.settings,
            lambda: self.health.report("readyz")[0],
            controllers.event_written,
        )
        """None unless the supervisor API of k3s is turned on."""
        sources = {**upkeep.expiry_watch.sources, **kubeconfigs(config)}
        self.status = ServerStatus(
            config=config,
            clock=clock,
            parts=base.parts,
            audit=base.audit,
            serving=trust.serving,
            sources=sources,
            snapshots=controllers.snapshots,
            lost_addresses=upkeep.lost_addresses.find,
        )
        self.pipeline = Pipeline(
            authenticators=authentication.authenticators,
            deferred_authentication=authentication.deferred_authentication,
            certificate_uses=authentication.certificate_uses,
            refusals=self.refusals,
            schemes=authentication.schemes,
            open_watches=self.open_watches,
            header_stripper=HeaderStripper(config[RequestHeaderSettings].names),
            dispatch=Router(self._services(base, trust, upkeep), Resources(registry, self.watches, clock)),
            registry=registry,
            audiences=config[ServiceAccountSettings].audiences,
            clock=clock,
            entropy=base.entropy,
            flow=self.flow,
            auth_failures=self.auth_failures,
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

    async def _notices(self) -> Obj | None:
        """Return the state of notices of all workers; None without a receiver."""
        if self._notifier is None:
            return None
        answers = [json.loads(answer) for answer in await self.worker_queries.ask(NOTICES_QUESTION)]
        return combined([self._notifier.report(), *filter(None, answers)])

    def _own_unready_issuers(self) -> list[Obj]:
        rows = (one for one in self._authenticators if isinstance(one, JoinRuleAuthenticator))
        return [issuer for one in rows for issuer in one.unready()]

    async def _unready_issuers(self) -> Sequence[Obj]:
        """Return the issuers of join rules that did not give a worker their keys, each once."""
        answers = [json.loads(answer) for answer in await self.worker_queries.ask(ISSUERS_QUESTION)]
        found = [issuer for some in (self._own_unready_issuers(), *answers) for issuer in some]
        return [*{issuer["issuer"]: issuer for issuer in reversed(found)}.values()]

    def _services(self, base: Foundation, trust: ServedTrust, upkeep: Upkeep) -> Services:
        config, parts, authentication = base.config, base.parts, trust.authentication
        ca = base.key_store.ca
        address = str(config.endpoints[0])
        tokens, keys = config[ServiceAccountSettings], authentication.tokens.keys
        return Services(
            api=ServedApi(resources=RESOURCES, server_address=address),
            health=self.health,
            metrics=partial(self.host_metrics.text, self.worker_queries),
            reviewers=Reviewers(
                registry=parts.registry,
                rbac=parts.rbac,
                authenticators=authentication.authenticators,
                deferred_authentication=authentication.deferred_authentication,
                audiences=tokens.audiences,
                entropy=base.entropy,
            ),
            token_requests=TokenRequests(
                registry=parts.registry,
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
            leave_handler=LeaveHandler(registry=parts.registry, entropy=base.entropy),
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
                deferred_authentication=authentication.deferred_authentication,
                registry=parts.registry,
                audiences=tokens.audiences,
                refusals=self.refusals,
                worker_queries=self.worker_queries,
            ),
            encryption=EncryptionReport(
                config_hash=lambda: parts.encryption.config_hash, usage=parts.encryption.storage.usage
            ),
            revocation_list=lambda: upkeep.revocation_list.current,
            status=StatusReport(
                read=self.status.report, notices=self._notices, join_rule_issuers=self._unready_issuers
            ),
        )
