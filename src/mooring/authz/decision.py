"""Decisions (law 3): allow / deny / no opinion; no opinion from all means deny."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from mooring.api.view import Views
from mooring.authz.attributes import Attributes


class Ruling(Enum):
    ALLOW = "allow"
    DENY = "deny"
    NO_OPINION = "no opinion"


@dataclass(frozen=True, slots=True)
class Decision:
    """What one authorizer, or the chain, thinks, and why. The reason goes into the 403 message and the audit record."""

    ruling: Ruling
    reason: str = ""
    error: str = ""
    """Evaluation problems for the operator and for `status.evaluationError` of reviews."""

    @property
    def allowed(self) -> bool:
        return self.ruling is Ruling.ALLOW


class Authorizer(Protocol):
    """Synchronous, reads views, never waits (law 2)."""

    @property
    def name(self) -> str:
        """The mode's name, e.g. `RBAC`."""

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """One decision; never raises for a refusal."""
