"""Serving certificate of a node: its names follow the addresses of the Node (docs/protocol/kubelet-certificates.md).

Rules kept here: the Node is read every minute, no matter which program maintains it. Without an IP address no
certificate is requested. A Node that cannot be read leaves the names as they are.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from mooring.agent.certificates.renewal import RequestedRenewal
from mooring.agent.certificates.template import serving_template
from mooring.client.cluster import ClusterClient
from mooring.errors import MooringError, NotFoundError

log = logging.getLogger("mooring.agent")

ADDRESSES_SECONDS = 60.0
"""Seconds between two reads of the Node. Addresses of a machine change rarely, and kubelet looks as often."""
MISSING_SECONDS = 2.0
"""Seconds before the next read of a Node that is not registered yet."""


async def follow_addresses(client: ClusterClient, node_name: str, renewal: RequestedRenewal) -> NoReturn:
    """Give the names of the serving certificate to `renewal` until cancelled."""
    warned = False
    while True:
        pause = ADDRESSES_SECONDS
        try:
            node = await client.get("nodes", node_name)
        except NotFoundError:
            pause = MISSING_SECONDS
        except MooringError:
            pass  # the heartbeat and the renewals report that the server does not answer
        else:
            template = serving_template(node_name, (node.get("status") or {}).get("addresses") or ())
            if template is None and not warned:
                log.warning(
                    "no serving certificate is requested: the Node %s has no IP address among its addresses", node_name
                )
            warned = template is None
            renewal.use_template(template)
        await client.clock.sleep(pause)
