"""Controllers for any cluster: which there are, with what rights, and the Kubernetes objects that they need there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from mooring.api.customresource import custom_resource_definition
from mooring.api.kinds import BY_PLURAL
from mooring.api.paths import GROUP
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import binding, cluster_binding, cluster_role, role, rule, service_account
from mooring.controllers.actions import ALIASES, EVERYTHING, Scope, select
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy
from mooring.controllers.node import GRACE_PERIOD, LEASE_NAMESPACE
from mooring.controllers.silence import MARK, MARK_NAMESPACE
from mooring.controllers.table import CONTROLLERS, ControllerSettings
from mooring.errors import ConfigError
from mooring.pki.pem import RootCa
from mooring.pki.x509.authority import Authority
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, SECRET_TYPE
from mooring.trust.discovery import clusterinfo

# Controllers that run outside of a server, against any Kubernetes: which, with what rights, and which of them by default.
#
# Rules kept here:
# * A controller of `CONTROLLERS` is either in `STANDALONE` or, with the reason, in `IN_SERVER`.
# * `on_by_default` is true only for what does no harm beside the same controller of kube-controller-manager, and needs no right to
#   delete Secrets. RBAC cannot limit that right to bootstrap tokens, so that the token cleaner runs when it is named.
# * Whatever claims the names of nodes runs with the controller that frees them, unless that is left out by name.
# * Rights are least: a controller may list and watch the kinds that it watches, within `SCOPES`, and write what its row says.
# * Kinds of the group mooring.dev are CustomResourceDefinitions there. Where one is missing, the controllers that watch it do not
#   run: an approver that cannot read what was revoked must not approve.

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
CLUSTER_INFO_SIGNER, MEMBER_ENDER = "bootstrap-signer-controller", "silent-node-controller"
_MARK_SCOPE = Scope(MARK_NAMESPACE, f"metadata.name={MARK}")
"""ConfigMap of silent-node-controller. A process follows one part of a kind, so that the two do not share a process."""

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
        "join-rule-limits": (Permission(rule("update", GROUP, "joinrules/status")),),
        "uniqueness": (),
        "name-ownership": (Permission(rule("create,update", GROUP, "nodeidentities")),),
    }
)
"""Permissions that each issuance check needs for its writes."""
_ALL_CHECKS = tuple(CHECK_WRITES)
_CHECKS_OF_NODES = tuple(name for name in CHECK_WRITES if name not in ("bootstrap-token-limits", "join-rule-limits"))
"""Checks that write for a controller whose requests come from nodes alone, and never from a bootstrap token or a join rule."""

STANDALONE: Mapping[str, Standalone] = MappingProxyType(
    {
        CLUSTER_INFO_SIGNER: Standalone(
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
        MEMBER_ENDER: Standalone(
            writes=(
                Permission(rule("delete", "", "nodes")),
                Permission(rule("update", GROUP, "nodeidentities")),
                # RBAC cannot limit a creation to a name.
                Permission(rule("create", "", "configmaps"), MARK_NAMESPACE),
                Permission(rule("update", "", "configmaps", MARK), MARK_NAMESPACE),
                Permission(rule("create", "", "events"), "default"),
            )
        ),
        NAME_KEEPER: Standalone(
            writes=(Permission(rule("delete,update", GROUP, "nodeidentities")),), on_by_default=True
        ),
        "duplicate-identity-controller": Standalone(
            writes=(
                Permission(rule("update", GROUP, "nodeidentities/status")),
                Permission(rule("create", "", "events"), "default"),
            )
        ),
        "identity-event-controller": Standalone(
            writes=(
                Permission(rule("create", "", "events"), "default"),
                Permission(rule("create", "", "events"), NAMESPACE),  # about token Secrets
            )
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
        "issuance-log-trimmer": "another API server lets whoever may delete records delete all of them",
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
    # The others would not see cluster-info, and an approver not the addresses in it.
    others = [name for name, kinds in watched_kinds(names).items() if "configmaps" in kinds and name != MEMBER_ENDER]
    if MEMBER_ENDER in names and others:
        raise ConfigError(
            f"controllers: {MEMBER_ENDER} and {others[0]} follow different ConfigMaps; run {MEMBER_ENDER} in a process "
            f"of its own, --controllers={MEMBER_ENDER}, with another --leader-elect-resource-name"
        )
    if _claims_names(names) and f"-{NAME_KEEPER}" not in items:
        names = select((NAME_KEEPER, *names), tuple(STANDALONE))
    return names


def items_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the items of `--controllers` with which `selected` returns these names."""
    left_out = _claims_names(names) and NAME_KEEPER not in names
    return (*names, f"-{NAME_KEEPER}") if left_out else tuple(names)


