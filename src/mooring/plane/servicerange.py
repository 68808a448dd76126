"""The range of the addresses of Services stays what it was when the cluster was made.

Rules kept here (networking.k8s.io/v1 ServiceCIDR, KEP-1880):
* It is kept as kube-apiserver keeps it: in a ServiceCIDR `kubernetes`. The first server to start writes it; of several, one.
* A server that was started with another range refuses to serve and says which one to give: Services have addresses of the old
  one, and nothing here would give them new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.uid import uuid4
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.settings.addresses import Network
from mooring.storage.contract import Entry, KeyExistsError, Storage

KEY = "/registry/servicecidrs/kubernetes"


async def keep(storage: Storage, services: Network, now: datetime, entropy: Callable[[int], bytes]) -> None:
    """Make sure that the cluster's range is `services`. Raises ConfigError when it is another one, StorageError."""
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
    kept = _kept(found)
    if kept != str(services):
        raise ConfigError(
            f"service-cluster-ip-range: this cluster's Services have addresses of {kept}, not of {services}; "
            f"start with --service-cluster-ip-range {kept}"
        )


def _kept(entry: Entry) -> str:
    try:
        return str(msgspec.json.decode(entry.value)["spec"]["cidrs"][0])
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ConfigError(f"{KEY} in the store is no ServiceCIDR; restore it from a backup or delete it") from None
