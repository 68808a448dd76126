"""The cluster in a store that has no row of its keys: kube-apiserver filled it, or an earlier version.

Rules kept here:
* A store has a cluster when it has the namespace kube-system, which every first boot creates before it serves.
* Its CAs are those that the ConfigMaps for clients name. One of them in common is enough: flags may have chosen the others.
* A value that cannot be read is an error. A wrong CA would be adopted otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from mooring.api.kinds import BY_PLURAL
from mooring.authn import clientcas
from mooring.controllers.certificates import publishing
from mooring.errors import ConfigError, MooringError
from mooring.registry.cache.events import normalize
from mooring.storage.contract import Storage
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY
from mooring.trust.discovery.pins import pins_of
from mooring.trust.kubeconfig.model import client_cas
from mooring.trust.kubeconfig.text import parse_kubeconfig
from mooring.trust.sharedkeys.reconciliation import StoredCluster

KUBE_SYSTEM = "kube-system"
NAMED_IN = (
    (clientcas.NAMESPACE, clientcas.NAME, "client-ca-file"),
    (KUBE_SYSTEM, publishing.NAME, "ca.crt"),
    (clusterinfo.NAMESPACE, clusterinfo.NAME, KUBECONFIG_KEY),
)
"""Namespace, name and key of the ConfigMaps that name CAs of a cluster."""


async def stored_cluster(storage: Storage) -> StoredCluster | None:
    """Return the cluster in a store; None when it has none. Raises StorageError, ConfigError for a CA that cannot be read."""
    if await storage.get(BY_PLURAL["namespaces"].key("", KUBE_SYSTEM)) is None:
        return None
    kind = BY_PLURAL["configmaps"]
    pins: list[str] = []
    for namespace, name, field in NAMED_IN:
        entry = await storage.get(kind.key(namespace, name))
        if entry is None:
            continue
        value, _ = normalize(kind, entry.value)
        text = str((json.loads(value).get("data") or {}).get(field, ""))
        try:
            for bundle in _bundles(field, text):
                pins += map(str, pins_of(bundle))
        except MooringError as error:
            raise ConfigError(
                f"the ConfigMap {namespace}/{name} in the store names no CA that can be read ({error}): the keys of this server "
                "cannot be compared with it"
            ) from None
    return StoredCluster(tuple(dict.fromkeys(pins)))


def _bundles(field: str, text: str) -> Iterator[bytes]:
    """Yield the PEM bundles in the value of a ConfigMap."""
    if not text:
        return
    if field != KUBECONFIG_KEY:
        yield text.encode()
        return
    for cluster in parse_kubeconfig(text.encode()).clusters:
        yield from filter(None, (cluster.ca_pem, client_cas(cluster)))
