"""Admission plugin SettledEnds: the ConfigMap of ends loses an entry only when the end is settled.

Rules kept here: an entry is ended again by what the store has, or waived, by any writer. So neither the deletion of the
ConfigMap, nor a write that leaves an entry out or changes it, lets something come back for a moment. That further ends wait is
known to the server alone that remembers them: no client takes this entry out. The ConfigMap is never immutable: servers write it.
"""

from __future__ import annotations

from mooring.api.mooring import ends
from mooring.identity import API_SERVER
from mooring.registry.admission.request import AdmissionRequest


class SettledEnds:
    name = "SettledEnds"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != ends.CONFIG_MAPS or request.namespace != ends.NAMESPACE:
            return
        name = request.name or ((request.new or {}).get("metadata") or {}).get("name", "")
        if name != ends.NAME:
            return
        before, after = (request.old or {}).get("data") or {}, (request.new or {}).get("data") or {}
        lost = ends.withdrawn(before, after, request.views, request.change.now)
        if request.user.username == API_SERVER:
            lost = [key for key in lost if not ends.is_more(key)]
        if lost:
            raise request.forbidden(
                f"{lost[0]} is not settled: run mooring ends apply, or mooring ends waive to let it come back"
            )
        if (request.new or {}).get("immutable"):
            raise request.forbidden("servers write this ConfigMap: it may not be immutable")
