"""Trust in a server by the pin of its CA alone, for who has a credential of their own and no bootstrap token.

Rules kept here (docs/protocol/discovery-and-join.md#discovery-by-token; `mooring.trust.discovery.token` for joining by token):
 1. fetch cluster-info without trust and without credentials: it says which CA the server has;
 2. compare that CA with the pins: one that nobody pinned is believed in nothing;
 3. fetch cluster-info again, TLS verified under the pinned CA alone: the server at this address is the pinned one.
What cluster-info says beside the CA is not used: nobody signed it for us, and the address is the one that was given.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import suppress

from mooring.pki import pem
from mooring.trust.discovery import jws
from mooring.trust.discovery.exchange import Fetch, Step, cluster_info_data, cluster_info_url, fetch
from mooring.trust.discovery.failures import ForbiddenAnswerError, UnusableClusterInfoError
from mooring.trust.discovery.pins import Pin, check_pins
from mooring.trust.httpexchange import Reply
from mooring.trust.kubeconfig import model as kubeconfig
from mooring.trust.kubeconfig import text as kubeconfigtext
from mooring.trust.kubeconfig.model import KubeconfigError


def pinned_ca(server: str, pins: Collection[Pin]) -> Generator[Step, Reply, bytes]:
    """The pinned certificates of the CA of `server` (an https URL), as PEM. Raises DiscoveryError."""
    url = cluster_info_url(server)

    step = f"fetching cluster-info from {server} (step 1)"
    data = cluster_info_data(step, (yield from fetch(Fetch(url))))
    try:
        cluster = kubeconfig.discovery_cluster(kubeconfigtext.parse(data.get(jws.KUBECONFIG_KEY, "")))
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error)) from None

    pinned = check_pins(cluster.ca_pem, pins, f"comparing the CA of {server} with the pins (step 2)")
    ca_pem = pem.certificates_pem(pinned)

    step = f"fetching cluster-info from {server} with TLS verified (step 3)"
    with suppress(ForbiddenAnswerError):  # TLS has proved the server, and nothing else was wanted
        cluster_info_data(step, (yield from fetch(Fetch(url, ca_pem))))
    return ca_pem
