"""Warnings about machines whose serving certificates have names of API servers, for `mooring certs list`.

Rules kept here:
* The names of API servers, and the machines that have certificates for them, follow from the same objects as in the server
  (`mooring.controllers.certificates.names.nameevidence`).
* The serial numbers are those of the serving certificates in the lineage that have not ended. It does not say which names each has.
* A user who may not read the names of the servers gets no warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from mooring.api.mooring.authorizedmachine import PLURAL as MACHINES
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.view import FixedView
from mooring.cli.certs.inventory import Inventory, readable_objects
from mooring.client.cluster import ClusterClient
from mooring.clock import parse_rfc3339
from mooring.controllers.certificates.names.nameevidence import (
    CONFIG_MAPS,
    ENDPOINTS,
    NODES,
    PUBLISHED_NAMESPACE,
    SERVICES,
    Reserved,
    conflicts,
)
from mooring.errors import UnreadableObjectError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, KUBELET_SERVING
from mooring.trust.discovery import clusterinfo


async def warnings(client: ClusterClient, known: Inventory, now: datetime) -> Sequence[str]:
    """Return a sentence for each machine with a serving certificate for a name of an API server."""
    published = await readable_objects(client, CONFIG_MAPS, PUBLISHED_NAMESPACE)
    if published is None:
        return ()
    views = {
        CONFIG_MAPS: FixedView(
            [*published, *(await readable_objects(client, CONFIG_MAPS, clusterinfo.NAMESPACE) or ())]
        ),
        SERVICES: FixedView(await readable_objects(client, SERVICES, "default") or ()),
        ENDPOINTS: FixedView(await readable_objects(client, ENDPOINTS, "default") or ()),
        MACHINES: FixedView(await readable_objects(client, MACHINES) or ()),
        NODES: FixedView(known.nodes or ()),
        IDENTITIES: FixedView(known.identities),
    }
    try:
        names = Reserved().api_servers(views, now)
    except UnreadableObjectError as error:
        return (f"{error}: machines with certificates for names of API servers are not named here",)
    return [
        f"{conflict}. Serial numbers of its serving certificates: {', '.join(_serials(conflict.node, known, now)) or 'unknown'}"
        for conflict in conflicts(names, views, now)
    ]


def _serials(node: str, known: Inventory, now: datetime) -> Iterator[str]:
    """Yield the serial numbers of the serving certificates of a node that have not ended."""
    for number, entry in known.issued.items():
        subject = {KUBELET_SERVING: f"{NODE_PREFIX}{node}", K3S_KUBELET_SERVING: node}.get(entry.get("signer", ""))
        if subject and entry.get("subject") == subject and parse_rfc3339(entry["notAfter"]) > now:
            yield number
