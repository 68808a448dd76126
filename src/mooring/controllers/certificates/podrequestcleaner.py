"""podcertificaterequest-cleaner-controller: deletes PodCertificateRequests 15 minutes after their creation.

Rules kept here (docs/protocol/pod-certificate-requests.md#cleaner):
* A request is deleted whatever its state is. The kubelet that made it has the answer by then, and makes another one otherwise.
* kube-controller-manager looks every 5 minutes; here the request is planned again at the moment it falls due.
* A clock that runs ahead deletes requests early. Nothing is lost with them, so that they do not wait for a day as revocations do.
* A request without a readable creationTimestamp stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.certificates.podcertificaterequest import PLURAL
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue

KEPT_FOR = timedelta(minutes=15)
"""kube-controller-manager's threshold: longer than a kubelet waits for an answer."""


@dataclass(frozen=True, slots=True)
class PodRequestCleaner:
    """Deletes old requests of Pods."""

    name: str = "podcertificaterequest-cleaner-controller"
    watches: tuple[str, ...] = (PLURAL,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return () if deleted else ((obj["metadata"]["namespace"], obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        request = views[PLURAL].get(name, namespace)
        if request is None or request["metadata"].get("deletionTimestamp"):
            return ()
        try:
            due = parse_rfc3339(request["metadata"].get("creationTimestamp") or "") + KEPT_FOR
        except (ValueError, OverflowError):
            return ()
        return (Requeue(due),) if due > now else (Delete.of(PLURAL, request),)
