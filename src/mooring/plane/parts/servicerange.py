"""Range of Service addresses: recorded at the first start of a cluster, and checked at every later one.

Rules kept here (networking.k8s.io/v1 ServiceCIDR, KEP-1880):
* The record is that of kube-apiserver: a ServiceCIDR `kubernetes`, as protobuf or as JSON. The first server that starts writes it;
  of several, one succeeds.
* A server with another range does not start, and its error names the recorded one: existing Services would keep addresses outside
  of the new range.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mooring.api.core.service.records import decode_record
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.names import uuid4
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.settings.addresses import Network
from mooring.storage.contract import Entry, KeyExistsError, Storage

KEY = "/registry/servicecidrs/kubernetes"


async def record_or_check(storage: Storage, services: Network, now: datetime, entropy: Callable[[int], bytes]) -> None:
    """Record `services` as the range of the cluster. Raises ConfigError when another one is recorded, StorageError."""
    found = await storage.get(KEY)
    if found is None:
        value = {
            "kind": "ServiceCIDR",
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": "kubernetes",
                "uid": uuid4(entropy),
                "creationTimestamp": rfc3339(now),
            },
            "spec": {"cidrs": [str(services)]},
        }
        try:
            await storage.create(KEY, encode_json(value))
            return
        except KeyExistsError as failure:
            found = failure.current
    recorded = _recorded_range(found)
    if recorded != str(services):
        raise ConfigError(
            f"service-cluster-ip-range: this cluster's Services have addresses of {recorded}, not of {services}; "
            f"start with --service-cluster-ip-range {recorded}"
        )


def _recorded_range(entry: Entry) -> str:
    try:
        return str(decode_record(entry.value)["spec"]["cidrs"][0])
    except (LookupError, TypeError):
        raise ConfigError(f"{KEY} in the store is no ServiceCIDR; restore it from a backup or delete it") from None