def _claims_names(names: Iterable[str]) -> bool:
    return any(STANDALONE[name].checks_issuance for name in names)


def scopes_of(names: Sequence[str]) -> Mapping[str, Scope]:
    """Return the scopes of those kinds that these controllers watch and that have one."""
    scopes = {**SCOPES, "configmaps": _MARK_SCOPE} if MEMBER_ENDER in names else SCOPES
    watched = {plural for plurals in watched_kinds(names).values() for plural in plurals}
    return {plural: scope for plural, scope in scopes.items() if plural in watched}


def settings(
    authority_for: Callable[[str], Authority | None],
    signing_duration: timedelta,
    node_monitor_grace_period: timedelta = GRACE_PERIOD,
    machine_inventory_required: bool = False,
    signing_policy: Callable[[], SigningPolicy] = lambda: NO_POLICY,
    node_dns_suffixes: Sequence[str] = (),
    end_silent_members_after: timedelta | None = None,
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
        end_silent_members_after=end_silent_members_after,
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


# Kubernetes objects that `mooring controllers` needs in a cluster: rights, a Deployment, and the kinds of mooring.dev.
#
# Rules kept here:
# * Rights are least for the chosen controllers: what they watch within `SCOPES`, what they write, the definitions of the kinds of
#   mooring.dev, and the Lease. A right within a namespace stands in a Role of that namespace.
# * Roles outside of the installation's own namespace carry its name, so that two installations do not replace each other's
#   rights.
# * The Pods meet the Pod security standard `restricted`. No private key is printed: the CA of a signer is a Secret that the
#   operator creates.

NAME = "mooring-controllers"
LEASE = "mooring-standalone-controllers"
HEALTH_PORT = 10290
REPLICAS = 2
"""One works and one waits for its Lease."""
SIGNING_CA = "mooring-signing-ca"
"""Secret with the CA of csrsigner."""
CA_DIRECTORY = "/etc/mooring/signing"
_LABELS = {"app.kubernetes.io/name": NAME}
_USER = 65532
"""Number that images without a user database use for `nonroot`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Choices of the operator."""

    controllers: tuple[str, ...]
    """Canonical names of the chosen controllers."""
    namespace: str
    image: str


def manifests(installation: Installation, watches: Mapping[str, Sequence[str]]) -> tuple[Obj, ...]:
    """Return the objects in an order in which they can be created. `watches` has the watched kinds of each controller."""
    permissions = tuple(_permissions(installation, watches))
    return (
        *(custom_resource_definition(BY_PLURAL[plural]) for plural in _own_kinds(installation, watches)),
        _namespace(installation.namespace),
        _object("v1", "ServiceAccount", NAME, installation.namespace),
        *roles(permissions, installation.namespace),
        _deployment(installation),
    )


def roles(permissions: Iterable[Permission], namespace: str) -> tuple[Obj, ...]:
    """Return roles with these rights, and bindings to the ServiceAccount in `namespace`."""
    account = service_account(namespace, NAME)
    rules: dict[str, list[Obj]] = {}
    for permission in permissions:
        listed = rules.setdefault(permission.namespace, [])
        if permission.rule not in listed:
            listed.append(permission.rule)
    name = role_name(namespace)
    objects = [cluster_role(name, *rules.pop("", ())), cluster_binding(name, name, account)]
    for place, allowed in sorted(rules.items()):
        objects += [role(place, name, *allowed), binding(place, name, name, account)]
    return tuple(objects)


def role_name(namespace: str) -> str:
    """Return the name of the roles and bindings of the installation in a namespace."""
    return f"{NAME}:{namespace}"


def _permissions(installation: Installation, watches: Mapping[str, Sequence[str]]) -> Iterable[Permission]:
    scopes = scopes_of(installation.controllers)
    for plural in sorted({plural for name in installation.controllers for plural in watches[name]}):
        scope = scopes.get(plural, EVERYTHING)
        group = BY_PLURAL[plural].resource.group
        yield Permission(rule("list,watch", group, plural, scope.object_name), scope.namespace)
    if definitions := [f"{plural}.{GROUP}" for plural in _own_kinds(installation, watches)]:
        yield Permission(rule("get", "apiextensions.k8s.io", "customresourcedefinitions", ",".join(definitions)))
    for name in installation.controllers:
        yield from written(name)
    yield Permission(rule("create", "coordination.k8s.io", "leases"), installation.namespace)
    yield Permission(rule("get,update", "coordination.k8s.io", "leases", LEASE), installation.namespace)


def _own_kinds(installation: Installation, watches: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the plurals of the kinds of mooring.dev that the controllers read or write."""
    named = {plural for name in installation.controllers for plural in watches[name]}
    for name in installation.controllers:
        resources = (one.rule["resources"] for one in written(name) if GROUP in one.rule["apiGroups"])
        named.update(resource.partition("/")[0] for named_in_rule in resources for resource in named_in_rule)
    return sorted(plural for plural in named if BY_PLURAL[plural].resource.group == GROUP)


def _namespace(name: str) -> Obj:
    obj = _object("v1", "Namespace", name)
    obj["metadata"]["labels"] |= {"pod-security.kubernetes.io/enforce": "restricted"}
    return obj


def _deployment(installation: Installation) -> Obj:
    signs = SIGNER in installation.controllers
    health = {"port": "health", "scheme": "HTTP"}
    container: Obj = {
        "name": "controllers",
        "image": installation.image,
        "args": list(_arguments(installation, signs)),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
        "livenessProbe": {"httpGet": health | {"path": "/livez"}, "initialDelaySeconds": 30, "periodSeconds": 20},
        "readinessProbe": {"httpGet": health | {"path": "/readyz"}},
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod: Obj = {
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": _LABELS},
                        },
                    }
                ]
            }
        },
        "containers": [container],
    }
    if signs:
        container["volumeMounts"] = [{"name": "signing-ca", "mountPath": CA_DIRECTORY, "readOnly": True}]
        pod["volumes"] = [{"name": "signing-ca", "secret": {"secretName": SIGNING_CA, "defaultMode": 0o440}}]
    obj = _object("apps/v1", "Deployment", NAME, installation.namespace)
    obj["spec"] = {
        "replicas": REPLICAS,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
    return obj


def _arguments(installation: Installation, signs: bool) -> Iterable[str]:
    yield "controllers"
    yield f"--controllers={','.join(items_of(installation.controllers))}"
    yield f"--leader-elect-resource-namespace={installation.namespace}"
    yield "--healthz-bind-address=$(POD_IP)"
    yield f"--healthz-port={HEALTH_PORT}"
    if signs:
        yield f"--cluster-signing-cert-file={CA_DIRECTORY}/tls.crt"
        yield f"--cluster-signing-key-file={CA_DIRECTORY}/tls.key"


def _object(api_version: str, kind: str, name: str, namespace: str = "") -> Obj:
    place = {"namespace": namespace} if namespace else {}
    return {"kind": kind, "apiVersion": api_version, "metadata": {"name": name, **place, "labels": dict(_LABELS)}}
