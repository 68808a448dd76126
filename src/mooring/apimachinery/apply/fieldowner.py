"""Owners of fields: a field manager with its operation, version and subresource."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal


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
