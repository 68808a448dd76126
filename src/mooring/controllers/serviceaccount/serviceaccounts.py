"""serviceaccount-controller: creates the ServiceAccount `default` in every namespace.

Rules kept here (docs/protocol/namespaces.md#objects-of-every-namespace): every Active namespace has it, and a deleted one is
created again. Its content belongs to the namespace's owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Entropy, Key
from mooring.controllers.namespace.phase import NAMESPACES, is_active

SERVICE_ACCOUNTS = "serviceaccounts"
NAME = "default"


@dataclass(frozen=True, slots=True)
class ServiceAccountController:
    """Creates default ServiceAccounts."""

    name: str = "serviceaccount-controller"
    watches: tuple[str, ...] = (NAMESPACES, SERVICE_ACCOUNTS)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == NAMESPACES:
            return () if deleted else ((metadata["name"], NAME),)
        return ((metadata["namespace"], NAME),) if deleted and metadata["name"] == NAME else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        if not is_active(namespace, views) or views[SERVICE_ACCOUNTS].get(name, namespace) is not None:
            return ()
        metadata = {"name": name, "namespace": namespace}
        return (Create(SERVICE_ACCOUNTS, {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata}),)
