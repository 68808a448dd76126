"""Admission plugin LineageAppendOnly: lineage records are only appended, each after the one that it names.

Rules kept here: no user may change or delete a record, not even its labels. A new record must follow the last one. What bypasses
the API, such as an edit of the database, is found by `mooring audit verify`.
"""

from __future__ import annotations

from mooring.api.mooring.lineagerecord import PLURAL
from mooring.apimachinery.schema import Obj
from mooring.registry.admission.request import AdmissionRequest
from mooring.trust.lineage.chain import START, record_name, sequence_of


class LineageAppendOnly:
    name = "LineageAppendOnly"

    def admit(self, request: AdmissionRequest) -> None:
        if request.kind.resource.plural != PLURAL:
            return
        if request.operation != "CREATE" or request.new is None:
            raise request.forbidden("lineage records are never changed or deleted")
        sequence = sequence_of(request.name or request.new["metadata"].get("name", ""))
        if sequence is None:
            return  # validation reports the name
        if _previous(request.new) != self._hash_before(request, sequence):
            raise request.forbidden("a lineage record must follow the last one: spec.previous is not its hash")

    def _hash_before(self, request: AdmissionRequest, sequence: int) -> str | None:
        if sequence == START.sequence + 1:
            return START.hash
        before = request.views[PLURAL].get(record_name(sequence - 1))
        return before["spec"].get("hash") if before is not None else None


def _previous(record: Obj) -> str:
    previous: str = (record.get("spec") or {}).get("previous", "")
    return previous
