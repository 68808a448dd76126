"""`CONTROLLERS`: every controller by its canonical name, and the settings that they are built from (law 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from mooring.api.core.service import DEFAULT_RANGE, api_address
from mooring.authn.x509 import ClientCrls
from mooring.controllers.actions import Controller, select
from mooring.controllers.bootstrap import BootstrapSigner, TokenCleaner
from mooring.controllers.certificates.approval import (
    CsrApprover,
    InventoryApprover,
    ServingApprover,
    SupervisorApprover,
)
from mooring.controllers.certificates.cleaner import (
    CsrCleaner,
    IssuanceLogTrimmer,
    PodRequestCleaner,
    RevocationCleaner,
    RevokedRequests,
)
from mooring.controllers.certificates.inventory import MachineInventory
from mooring.controllers.certificates.issuance import IssuanceCheck
from mooring.controllers.certificates.noderecovery import NodeRecovery
from mooring.controllers.certificates.publishing import RootCaCertPublisher, TrustBundlePublisher
from mooring.controllers.certificates.requester import BootstrapTokenCheck, JoinRuleCheck, RequesterCheck
from mooring.controllers.certificates.sanpolicy.check import CertifiedNames
from mooring.controllers.certificates.sanpolicy.ownership import NameOwnership
from mooring.controllers.certificates.signing.podsigner import PodSigner
from mooring.controllers.certificates.signing.signer import CsrSigner, SignerPolicy
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy
from mooring.controllers.cleanup import EventCleaner, PodGarbageCollector
from mooring.controllers.clusterroleaggregation import ClusterRoleAggregation
from mooring.controllers.garbagecollector import GarbageCollector
from mooring.controllers.identityevents import IdentityEvents
from mooring.controllers.kubernetesservice import PORT, KubernetesService
from mooring.controllers.namespace import NamespaceController
from mooring.controllers.node import GRACE_PERIOD, NodeIdentityController, NodeLifecycle, NodePasswordController
from mooring.controllers.serviceaccount import (
    LegacyTokenCleaner,
    LegacyTokenTracking,
    ServiceAccountController,
    ServiceAccountTokenController,
)
from mooring.controllers.silence import SilentNodes
from mooring.controllers.uniqueness import DuplicateIdentityController, UniqueMachine
from mooring.pki.jwt.token import TokenKeys
from mooring.pki.pem import RootCa
from mooring.pki.x509.authority import Authority
from mooring.settings.nodes import REPORT


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings and keys from which controllers are built."""

    authority_for: Callable[[str], Authority | None]
    """Returns the authority that signs for a signer now; None for a signer that is left to other programs."""
    root_ca: RootCa
    signing_policy: Callable[[], SigningPolicy] = lambda: NO_POLICY
    """Returns the signing policy in force."""
    signing_duration: timedelta
    token_keys: TokenKeys | None = None
    """Keys that sign the tokens in Secrets; None when none are to be signed."""
    addresses: Callable[[], Sequence[str]] = lambda: ()
    """Returns the addresses of the API servers for Pods; none when none is known that Pods can reach."""
    port: int = PORT
    """Port of the API servers."""
    service_address: str = api_address(DEFAULT_RANGE)
    server_names: Callable[[], Iterable[str]] = lambda: ()
    """Returns the names and addresses of the serving certificate of this server."""
    node_dns_suffixes: Sequence[str] = ()
    """Suffixes of DNS names for which any node may be certified."""
    machine_inventory_required: bool = False
    """Every joining machine needs an AuthorizedMachine, or the approval of a person."""
    node_recovery: NodeRecovery | None = None
    """Rule for machines whose certificate has expired; None leaves their requests to a person."""
    node_monitor_grace_period: timedelta = GRACE_PERIOD
    end_silent_members_after: timedelta | None = None
    """Silence after which a machine is removed whose token says nothing; None for never."""
    issuance_log_retention: timedelta | None = None
    """Time that a record of the issuance log outlives its certificates; None keeps all."""
    trusts_source_address: bool = False
    """True when the API server itself records the address of each requester, and what its supervisor states, as Mooring does."""
    crls: ClientCrls = field(default_factory=ClientCrls)
    """The CRLs of the CAs that verify clients."""
    deletion_ends_membership: bool = True
    """Deleting a Node ends the membership of its machine."""
    duplicate_identity: str = REPORT
    """Effect of two machines that use one identity, one of DUPLICATE_POLICIES."""
    server_records_deletions: bool = True
    """The API server records the uid of a Node before it deletes it, as Mooring does."""


ISSUANCE_CHECKS: Mapping[str, Callable[[ControllerSettings], IssuanceCheck]] = MappingProxyType(
    {
        "signer-policy": lambda settings: SignerPolicy(settings.signing_policy),
        "revocation": lambda settings: RevokedRequests(),
        "requester": lambda settings: RequesterCheck(settings.trusts_source_address, settings.crls),
        "certified-names": lambda settings: CertifiedNames(
            server_names=settings.server_names,
            dns_suffixes=settings.node_dns_suffixes,
            policy=settings.signing_policy,
            signing_duration=settings.signing_duration,
            trusts_source_address=settings.trusts_source_address,
        ),
        "machine-inventory": lambda settings: MachineInventory(
            settings.machine_inventory_required, settings.trusts_source_address
        ),
        "bootstrap-token-limits": lambda settings: BootstrapTokenCheck(settings.trusts_source_address),
        "join-rule-limits": lambda settings: JoinRuleCheck(settings.trusts_source_address),
        "uniqueness": lambda settings: UniqueMachine(settings.duplicate_identity),
        "name-ownership": lambda settings: NameOwnership(settings.authority_for, settings.signing_duration),
    }
)
"""Checks that the approver and the signer run before a certificate is issued, by name and in order."""


