"""Which addresses and node ports Services get when they ask for none.

Rules kept here (Kubernetes documentation "Service ClusterIP allocation", "Avoiding collisions in NodePort allocation"):
* Addresses come from a range that the operator chooses (`service-cluster-ip-range`); its first one is the API server's own, and
  its last one is nobody's. Node ports come from 30000 to 32767.
* What nobody asked for is taken from above a lower band, which is left to those who choose: 16 to 256 addresses, 16 to 128
  ports. The band is used when all above it is taken.
* The choice follows from `seed`: where to begin; then whatever is next and free.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Container, Iterator

from mooring.config import DEFAULT_SERVICE_RANGE, Network

DEFAULT_RANGE: Network = ipaddress.IPv4Network(DEFAULT_SERVICE_RANGE)
NODE_PORTS = range(30000, 32768)
_MIN_BAND, _MAX_ADDRESS_BAND, _MAX_PORT_BAND = 16, 256, 128


def api_address(cidr: Network) -> str:
    """Where `kubernetes.default.svc` is (docs/protocol/namespaces.md#the-service-defaultkubernetes)."""
    return str(cidr[1])


def free_address(used: Container[str], seed: bytes, cidr: Network = DEFAULT_RANGE) -> str | None:
    """An address of `cidr` that is not in `used`, neither its first, its last, nor the API server's; None when there is none."""
    size = cidr.num_addresses
    band = min(max(_MIN_BAND, size // 16), _MAX_ADDRESS_BAND)
    for offset in _order(range(2, size - 1), band, seed):
        address = str(cidr[offset])
        if address not in used:
            return address
    return None


def free_port(used: Container[int], seed: bytes, ports: range = NODE_PORTS) -> int | None:
    """A node port that is not in `used`; None when there is none."""
    band = min(max(_MIN_BAND, len(ports) // 32), _MAX_PORT_BAND)
    for offset in _order(range(len(ports)), band, seed):
        if ports[offset] not in used:
            return ports[offset]
    return None


def _order(offsets: range, band: int, seed: bytes) -> Iterator[int]:
    """All offsets: those from `band` on, beginning where `seed` says, then the ones below."""
    upper = range(max(band, offsets.start), offsets.stop)
    if upper:
        begin = int.from_bytes(hashlib.sha256(seed).digest(), "big") % (upper.stop - upper.start)  # len() ends at 2**63
        yield from upper[begin:]
        yield from upper[:begin]
    yield from range(offsets.start, min(band, offsets.stop))
