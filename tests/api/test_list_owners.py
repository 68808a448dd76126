"""Server-side apply ownership of every list and map in stored kinds: atomic, by keys, or as a set.

The table is that of the structured-merge-diff schema that client-go carries (k8s.io/client-go applyconfigurations/internal), for
the kinds that Mooring stores. Lists that it does not name are one value, maps that it does not name are divided by key.
"""

from __future__ import annotations

from mooring.api.kinds import KINDS
from mooring.apimachinery.schema import ListOf, MapOf, Message

ONE, SET = "one value", "set"
TABLE = {
    "api.v1alpha1.NodeIdentityStatus.conditions": "type",
    "certificates.v1.CertificateSigningRequestStatus.conditions": "type",
    "certificates.v1.PodCertificateRequestStatus.conditions": "type",
    "certificates.v1beta1.PodCertificateRequestStatus.conditions": "type",
    "core.v1.ConfigMapKeySelector": ONE,
    "core.v1.Container.env": "name",
    "core.v1.Container.ports": "containerPort protocol",
    "core.v1.Container.volumeDevices": "devicePath",
    "core.v1.Container.volumeMounts": "mountPath",
    "core.v1.ContainerRestartRuleOnExitCodes.values": SET,
    "core.v1.ContainerStatus.allocatedResourcesStatus": "name",
    "core.v1.ContainerStatus.volumeMounts": "mountPath",
    "core.v1.EndpointAddress": ONE,
    "core.v1.EndpointPort": ONE,
    "core.v1.EphemeralContainer.env": "name",
    "core.v1.EphemeralContainer.ports": "containerPort protocol",
    "core.v1.EphemeralContainer.volumeDevices": "devicePath",
    "core.v1.EphemeralContainer.volumeMounts": "mountPath",
    "core.v1.FileKeySelector": ONE,
    "core.v1.LocalObjectReference": ONE,
    "core.v1.NamespaceStatus.conditions": "type",
    "core.v1.NodeSelector": ONE,
    "core.v1.NodeSelectorTerm": ONE,
    "core.v1.NodeSpec.podCIDRs": SET,
    "core.v1.NodeStatus.addresses": "type",
    "core.v1.NodeStatus.conditions": "type",
    "core.v1.ObjectFieldSelector": ONE,
    "core.v1.ObjectReference": ONE,
    "core.v1.PodSpec.containers": "name",
    "core.v1.PodSpec.ephemeralContainers": "name",
    "core.v1.PodSpec.hostAliases": "ip",
    "core.v1.PodSpec.imagePullSecrets": "name",
    "core.v1.PodSpec.initContainers": "name",
    "core.v1.PodSpec.nodeSelector": ONE,
    "core.v1.PodSpec.resourceClaims": "name",
    "core.v1.PodSpec.schedulingGates": "name",
    "core.v1.PodSpec.topologySpreadConstraints": "topologyKey whenUnsatisfiable",
    "core.v1.PodSpec.volumes": "name",
    "core.v1.PodStatus.conditions": "type",
    "core.v1.PodStatus.podIPs": "ip",
    "core.v1.PodStatus.resourceClaimStatuses": "name",
    "core.v1.ResourceFieldSelector": ONE,
    "core.v1.ResourceRequirements.claims": "name",
    "core.v1.ResourceStatus.resources": "resourceID",
    "core.v1.SecretKeySelector": ONE,
    "core.v1.ServiceAccount.secrets": "name",
    "core.v1.ServiceSpec.ports": "port protocol",
    "core.v1.ServiceSpec.selector": ONE,
    "core.v1.ServiceStatus.conditions": "type",
    "core.v1.TypedLocalObjectReference": ONE,
    "discovery.v1.Endpoint.addresses": SET,
    "discovery.v1.EndpointPort": ONE,
    "meta.v1.LabelSelector": ONE,
    "meta.v1.ObjectMeta.finalizers": SET,
    "meta.v1.ObjectMeta.ownerReferences": "uid",
    "meta.v1.OwnerReference": ONE,
    "policy.v1.PodDisruptionBudgetStatus.conditions": "type",
    "rbac.v1.RoleRef": ONE,
    "rbac.v1.Subject": ONE,
    "storage.v1.CSINodeSpec.drivers": "name",
}


def _divided(message: Message, found: dict[str, str], seen: set[str]) -> dict[str, str]:
    if message.name in seen:
        return found
    seen.add(message.name)
    name = ".".join(message.name.split(".")[-3:])
    if message.atomic:
        found[name] = ONE
    for field in message.fields:
        if field.list_keys:
            found[f"{name}.{field.name}"] = " ".join(field.list_keys)
        elif field.list_set:
            found[f"{name}.{field.name}"] = SET
        elif field.map_atomic:
            found[f"{name}.{field.name}"] = ONE
        kind = field.type
        while isinstance(kind, ListOf | MapOf):
            kind = kind.item if isinstance(kind, ListOf) else kind.value
        if isinstance(kind, Message):
            _divided(kind, found, seen)
    return found


def test_list_types_and_keys_are_those_of_upstream() -> None:
    found: dict[str, str] = {}
    seen: set[str] = set()
    for kind in KINDS:
        if not kind.virtual:
            _divided(kind.resource.schema, found, seen)
    assert found == TABLE
