"""root-ca-certificate-publisher-controller: keeps the ConfigMap kube-root-ca.crt in every namespace.

Rules kept here (docs/protocol/namespaces.md#objects-of-every-namespace):
* In every Active namespace its data is exactly `ca.crt` with the CA bundle that verifies the server. Other data is overwritten,
  and a deleted ConfigMap is created again. The annotation kubernetes.io/description must not be empty.
* Labels and other annotations belong to the namespace's owner.
* A ConfigMap with wrong data that is immutable cannot be updated: it is deleted, and its deletion creates a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update
from mooring.controllers.namespace.phase import NAMESPACES, is_active
from mooring.pki.rootca import RootCa

CONFIG_MAPS = "configmaps"
NAME = "kube-root-ca.crt"
DATA_KEY = "ca.crt"
DESCRIPTION_KEY = "kubernetes.io/description"
DESCRIPTION = "The CA bundle that proves the identity of this cluster's API server. Kept up to date by Mooring."


@dataclass(frozen=True, slots=True)
class RootCaCertPublisher:
    """Publishes one CA bundle in all namespaces."""

    root_ca: RootCa
    name: str = "root-ca-certificate-publisher-controller"
    watches: tuple[str, ...] = (CONFIG_MAPS, NAMESPACES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == NAMESPACES:
            return () if deleted else ((metadata["name"], NAME),)
        return ((metadata["namespace"], NAME),) if metadata["name"] == NAME else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        if not is_active(namespace, views):
            return ()
        data = {DATA_KEY: self.root_ca.pem.decode()}
        found = views[CONFIG_MAPS].get(name, namespace)
        if found is None:
            metadata = {"name": name, "namespace": namespace, "annotations": {DESCRIPTION_KEY: DESCRIPTION}}
            return (Create(CONFIG_MAPS, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data}),)
        metadata = found["metadata"]
        annotations = metadata.get("annotations") or {}
        correct = found.get("data") == data and not found.get("binaryData")
        if correct and annotations.get(DESCRIPTION_KEY):
            return ()
        if not correct and found.get("immutable"):
            return (Delete.of(CONFIG_MAPS, found),)
        described = {**annotations, DESCRIPTION_KEY: annotations.get(DESCRIPTION_KEY) or DESCRIPTION}
        changed = {**found, "metadata": {**metadata, "annotations": described}, "data": data}
        changed.pop("binaryData", None)
        return (Update(CONFIG_MAPS, changed),)
