"""Decide conflicts of server-side apply: changed fields that other managers own (409), and name the managers.

Source: docs/protocol/server-side-apply.md.

Rules kept here: an error names at most `MAX_FIELD_ERRORS` conflicts and counts the others. It is encoded on the event loop, which
33 000 conflicts in YAML held for 1.5 s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mooring.apimachinery.apply.fieldset import FieldSet, intersection, path_text, paths
from mooring.errors import MAX_FIELD_ERRORS, Cause, ConflictError, Details


@dataclass(frozen=True, slots=True, order=True)
class FieldOwner:
    """Manager and operation of an entry. `api_version` is empty for Apply: a manager applies one configuration, in any version."""

    operation: Literal["Apply", "Update"]
    name: str
    api_version: str = ""
    subresource: str = ""

    @property
    def identifier(self) -> str:
        """Text by which kube-apiserver identifies managers and sorts conflicts."""
        members = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        members["subresource"] = self.subresource
        return json.dumps({key: value for key, value in members.items() if value}, separators=(",", ":"))

    def __str__(self) -> str:
        text = json.dumps(self.name, ensure_ascii=False)
        if self.subresource:
            text += f" with subresource {json.dumps(self.subresource, ensure_ascii=False)}"
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


def find_conflicts(owned: Mapping[FieldOwner, FieldSet], changed: FieldSet) -> dict[FieldOwner, FieldSet]:
    """Return the changed fields that other managers own, by manager."""
    return {owner: found for owner, fields in owned.items() if (found := intersection(fields, changed))}


def conflict_error(found: Mapping[FieldOwner, FieldSet]) -> ConflictError:
    """Return the 409 that names conflicting fields and their managers, in kube-apiserver's words."""
    count = 0
    listed: list[tuple[FieldOwner, list[str]]] = []
    for manager in sorted(found, key=lambda manager: manager.identifier):
        places = [path_text(path) for path in islice(paths(found[manager]), max(0, MAX_FIELD_ERRORS - count))]
        if places:
            listed.append((manager, places))
        count += sum(1 for _ in paths(found[manager]))
    if count == 1:
        message = f"Apply failed with 1 conflict: conflict with {listed[0][0]}: {listed[0][1][0]}"
    else:
        conflicts = "\n".join(
            "\n".join([f"conflicts with {who}:", *(f"- {path}" for path in at)]) for who, at in listed
        )
        more = f"\nand {count - MAX_FIELD_ERRORS} more" if count > MAX_FIELD_ERRORS else ""
        message = f"Apply failed with {count} conflicts: {conflicts}{more}"
    causes = tuple(
        Cause("FieldManagerConflict", f"conflict with {manager}", place)
        for manager, places in listed
        for place in places
    )
    return ConflictError(message, Details(causes=causes))
