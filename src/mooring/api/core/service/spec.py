"""Service types, and predicates on a Service spec: cluster IP, node ports, health check, external access."""

from __future__ import annotations

from mooring.apimachinery.schema import Obj

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
TYPES = (CLUSTER_IP, EXTERNAL_NAME, LOAD_BALANCER, NODE_PORT)
HEADLESS = "None"
"""The clusterIP of a headless Service."""
FAMILIES = ("IPv4", "IPv6")
DEFAULT_CLIENT_IP_SECONDS = 10800
"""Default timeout, in seconds, of session affinity ClientIP."""
MAX_CLIENT_IP_SECONDS = 86400


def needs_cluster_ip(spec: Obj) -> bool:
    return spec.get("type") in (CLUSTER_IP, NODE_PORT, LOAD_BALANCER)


def is_headless(spec: Obj) -> bool:
    return bool(needs_cluster_ip(spec) and spec.get("clusterIPs") and spec["clusterIPs"][0] == HEADLESS)


def is_headless_without_selector(spec: Obj) -> bool:
    """Return true when the Service has neither a cluster IP nor a selector: its endpoints come from outside Kubernetes."""
    return is_headless(spec) and not spec.get("selector")


def needs_node_ports(spec: Obj) -> bool:
    """Return true when each port of the Service gets a port on every node."""
    return spec.get("type") == NODE_PORT or (
        spec.get("type") == LOAD_BALANCER and spec.get("allocateLoadBalancerNodePorts") is not False
    )


def is_externally_accessible(spec: Obj) -> bool:
    """Return true when traffic may come from outside the cluster."""
    return spec.get("type") in (NODE_PORT, LOAD_BALANCER) or bool(
        spec.get("type") == CLUSTER_IP and spec.get("externalIPs")
    )


def needs_health_check(spec: Obj) -> bool:
    """Return true when load balancers probe nodes on `healthCheckNodePort`."""
    return spec.get("type") == LOAD_BALANCER and spec.get("externalTrafficPolicy") == "Local"


def is_load_balancer(spec: Obj) -> bool:
    return spec.get("type") == LOAD_BALANCER
