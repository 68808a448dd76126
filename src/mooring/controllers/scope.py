"""`Scope`: the part of a kind that a controller follows in a cluster where it may not read everything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Objects of one namespace, or of all, that a field selector matches."""

    namespace: str = ""
    field_selector: str = ""

    @property
    def object_name(self) -> str:
        """Name of the one object that the selector allows; "" when it allows more."""
        label, _, value = self.field_selector.partition("=")
        return value if label == "metadata.name" and "," not in value else ""

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{place} with {self.field_selector}" if self.field_selector else place


EVERYTHING = Scope()
