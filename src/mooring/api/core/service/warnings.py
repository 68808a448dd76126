"""Warnings about Services: accepted fields that are deprecated, ignored, or not in canonical form.

Source: pkg/api/service/warnings.go of Kubernetes; wording as kube-apiserver's.
"""

from __future__ import annotations

from mooring.api.core.addresses import address_warnings, range_warnings
from mooring.api.core.service.spec import EXTERNAL_NAME, HEADLESS, is_headless
from mooring.apimachinery.schema import Obj

TOPOLOGY_HINTS = "service.kubernetes.io/topology-aware-hints"
TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"


def service_warnings(new: Obj, old: Obj | None) -> list[str]:
    """Return the warnings about a Service that is created or updated."""
    spec = new["spec"]
    headless, external_name = is_headless(spec), spec.get("type") == EXTERNAL_NAME
    external_ips, load_balancer_ip = spec.get("externalIPs") or (), spec.get("loadBalancerIP", "")
    warnings = []
    if TOPOLOGY_HINTS in (new["metadata"].get("annotations") or {}):
        warnings.append(f"annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead")
    if not external_name and spec.get("clusterIP") != HEADLESS:
        for index, address in enumerate(spec.get("clusterIPs") or ()):
            warnings += address_warnings(f"spec.clusterIPs[{index}]", address)
    if headless:
        if load_balancer_ip:
            warnings.append("spec.loadBalancerIP is ignored for headless services")
        if external_ips:
            warnings.append("spec.externalIPs is ignored for headless services")
        if spec.get("sessionAffinity") != "None":
            warnings.append("spec.SessionAffinity is ignored for headless services")
    for index, address in enumerate(external_ips):
        warnings += address_warnings(f"spec.externalIPs[{index}]", address)
    if external_ips and not headless and not external_name:
        warnings.append("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
    warnings += address_warnings("spec.loadBalancerIP", load_balancer_ip)
    for index, cidr in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        warnings += range_warnings(f"spec.loadBalancerSourceRanges[{index}]", cidr)
    if external_name and external_ips:
        warnings.append(f'spec.externalIPs is ignored when spec.type is "{EXTERNAL_NAME}"')
    if not external_name and spec.get("externalName"):
        warnings.append(f'spec.externalName is ignored when spec.type is not "{EXTERNAL_NAME}"')
    if spec.get("trafficDistribution") == "PreferClose":
        warnings.append('spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"')
    return warnings


def status_warnings(new: Obj, old: Obj) -> list[str]:
    """Return the warnings about the addresses in the status of a Service."""
    return [
        warning
        for index, entry in enumerate(new["status"]["loadBalancer"].get("ingress") or ())
        for warning in address_warnings(f"status.loadBalancer.ingress[{index}].ip", entry.get("ip", ""))
    ]
