"""Proof of the way to a discovered cluster, for a file that another program uses: exactly what is written is tried first."""

from __future__ import annotations

from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import prove_server
from mooring.trust.discovery.notices import DiscoveryExchange, Notice
from mooring.trust.discovery.trustedcluster import TrustedCluster


def led_by_proved(found: TrustedCluster) -> DiscoveryExchange[TrustedCluster]:
    """Return the cluster with the first address in front that responds by the way to it. Raises the last DiscoveryError."""
    last: DiscoveryError | None = None
    for turn, one in enumerate(found.clusters):
        if last is not None:
            yield Notice(f"warning: {last}; {one.server} is tried instead", keep=True)
        try:
            yield from prove_server(one)
        except DiscoveryError as error:
            last = error
        else:
            return found.led_by(turn)
    assert last is not None  # a cluster has an address
    raise last
