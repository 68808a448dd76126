"""`CONTROLLERS`: every controller by its canonical name, and the settings that they are built from (law 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from mooring.api.core.service.allocation import DEFAULT_RANGE, api_address
from mooring.controllers.actions import Controller
from mooring.controllers.bootstrap.bootstrapsigner import BootstrapSigner
from mooring.controllers.bootstrap.tokencleaner import TokenCleaner
from mooring.controllers.certificates.approver import CsrApprover
from mooring.controllers.certificates.cleaner import CsrCleaner
from mooring.controllers.certificates.rootcacertpublisher import RootCaCertPublisher
from mooring.controllers.certificates.signer import CsrSigner
from mooring.controllers.clusterroleaggregation import ClusterRoleAggregation
from mooring.controllers.eventcleaner import EventCleaner
from mooring.controllers.garbagecollector.collector import GarbageCollector
from mooring.controllers.kubernetesservice import PORT, KubernetesService
from mooring.controllers.namespace.deletion import NamespaceController
from mooring.controllers.podgc import PodGarbageCollector
from mooring.controllers.serviceaccount.legacytokencleaner import LegacyTokenCleaner
from mooring.controllers.serviceaccount.legacytokentracking import LegacyTokenTracking
from mooring.controllers.serviceaccount.serviceaccounts import ServiceAccountController
from mooring.controllers.serviceaccount.tokens import ServiceAccountTokenController
from mooring.pki.jwt.token import TokenKeys
from mooring.pki.rootca import RootCa
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.profiles import SIGNING_DURATION


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings and keys from which controllers are built."""

    authority: Authority
    root_ca: RootCa
    signing_duration: timedelta = SIGNING_DURATION
    token_keys: TokenKeys | None = None
    """Keys that sign the tokens in Secrets; None when none are to be signed."""
    addresses: tuple[str, ...] = ()
    port: int = PORT
    """Addresses and port of the API server for Pods; no address when none is known that Pods can reach."""
    service_address: str = api_address(DEFAULT_RANGE)


CONTROLLERS: Mapping[str, Callable[[ControllerSettings], Controller]] = MappingProxyType(
    {
        "bootstrap-signer-controller": lambda settings: BootstrapSigner(),
        "token-cleaner-controller": lambda settings: TokenCleaner(),
        "certificatesigningrequest-approving-controller": lambda settings: CsrApprover(),
        "certificatesigningrequest-signing-controller": lambda settings: CsrSigner(
            settings.authority, settings.signing_duration
        ),
        "certificatesigningrequest-cleaner-controller": lambda settings: CsrCleaner(),
        "root-ca-certificate-publisher-controller": lambda settings: RootCaCertPublisher(settings.root_ca),
        "serviceaccount-controller": lambda settings: ServiceAccountController(),
        "serviceaccount-token-controller": lambda settings: ServiceAccountTokenController(
            settings.token_keys, settings.root_ca
        ),
        "legacy-serviceaccount-token-cleaner-controller": lambda settings: LegacyTokenCleaner(),
        "namespace-controller": lambda settings: NamespaceController(),
        "garbage-collector-controller": lambda settings: GarbageCollector(),
        "pod-garbage-collector-controller": lambda settings: PodGarbageCollector(),
        "clusterrole-aggregation-controller": lambda settings: ClusterRoleAggregation(),
        "kubernetes-service-controller": lambda settings: KubernetesService(
            settings.addresses, settings.port, settings.service_address
        ),
        "event-cleaner": lambda settings: EventCleaner(),
        "legacy-service-account-token-tracking": lambda settings: LegacyTokenTracking(),
    }
)
"""Factories by kube-controller-manager's canonical name. The last three do what kube-apiserver does in its own process."""


def build(settings: ControllerSettings) -> tuple[Controller, ...]:
    """Build all controllers, in order."""
    return tuple(make(settings) for make in CONTROLLERS.values())
