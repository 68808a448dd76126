"""Table of admission plugins, in the order in which they run (law 10).

Source: docs/protocol/certificate-signing-requests.md#admission, docs/protocol/rbac.md#escalation,
docs/protocol/node-authorization.md#noderestriction, docs/protocol/namespaces.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from mooring.api.core.service import DEFAULT_RANGE
from mooring.errors import ConfigError
from mooring.registry.admission.certificates import (
    BootstrapTokenLimits,
    CertificateApproval,
    CertificateSigning,
    CertificateSubjectRestriction,
    ClusterTrustBundleAttest,
    JoinRequests,
    JoinRuleExpressions,
    KnownRevocations,
    KnownSerialNumbers,
    LineageAppendOnly,
    PodCertificateSigning,
    SettledTombstones,
    SupervisorRequests,
)
from mooring.registry.admission.noderestriction import NodeRestriction
from mooring.registry.admission.nodes import K3sControllerRestriction, NodeMembership, RecoveringNodeRestriction
from mooring.registry.admission.objects import NamespaceLifecycle, OwnerReferencesPermissionEnforcement, RbacEscalation
from mooring.registry.admission.pods import DefaultTolerationSeconds, ServiceAccount
from mooring.registry.admission.request import Admission
from mooring.registry.admission.services import ServiceClusterIP, ServiceNodePort
from mooring.settings.addresses import Network


class PluginRow(NamedTuple):
    """A row of the table."""

    make: Callable[[], Admission]
    is_fixed: bool = False
    is_judge: bool = False


PLUGINS: Mapping[str, PluginRow] = {
    "NamespaceLifecycle": PluginRow(NamespaceLifecycle),
    "ServiceAccount": PluginRow(ServiceAccount),
    "DefaultTolerationSeconds": PluginRow(DefaultTolerationSeconds),
    "NodeRestriction": PluginRow(NodeRestriction),
    "RecoveringNodeRestriction": PluginRow(RecoveringNodeRestriction, is_fixed=True),
    "K3sControllerRestriction": PluginRow(K3sControllerRestriction, is_fixed=True),
    "SupervisorRequests": PluginRow(SupervisorRequests, is_fixed=True),
    "NodeMembership": PluginRow(NodeMembership, is_fixed=True, is_judge=True),
    "ServiceClusterIP": PluginRow(ServiceClusterIP, is_fixed=True),
    "ServiceNodePort": PluginRow(ServiceNodePort, is_fixed=True),
    "OwnerReferencesPermissionEnforcement": PluginRow(
        OwnerReferencesPermissionEnforcement, is_fixed=True, is_judge=True
    ),
    "CertificateApproval": PluginRow(CertificateApproval, is_judge=True),
    "CertificateSigning": PluginRow(CertificateSigning, is_judge=True),
    "ClusterTrustBundleAttest": PluginRow(ClusterTrustBundleAttest, is_judge=True),
    "PodCertificateSigning": PluginRow(PodCertificateSigning, is_fixed=True, is_judge=True),
    "CertificateSubjectRestriction": PluginRow(CertificateSubjectRestriction),
    "BootstrapTokenLimits": PluginRow(BootstrapTokenLimits),
    "JoinRequests": PluginRow(JoinRequests, is_fixed=True),
    "JoinRuleExpressions": PluginRow(JoinRuleExpressions, is_fixed=True),
    "LineageAppendOnly": PluginRow(LineageAppendOnly, is_fixed=True),
    "KnownSerialNumbers": PluginRow(KnownSerialNumbers),
    "KnownRevocations": PluginRow(KnownRevocations, is_fixed=True),
    "SettledTombstones": PluginRow(SettledTombstones, is_fixed=True),
    "RBACEscalation": PluginRow(RbacEscalation, is_fixed=True, is_judge=True),
}
ADMISSION: Mapping[str, Callable[[], Admission]] = {name: plugin.make for name, plugin in PLUGINS.items()}
ALWAYS_ENABLED = frozenset(name for name, plugin in PLUGINS.items() if plugin.is_fixed)
"""Plugins that cannot be disabled: in kube-apiserver the storage of Services, RBAC and PodCertificateRequests does their work.
RecoveringNodeRestriction goes with an authenticator of Mooring's own (`--node-recovery`), K3sControllerRestriction and
SupervisorRequests with signers.
The setting `--node-deletion` decides on membership.
The issuance log of certificates proves nothing if its plugin can be turned off.
OwnerReferencesPermissionEnforcement keeps a right to update from being a right to delete."""
JUDGES_OF_RIGHTS = frozenset(name for name, plugin in PLUGINS.items() if plugin.is_judge)
"""Plugins that ask whether the user may do more than the request says, and change nothing. They are called again at the commit."""


def build(
    disabled: Collection[str] = (),
    services: Network = DEFAULT_RANGE,
    *,
    accepts_tokens: bool = True,
    join_request_networks: tuple[Network, ...] | None = None,
) -> tuple[Admission, ...]:
    """Return all plugins but the disabled ones, in order. Raises ConfigError for names that cannot be disabled.

    `services` is the address range of Services. `accepts_tokens`: the server accepts bootstrap tokens. `join_request_networks`:
    those from which machines without a credential may ask, none for all; None where they may not.
    """
    for name in disabled:
        if name not in ADMISSION or name in ALWAYS_ENABLED:
            known = ", ".join(one for one in ADMISSION if one not in ALWAYS_ENABLED)
            raise ConfigError(f'disable-admission-plugins: "{name}" is not one of {known}')
    configured: Mapping[str, Admission] = {
        "ServiceClusterIP": ServiceClusterIP(services),
        "BootstrapTokenLimits": BootstrapTokenLimits(accepts_tokens),
        "JoinRequests": JoinRequests(join_request_networks),
    }
    return tuple(configured.get(name) or make() for name, make in ADMISSION.items() if name not in disabled)
