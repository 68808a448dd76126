"""Verification of a server by the pins of its CA alone, for a user with credentials of their own and no bootstrap token.

Steps (docs/protocol/discovery-and-join.md; the numbers in error messages are the same):
 1. fetch cluster-info without verification and without credentials: it names the CA of the server;
 2. compare that CA with the pins;
 3. fetch cluster-info again, TLS verified under the pinned certificates alone: the server at this address has the pinned CA.
Everything else in cluster-info is ignored: it is not signed by a token that the user has.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from mooring.pki.x509 import bundles
from mooring.trust.discovery import jws
from mooring.trust.discovery.errors import ForbiddenAnswerError, UnusableClusterInfoError
from mooring.trust.discovery.fetch import cluster_info_request, read_cluster_info
from mooring.trust.discovery.pins import Pin, check_pins
from mooring.trust.httpexchange import UNVERIFIED, Exchange, Trust, send
from mooring.trust.kubeconfig.model import KubeconfigError, discovery_cluster
from mooring.trust.kubeconfig.text import parse_kubeconfig


def pinned_ca(server: str, pins: Collection[Pin]) -> Exchange[bytes]:
    """Return the pinned certificates of the CA of `server` (an https URL), as PEM. Raises DiscoveryError."""
    step = f"fetching cluster-info from {server} (step 1)"
    data = read_cluster_info(step, (yield from send(cluster_info_request(server, UNVERIFIED))))
    try:
        cluster = discovery_cluster(parse_kubeconfig(data.get(jws.KUBECONFIG_KEY, "")))
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error)) from None

    pinned = check_pins(cluster.ca_pem, pins, f"comparing the CA of {server} with the pins (step 2)")
    ca_pem = bundles.certificates_pem(pinned)

    step = f"fetching cluster-info from {server} with TLS verified (step 3)"
    reply = yield from send(cluster_info_request(server, Trust(ca_pem)))
    with suppress(ForbiddenAnswerError):  # TLS has proved the server
        read_cluster_info(step, reply)
    return ca_pem
