"""The types of Services, and what each of them needs. Every function takes a spec."""

from __future__ import annotations

from mooring.apimachinery.schema import Obj

CLUSTER_IP, NODE_PORT, BALANCER, EXTERNAL_NAME = "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
TYPES = (CLUSTER_IP, EXTERNAL_NAME, BALANCER, NODE_PORT)
HEADLESS = "None"
"""The clusterIP of a Service that has a name and no address."""
FAMILIES = ("IPv4", "IPv6")
CLIENT_SECONDS = 10800
"""How long affinity ClientIP remembers a client unless told otherwise."""
MAX_CLIENT_SECONDS = 86400


def has_cluster_ip(spec: Obj) -> bool:
    return spec.get("type") in (CLUSTER_IP, NODE_PORT, BALANCER)


def fill_families(spec: Obj, family: str) -> None:
    """Say which families of addresses a Service has, in place; `family` is the cluster's.

    A headless Service without selector may say more than that one, since nobody here keeps its endpoints.
    """
    if spec.get("type") == EXTERNAL_NAME:
        return
    elsewhere = leads_elsewhere(spec)
    policy = spec.setdefault("ipFamilyPolicy", "RequireDualStack" if elsewhere else "SingleStack")
    families = spec.get("ipFamilies") or [family]
    if elsewhere and policy != "SingleStack" and len(families) == 1:
        families = [*families, *(other for other in FAMILIES if other not in families)]
    spec["ipFamilies"] = families


def leads_elsewhere(spec: Obj) -> bool:
    """Whether somebody else says where it leads."""
    return is_headless(spec) and not spec.get("selector")


def is_headless(spec: Obj) -> bool:
    return bool(has_cluster_ip(spec) and spec.get("clusterIPs") and spec["clusterIPs"][0] == HEADLESS)


def has_node_ports(spec: Obj) -> bool:
    """Whether its ports get one on every node."""
    return spec.get("type") == NODE_PORT or (
        spec.get("type") == BALANCER and spec.get("allocateLoadBalancerNodePorts") is not False
    )


def is_external(spec: Obj) -> bool:
    """Whether traffic may come from outside the cluster."""
    return spec.get("type") in (NODE_PORT, BALANCER) or bool(spec.get("type") == CLUSTER_IP and spec.get("externalIPs"))


def checks_health(spec: Obj) -> bool:
    """Whether a load balancer has to ask nodes if they take traffic."""
    return spec.get("type") == BALANCER and spec.get("externalTrafficPolicy") == "Local"
