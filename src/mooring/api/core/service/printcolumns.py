"""Print columns of Service: type, addresses and ports; with `-o wide` the selector."""

from __future__ import annotations

from datetime import datetime

from mooring.api.meta.printcolumns import NAME, NONE, UNKNOWN, spec_of
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import AGE


def _cluster_ip(obj: Obj, now: datetime) -> str:
    addresses = spec_of(obj).get("clusterIPs")
    return str(addresses[0]) if addresses else NONE


def _external_ip(obj: Obj, now: datetime) -> str:
    spec = spec_of(obj)
    external = spec.get("externalIPs") or []
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(external) or NONE
        case "LoadBalancer":
            ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
            addresses = sorted({entry.get("ip") or entry.get("hostname", "") for entry in ingress} - {""})
            return ",".join([*addresses, *external]) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return UNKNOWN


def _ports(obj: Obj, now: datetime) -> str:
    return ",".join(_port(port) for port in spec_of(obj).get("ports") or ()) or NONE


def _port(port: Obj) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port', 0)}{node_port}/{port.get('protocol', '')}"


def _selector(obj: Obj, now: datetime) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((spec_of(obj).get("selector") or {}).items())) or NONE


COLUMNS = (
    NAME,
    Column("Type", lambda obj, now: spec_of(obj).get("type", ""), description="How it is reached."),
    Column("Cluster-IP", _cluster_ip, description="Its address in the cluster."),
    Column("External-IP", _external_ip, description="Its addresses outside the cluster."),
    Column("Port(s)", _ports, description="Its ports, with those of the nodes that lead to them."),
    AGE,
    Column("Selector", _selector, description="Labels of the Pods behind it.", priority=1),
)
