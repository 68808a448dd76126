"""Controllers that run outside of a server, against any Kubernetes: which, with what rights, and which of them by default.

Rules kept here:
* A controller of `CONTROLLERS` is either in `STANDALONE` or, with the reason, in `IN_SERVER`.
* `on_by_default` is true only for what does no harm beside the same controller of kube-controller-manager, and needs no right to
  delete Secrets. RBAC cannot limit that right to bootstrap tokens, so that the token cleaner runs when it is named.
* Whatever claims the names of nodes runs with the controller that frees them, unless that is left out by name.
* Rights are least: a controller may list and watch the kinds that it watches, within `SCOPES`, and write what its row says.
* Kinds of the group mooring.dev are CustomResourceDefinitions there. Where one is missing, the controllers that watch it do not
  run: an approver that cannot read what was revoked must not approve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from mooring.api.mooring.group import GROUP
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import rule
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy
from mooring.controllers.node.lifecycle import GRACE_PERIOD, LEASE_NAMESPACE
from mooring.controllers.scope import Scope
from mooring.controllers.selection import ALIASES, select
from mooring.controllers.table import CONTROLLERS, ControllerSettings
from mooring.errors import ConfigError
from mooring.pki.rootca import RootCa
from mooring.pki.x509.authority import Authority
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, SECRET_TYPE
from mooring.trust.discovery import clusterinfo

SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "secrets": Scope(NAMESPACE, f"type={SECRET_TYPE}"),
        "configmaps": Scope(clusterinfo.NAMESPACE, f"metadata.name={clusterinfo.NAME}"),
        "endpoints": Scope("default", "metadata.name=kubernetes"),
        "services": Scope("default", "metadata.name=kubernetes"),
        "leases": Scope(LEASE_NAMESPACE),
    }
)
"""Parts of kinds that are followed. Of all others, every object."""

_CSR_GROUP = "certificates.k8s.io"
_CSRS = "certificatesigningrequests"
_APPROVAL, _STATUS = f"{_CSRS}/approval", f"{_CSRS}/status"
_CLIENT, _KUBELET_CLIENT, _SERVING, _LEGACY = (
    f"kubernetes.io/{name}"
    for name in ("kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving", "legacy-unknown")
)
SIGNER = "certificatesigningrequest-signing-controller"
NAME_KEEPER = "node-identity-controller"
"""Records which Node has a name, so that the name is free when the Node is gone."""
_REVIEWS = rule("create", "authorization.k8s.io", "subjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Permission:
    """A rule of RBAC in one namespace, or in the whole cluster."""

    rule: Obj
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """Declaration of one controller that runs outside of a server."""

    writes: tuple[Permission, ...]
    checks: tuple[str, ...] = ()
    """Issuance checks that may write for it. It runs all of them, or none."""
    on_by_default: bool = False

    @property
    def checks_issuance(self) -> bool:
        return bool(self.checks)


CHECK_WRITES: Mapping[str, tuple[Permission, ...]] = MappingProxyType(
    {
        "signer-policy": (),
        "revocation": (),
        "requester": (),
        "certified-names": (Permission(rule("create,update", GROUP, "nodeidentities")),),
        "machine-inventory": (Permission(rule("update", GROUP, "authorizedmachines")),),
        "bootstrap-token-limits": (Permission(rule("update", "", "secrets"), NAMESPACE),),
        "name-ownership": (Permission(rule("create,update", GROUP, "nodeidentities")),),
    }
)
"""Permissions that each issuance check needs for its writes."""
_ALL_CHECKS = tuple(CHECK_WRITES)
_CHECKS_OF_NODES = tuple(name for name in CHECK_WRITES if name != "bootstrap-token-limits")
"""Checks that write for a controller whose requests come from nodes alone, and never from a bootstrap token."""

STANDALONE: Mapping[str, Standalone] = MappingProxyType(
    {
        "bootstrap-signer-controller": Standalone(
            writes=(Permission(rule("update", "", "configmaps", clusterinfo.NAME), clusterinfo.NAMESPACE),),
            on_by_default=True,
        ),
        "token-cleaner-controller": Standalone(writes=(Permission(rule("delete", "", "secrets"), NAMESPACE),)),
        "certificatesigningrequest-approving-controller": Standalone(
            writes=(
                Permission(rule("update", _CSR_GROUP, _APPROVAL)),
                Permission(rule("approve", _CSR_GROUP, "signers", _KUBELET_CLIENT)),
                Permission(_REVIEWS),
            ),
            checks=_ALL_CHECKS,
        ),
        SIGNER: Standalone(
            writes=(
                Permission(rule("update", _CSR_GROUP, _STATUS)),
                Permission(rule("get,create", GROUP, "lineagerecords")),
                Permission(
                    rule("sign", _CSR_GROUP, "signers", ",".join((_CLIENT, _KUBELET_CLIENT, _SERVING, _LEGACY)))
                ),
            ),
            checks=_ALL_CHECKS,
        ),
        "certificatesigningrequest-cleaner-controller": Standalone(
            writes=(Permission(rule("delete", _CSR_GROUP, _CSRS)),)
        ),
        "kubelet-serving-approver": Standalone(
            writes=(
                Permission(rule("update", _CSR_GROUP, _APPROVAL)),
                Permission(rule("approve", _CSR_GROUP, "signers", _SERVING)),
            ),
            checks=_CHECKS_OF_NODES,
            on_by_default=True,
        ),
        "machine-inventory-approver": Standalone(
            writes=(
                Permission(rule("update", _CSR_GROUP, _APPROVAL)),
                Permission(rule("approve", _CSR_GROUP, "signers", _KUBELET_CLIENT)),
            ),
            checks=_ALL_CHECKS,
            on_by_default=True,
        ),
        "node-lifecycle-controller": Standalone(writes=(Permission(rule("update", "", "nodes,nodes/status")),)),
        NAME_KEEPER: Standalone(
            writes=(Permission(rule("delete,update", GROUP, "nodeidentities")),), on_by_default=True
        ),
        "revocation-cleaner": Standalone(writes=(Permission(rule("delete", GROUP, "certificaterevocations")),)),
    }
)

_KUBERNETES = "kube-controller-manager does this work in every cluster"
_API_SERVER = "the API server does this work itself"
_SUPERVISOR = "only a Mooring server is a supervisor, and guards what a supervisor states in a request"
_UNKNOWN_KINDS = "it would have to know every kind of the cluster"
_OWN_PODS = "it writes the version of the kind in which a Mooring server stores it"

IN_SERVER: Mapping[str, str] = MappingProxyType(
    {
        "podcertificaterequest-signing-controller": _OWN_PODS,
        "podcertificaterequest-cleaner-controller": _KUBERNETES,
        "root-ca-certificate-publisher-controller": _KUBERNETES,
        "kube-apiserver-serving-clustertrustbundle-publisher-controller": _KUBERNETES,
        "serviceaccount-controller": _KUBERNETES,
        "serviceaccount-token-controller": _KUBERNETES,
        "legacy-serviceaccount-token-cleaner-controller": _KUBERNETES,
        "namespace-controller": _UNKNOWN_KINDS,
        "garbage-collector-controller": _UNKNOWN_KINDS,
        "pod-garbage-collector-controller": _KUBERNETES,
        "k3s-supervisor-approver": _SUPERVISOR,
        "k3s-node-password-controller": _SUPERVISOR,
        "clusterrole-aggregation-controller": _KUBERNETES,
        "kubernetes-service-controller": _API_SERVER,
        "event-cleaner": _API_SERVER,
        "legacy-service-account-token-tracking": _API_SERVER,
    }
)
"""Controllers that run in a server only, each with the reason."""


def selected(items: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the controllers that the items of `--controllers` choose. Raises ConfigError."""
    for item in items:
        name = ALIASES.get(item.removeprefix("-"), item.removeprefix("-"))
        if name in IN_SERVER:
            raise ConfigError(f'controllers: "{name}" runs only in a Mooring server: {IN_SERVER[name]}')
    names = select(items, tuple(STANDALONE), [name for name, row in STANDALONE.items() if not row.on_by_default])
    if _claims_names(names) and f"-{NAME_KEEPER}" not in items:
        names = select((NAME_KEEPER, *names), tuple(STANDALONE))
    return names


