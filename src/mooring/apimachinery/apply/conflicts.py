"""Decide conflicts of server-side apply: changed fields that other managers own (409).

Source: docs/protocol/server-side-apply.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring.apimachinery.apply.fieldowner import FieldOwner
from mooring.apimachinery.apply.fieldset import FieldSet, intersection, path_text, paths
from mooring.errors import Cause, ConflictError, Details


def find_conflicts(owned: Mapping[FieldOwner, FieldSet], changed: FieldSet) -> dict[FieldOwner, FieldSet]:
    """Return the changed fields that other managers own, by manager."""
    return {owner: found for owner, fields in owned.items() if (found := intersection(fields, changed))}


def conflict_error(found: Mapping[FieldOwner, FieldSet]) -> ConflictError:
    """Return the 409 that names every conflicting field and its manager, in kube-apiserver's words."""
    managers = sorted(found, key=lambda manager: manager.identifier)
    listed = [(manager, [path_text(path) for path in paths(found[manager])]) for manager in managers]
    count = sum(len(places) for _, places in listed)
    if count == 1:
        message = f"Apply failed with 1 conflict: conflict with {listed[0][0]}: {listed[0][1][0]}"
    else:
        conflicts = "\n".join(
            "\n".join([f"conflicts with {who}:", *(f"- {path}" for path in at)]) for who, at in listed
        )
        message = f"Apply failed with {count} conflicts: {conflicts}"
    causes = tuple(
        Cause("FieldManagerConflict", f"conflict with {manager}", place)
        for manager, places in listed
        for place in places
    )
    return ConflictError(message, Details(causes=causes))
