"""Warnings about Services: what is allowed, but deprecated or without effect.

Source: pkg/api/service/warnings.go of Kubernetes; wording as kube-apiserver's.
"""

from __future__ import annotations

from mooring.api.core.addresses import address_warnings, range_warnings
from mooring.api.core.service.spec import EXTERNAL_NAME, HEADLESS, is_headless
from mooring.apimachinery.schema import Obj

TOPOLOGY_HINTS = "service.kubernetes.io/topology-aware-hints"
TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"


def warnings(new: Obj, old: Obj | None) -> list[str]:
    """Return the warnings about a Service that is created or updated."""
    spec = new["spec"]
    headless, named = is_headless(spec), spec.get("type") == EXTERNAL_NAME
    outside, balanced = spec.get("externalIPs") or (), spec.get("loadBalancerIP", "")
    told = []
    if TOPOLOGY_HINTS in (new["metadata"].get("annotations") or {}):
        told.append(f"annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead")
    if not named and spec.get("clusterIP") != HEADLESS:
        for index, address in enumerate(spec.get("clusterIPs") or ()):
            told += address_warnings(f"spec.clusterIPs[{index}]", address)
    if headless:
        if balanced:
            told.append("spec.loadBalancerIP is ignored for headless services")
        if outside:
            told.append("spec.externalIPs is ignored for headless services")
        if spec.get("sessionAffinity") != "None":
            told.append("spec.SessionAffinity is ignored for headless services")
    for index, address in enumerate(outside):
        told += address_warnings(f"spec.externalIPs[{index}]", address)
    if outside and not headless and not named:
        told.append("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
    told += address_warnings("spec.loadBalancerIP", balanced)
    for index, cidr in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        told += range_warnings(f"spec.loadBalancerSourceRanges[{index}]", cidr)
    if named and outside:
        told.append(f'spec.externalIPs is ignored when spec.type is "{EXTERNAL_NAME}"')
    if not named and spec.get("externalName"):
        told.append(f'spec.externalName is ignored when spec.type is not "{EXTERNAL_NAME}"')
    if spec.get("trafficDistribution") == "PreferClose":
        told.append('spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"')
    return told


def status_warnings(new: Obj, old: Obj) -> list[str]:
    """Return the warnings about the addresses in the status of a Service."""
    return [
        warning
        for index, way in enumerate(new["status"]["loadBalancer"].get("ingress") or ())
        for warning in address_warnings(f"status.loadBalancer.ingress[{index}].ip", way.get("ip", ""))
    ]