def items_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the items of `--controllers` with which `selected` returns these names."""
    left_out = _claims_names(names) and NAME_KEEPER not in names
    return (*names, f"-{NAME_KEEPER}") if left_out else tuple(names)


def _claims_names(names: Iterable[str]) -> bool:
    return any(STANDALONE[name].checks_issuance for name in names)


def scopes_of(plurals: Iterable[str]) -> Mapping[str, Scope]:
    """Return the scopes of those kinds that have one."""
    return {plural: SCOPES[plural] for plural in plurals if plural in SCOPES}


def settings(
    authority_for: Callable[[str], Authority | None],
    signing_duration: timedelta,
    node_monitor_grace_period: timedelta = GRACE_PERIOD,
    machine_inventory_required: bool = False,
    signing_policy: Callable[[], SigningPolicy] = lambda: NO_POLICY,
    node_dns_suffixes: Sequence[str] = (),
) -> ControllerSettings:
    """Return settings from which the controllers of `STANDALONE` are built."""
    return ControllerSettings(
        authority_for=authority_for,
        root_ca=RootCa(b""),  # no controller that runs here publishes it
        signing_duration=signing_duration,
        signing_policy=signing_policy,
        node_monitor_grace_period=node_monitor_grace_period,
        machine_inventory_required=machine_inventory_required,
        node_dns_suffixes=node_dns_suffixes,
        server_records_deletions=False,
    )


def watched_kinds(names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the kinds that each controller watches."""
    without_keys = settings(no_authority, SIGNING_DURATION)
    return {name: tuple(CONTROLLERS[name](without_keys).watches) for name in names}


def written(name: str) -> tuple[Permission, ...]:
    """Return the rights to write that a controller needs."""
    row = STANDALONE[name]
    return (*row.writes, *(one for check in row.checks for one in CHECK_WRITES[check]))


def no_authority(signer_name: str) -> Authority | None:
    """Return None: without a CA of its own, a signer is left to other programs."""
    return None
