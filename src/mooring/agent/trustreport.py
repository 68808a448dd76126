"""Report of the CAs that this machine trusts, in an annotation of its Node.

Rules kept here: the annotation names the public key of every CA in kubelet.conf, sorted, so that a rollover of the CA knows which
machines are still behind. It is written only when it differs, on a Node of another program too. A Node that does not exist is not
made.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.client.cluster import ClusterClient
from mooring.errors import NotFoundError
from mooring.trust.discovery.pins import pins_of
from mooring.trust.kubeconfig.model import Cluster

TRUSTED_CAS = "mooring.dev/trusted-cas"
"""Annotation: `sha256:<hex of the public key>` of each CA, separated by commas."""


def trusted_cas(clusters: Sequence[Cluster]) -> str:
    """Return the value of the annotation. Empty where the system's roots verify the server."""
    return ",".join(sorted({str(pin) for one in clusters if one.ca_pem for pin in pins_of(one.ca_pem)}))


async def report_trust(client: ClusterClient, node_name: str, clusters: Sequence[Cluster]) -> None:
    """Write the annotation if it differs. Raises ApiError, PeerError."""
    value = trusted_cas(clusters)
    try:
        node = await client.get("nodes", node_name)
    except NotFoundError:
        return
    if (node["metadata"].get("annotations") or {}).get(TRUSTED_CAS) != value:
        await client.patch("nodes", node_name, {"metadata": {"annotations": {TRUSTED_CAS: value}}})
