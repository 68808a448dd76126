"""Addresses of the API servers, from the EndpointSlices of the Service `default/kubernetes`, as k3s lists them."""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.view import Views

NAMESPACE, SERVICE, PORT_NAME = "default", "kubernetes", "https"
SERVICE_LABEL = "kubernetes.io/service-name"


def api_server_addresses(views: Views) -> tuple[str, ...]:
    """Return `host:port` of each server that is ready, in order and each once."""
    return tuple(dict.fromkeys(_addresses(views)))


def _addresses(views: Views) -> Iterator[str]:
    for found in views["endpointslices"].list(NAMESPACE):
        if (found["metadata"].get("labels") or {}).get(SERVICE_LABEL) != SERVICE:
            continue
        ports = [
            port["port"] for port in found.get("ports") or () if port.get("name") == PORT_NAME and port.get("port")
        ]
        for endpoint in found.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint["addresses"]:
                yield from (f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for port in ports)
