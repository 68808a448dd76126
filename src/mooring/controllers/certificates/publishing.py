"""Publication of CAs: in kube-root-ca.crt of each namespace, and in ClusterTrustBundles."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.certificates.clustertrustbundle import KIND, PLURAL, name_prefix
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update
from mooring.controllers.namespace import NAMESPACES, is_active
from mooring.pki.pem import RootCa

# root-ca-certificate-publisher-controller: keeps the ConfigMap kube-root-ca.crt in every namespace.
#
# Rules kept here (docs/protocol/namespaces.md#objects-of-every-namespace):
# * In every Active namespace its data is exactly `ca.crt` with the CA bundle that verifies the server. Other data is overwritten,
#   and a deleted ConfigMap is created again. The annotation kubernetes.io/description must not be empty.
# * Labels and other annotations belong to the namespace's owner.
# * A ConfigMap with wrong data that is immutable cannot be updated: it is deleted, and its deletion creates a new one.

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


# kube-apiserver-serving-clustertrustbundle-publisher-controller: publishes the CAs of the API server as a ClusterTrustBundle.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#clustertrustbundle):
# * The bundle belongs to the signer kubernetes.io/kube-apiserver-serving. Its name ends with 24 hex digits of the SHA-256 of its
#   content, so that a new content is a new object.
# * The new bundle is created before the old ones are deleted: readers of the signer's bundles always find one.

SIGNER = "kubernetes.io/kube-apiserver-serving"
ALL: Key = ("", "")
STARTING_POINT = "kube-system"
"""Namespace whose event plans the first bundle: every cluster has it."""


@dataclass(frozen=True, slots=True)
class TrustBundlePublisher:
    """Publishes one CA bundle."""

    root_ca: RootCa
    name: str = "kube-apiserver-serving-clustertrustbundle-publisher-controller"
    watches: tuple[str, ...] = (PLURAL, NAMESPACES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural == NAMESPACES:
            return (ALL,) if obj["metadata"]["name"] == STARTING_POINT else ()
        return (ALL,) if spec_of(obj).get("signerName") == SIGNER else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        bundle = self.root_ca.pem.decode()
        digest = hashlib.sha256(bundle.encode()).hexdigest()[:24]
        name = name_prefix(SIGNER) + digest
        view = views[PLURAL]
        found = view.get(name)
        outdated = (
            one for one in view.list() if spec_of(one).get("signerName") == SIGNER and one["metadata"]["name"] != name
        )
        deletes = (Delete.of(PLURAL, one) for one in outdated)
        if found is None:
            created = {
                "kind": KIND.resource.kind,
                "apiVersion": KIND.resource.api_version,
                "metadata": {"name": name},
                "spec": {"signerName": SIGNER, "trustBundle": bundle},
            }
            return (Create(PLURAL, created), *deletes)
        if spec_of(found).get("trustBundle") != bundle:
            return (Update(PLURAL, {**found, "spec": {**spec_of(found), "trustBundle": bundle}}), *deletes)
        return tuple(deletes)
