"""Kubernetes objects that `mooring controllers` needs in a cluster: rights, a Deployment, and the kinds of mooring.dev.

Rules kept here:
* Rights are least for the chosen controllers: what they watch within `SCOPES`, what they write, the definitions of the kinds of
  mooring.dev, and the Lease. A right within a namespace stands in a Role of that namespace.
* Roles outside of the installation's own namespace carry its name, so that two installations do not replace each other's rights.
* The Pods meet the Pod security standard `restricted`. No private key is printed: the CA of a signer is a Secret that the operator
  creates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mooring.api.customresource import custom_resource_definition
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.group import GROUP
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import binding, cluster_binding, cluster_role, role, rule, service_account
from mooring.controllers.scope import EVERYTHING
from mooring.controllers.standalonetable import SCOPES, SIGNER, Permission, items_of, written

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
    for plural in sorted({plural for name in installation.controllers for plural in watches[name]}):
        scope = SCOPES.get(plural, EVERYTHING)
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
        named.update(*(one.rule["resources"] for one in written(name) if GROUP in one.rule["apiGroups"]))
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
