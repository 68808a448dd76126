"""Enum values that `kubectl explain` lists for a field, as in Kubernetes 1.36."""

from __future__ import annotations

import pytest

from mooring.api.kinds import RESOURCES
from mooring.apimachinery.openapi.v3 import openapi_v3_document
from mooring.apimachinery.schema import Obj
from mooring.pki.x509.profiles import USAGES
from tests.support.rows import each_row

ENUMS = {
    "core.v1.AppArmorProfile.type": "Localhost RuntimeDefault Unconfined",
    "core.v1.AzureDiskVolumeSource.cachingMode": "None ReadOnly ReadWrite",
    "core.v1.AzureDiskVolumeSource.kind": "Dedicated Managed Shared",
    "core.v1.Container.imagePullPolicy": "Always IfNotPresent Never",
    "core.v1.Container.terminationMessagePolicy": "FallbackToLogsOnError File",
    "core.v1.ContainerPort.protocol": "SCTP TCP UDP",
    "core.v1.EndpointPort.protocol": "SCTP TCP UDP",
    "core.v1.EphemeralContainer.imagePullPolicy": "Always IfNotPresent Never",
    "core.v1.EphemeralContainer.terminationMessagePolicy": "FallbackToLogsOnError File",
    "core.v1.HTTPGetAction.scheme": "HTTP HTTPS",
    "core.v1.HostPathVolumeSource.type": "- BlockDevice CharDevice Directory DirectoryOrCreate File FileOrCreate Socket",
    "core.v1.ImageVolumeSource.pullPolicy": "Always IfNotPresent Never",
    "core.v1.NamespaceStatus.phase": "Active Terminating",
    "core.v1.NodeSelectorRequirement.operator": "DoesNotExist Exists Gt In Lt NotIn",
    "core.v1.NodeStatus.phase": "Pending Running Terminated",
    "core.v1.PersistentVolumeClaimSpec.accessModes": "ReadOnlyMany ReadWriteMany ReadWriteOnce ReadWriteOncePod",
    "core.v1.PersistentVolumeClaimSpec.volumeMode": "Block Filesystem",
    "core.v1.PodSecurityContext.fsGroupChangePolicy": "Always OnRootMismatch",
    "core.v1.PodSecurityContext.supplementalGroupsPolicy": "Merge Strict",
    "core.v1.PodSpec.dnsPolicy": "ClusterFirst ClusterFirstWithHostNet Default None",
    "core.v1.PodSpec.preemptionPolicy": "Never PreemptLowerPriority",
    "core.v1.PodSpec.restartPolicy": "Always Never OnFailure",
    "core.v1.PodStatus.phase": "Failed Pending Running Succeeded Unknown",
    "core.v1.PodStatus.qosClass": "BestEffort Burstable Guaranteed",
    "core.v1.PortStatus.protocol": "SCTP TCP UDP",
    "core.v1.SeccompProfile.type": "Localhost RuntimeDefault Unconfined",
    "core.v1.SecurityContext.procMount": "Default Unmasked",
    "core.v1.ServicePort.protocol": "SCTP TCP UDP",
    "core.v1.ServiceSpec.externalTrafficPolicy": "Cluster Local",
    "core.v1.ServiceSpec.internalTrafficPolicy": "Cluster Local",
    "core.v1.ServiceSpec.ipFamilies": "- IPv4 IPv6",
    "core.v1.ServiceSpec.ipFamilyPolicy": "PreferDualStack RequireDualStack SingleStack",
    "core.v1.ServiceSpec.sessionAffinity": "ClientIP None",
    "core.v1.ServiceSpec.type": "ClusterIP ExternalName LoadBalancer NodePort",
    "core.v1.Taint.effect": "NoExecute NoSchedule PreferNoSchedule",
    "core.v1.Toleration.effect": "NoExecute NoSchedule PreferNoSchedule",
    "core.v1.Toleration.operator": "Equal Exists Gt Lt",
    "core.v1.TopologySpreadConstraint.nodeAffinityPolicy": "Honor Ignore",
    "core.v1.TopologySpreadConstraint.nodeTaintsPolicy": "Honor Ignore",
    "core.v1.TopologySpreadConstraint.whenUnsatisfiable": "DoNotSchedule ScheduleAnyway",
    "core.v1.VolumeMount.mountPropagation": "Bidirectional HostToContainer None",
    "discovery.v1.EndpointPort.protocol": "SCTP TCP UDP",
    "discovery.v1.EndpointSlice.addressType": "FQDN IPv4 IPv6",
}
"""Sorted; `-` is the empty text."""


def schemas() -> Obj:
    return {
        name: schema
        for group, version in {(one.group, one.version) for one in RESOURCES}
        for name, schema in openapi_v3_document(
            [one for one in RESOURCES if (one.group, one.version) == (group, version)]
        )["components"]["schemas"].items()
    }


SCHEMAS = schemas()


def enum_of(path: str) -> list[str]:
    name, _, field = path.rpartition(".")
    shape = SCHEMAS["io.k8s.api." + name]["properties"][field]
    found: list[str] = (shape["items"] if shape.get("type") == "array" else shape).get("enum", [])
    return found


@each_row("path, values", ENUMS.items(), lambda row: row[0])
def test_a_field_lists_its_values(path: str, values: str) -> None:
    assert enum_of(path) == [value if value != "-" else "" for value in values.split()]


@pytest.mark.parametrize("path", ["core.v1.Lifecycle.stopSignal", "core.v1.ContainerStatus.stopSignal"])
def test_signals(path: str) -> None:
    signals = enum_of(path)
    assert signals == sorted(set(signals))
    assert len(signals) == 65
    assert {"SIGRTMIN+15", "SIGRTMAX-14", "SIGTERM"} <= set(signals)


def test_usages_of_certificates() -> None:
    assert enum_of("certificates.v1.CertificateSigningRequestSpec.usages") == sorted(USAGES)
