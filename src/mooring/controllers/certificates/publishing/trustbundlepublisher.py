"""kube-apiserver-serving-clustertrustbundle-publisher-controller: publishes the CAs of the API server as a ClusterTrustBundle.

Rules kept here (docs/protocol/certificate-signing-requests.md#clustertrustbundle):
* The bundle belongs to the signer kubernetes.io/kube-apiserver-serving. Its name ends with 24 hex digits of the SHA-256 of its
  content, so that a new content is a new object.
* The new bundle is created before the old ones are deleted: readers of the signer's bundles always find one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.certificates.clustertrustbundle import KIND, PLURAL, name_prefix
from mooring.api.meta.printcolumns import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update
from mooring.controllers.namespace.phase import NAMESPACES
from mooring.pki.rootca import RootCa

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