def issuance_checks(settings: ControllerSettings) -> tuple[IssuanceCheck, ...]:
    """Build all issuance checks, in order."""
    return tuple(make(settings) for make in ISSUANCE_CHECKS.values())


def checks_before_password(settings: ControllerSettings) -> tuple[IssuanceCheck, ...]:
    """Build the issuance checks that see a request before its node password is stored.

    The check of the name needs the password. `password_hold` is its part that comes before.
    """
    return tuple(make(settings) for name, make in ISSUANCE_CHECKS.items() if name != "name-ownership")


CONTROLLERS: Mapping[str, Callable[[ControllerSettings], Controller]] = MappingProxyType(
    {
        "bootstrap-signer-controller": lambda settings: BootstrapSigner(),
        "token-cleaner-controller": lambda settings: TokenCleaner(),
        "certificatesigningrequest-approving-controller": lambda settings: CsrApprover(
            issuance_checks(settings),
            settings.node_recovery,
            MachineInventory(settings.machine_inventory_required, settings.trusts_source_address),
        ),
        "certificatesigningrequest-signing-controller": lambda settings: CsrSigner(
            settings.authority_for,
            settings.signing_duration,
            issuance_checks(settings),
            settings.trusts_source_address,
            settings.signing_policy,
            guards_extra=settings.trusts_source_address,
        ),
        "certificatesigningrequest-cleaner-controller": lambda settings: CsrCleaner(),
        "podcertificaterequest-signing-controller": lambda settings: PodSigner(
            settings.authority_for, settings.signing_duration, settings.signing_policy, issuance_checks(settings)
        ),
        "podcertificaterequest-cleaner-controller": lambda settings: PodRequestCleaner(),
        "kubelet-serving-approver": lambda settings: ServingApprover(issuance_checks(settings)),
        "machine-inventory-approver": lambda settings: InventoryApprover(
            issuance_checks(settings), MachineInventory(trusts_source_address=settings.trusts_source_address)
        ),
        "k3s-supervisor-approver": lambda settings: SupervisorApprover(issuance_checks(settings)),
        "root-ca-certificate-publisher-controller": lambda settings: RootCaCertPublisher(settings.root_ca),
        "kube-apiserver-serving-clustertrustbundle-publisher-controller": lambda settings: TrustBundlePublisher(
            settings.root_ca
        ),
        "serviceaccount-controller": lambda settings: ServiceAccountController(),
        "serviceaccount-token-controller": lambda settings: ServiceAccountTokenController(
            settings.token_keys, settings.root_ca
        ),
        "legacy-serviceaccount-token-cleaner-controller": lambda settings: LegacyTokenCleaner(),
        "namespace-controller": lambda settings: NamespaceController(),
        "garbage-collector-controller": lambda settings: GarbageCollector(),
        "pod-garbage-collector-controller": lambda settings: PodGarbageCollector(),
        "node-identity-controller": lambda settings: NodeIdentityController(
            settings.signing_duration, settings.deletion_ends_membership, not settings.server_records_deletions
        ),
        "duplicate-identity-controller": lambda settings: DuplicateIdentityController(
            settings.duplicate_identity, settings.server_records_deletions
        ),
        "identity-event-controller": lambda settings: IdentityEvents(
            settings.server_records_deletions, settings.trusts_source_address
        ),
        "node-lifecycle-controller": lambda settings: NodeLifecycle(settings.node_monitor_grace_period),
        "silent-node-controller": lambda settings: SilentNodes(settings.end_silent_members_after),
        "k3s-node-password-controller": lambda settings: NodePasswordController(),
        "clusterrole-aggregation-controller": lambda settings: ClusterRoleAggregation(),
        "kubernetes-service-controller": lambda settings: KubernetesService(
            settings.addresses, settings.port, settings.service_address
        ),
        "revocation-cleaner": lambda settings: RevocationCleaner(
            settings.node_recovery.max_age if settings.node_recovery else None
        ),
        "issuance-log-trimmer": lambda settings: IssuanceLogTrimmer(settings.issuance_log_retention),
        "event-cleaner": lambda settings: EventCleaner(),
        "legacy-service-account-token-tracking": lambda settings: LegacyTokenTracking(),
    }
)
"""Factories by kube-controller-manager's canonical name. The last two do what kube-apiserver does in its own process."""


def selected(items: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the controllers that the items of `--controllers` choose for a server. Raises ConfigError."""
    return select(items, tuple(CONTROLLERS))


def build(settings: ControllerSettings, names: Collection[str] = CONTROLLERS.keys()) -> tuple[Controller, ...]:
    """Build all controllers, or those named, in order."""
    return tuple(make(settings) for name, make in CONTROLLERS.items() if name in names)


def without_effect(settings: ControllerSettings, names: Collection[str]) -> Sequence[str]:
    """Return a line for each setting whose controller is not among `names`."""
    wanted = (
        (settings.end_silent_members_after, "end-silent-members-after", "silent-node-controller"),
        (settings.issuance_log_retention, "issuance-log-retention", "issuance-log-trimmer"),
    )
    return [
        f"{flag} has no effect here: {controller} does not run; name it in controllers"
        for value, flag, controller in wanted
        if value is not None and controller not in names
    ]
