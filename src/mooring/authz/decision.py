"""Authorization decisions: allow, deny, no opinion (law 3), and the `Authorizer` interface."""

from __future__ import annotations

from collections.abc import Callable
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
    """Ruling of one authorizer, or of the chain, with its reason for the 403 message and the audit record."""

    ruling: Ruling
    reason: str = ""
    error: str = ""
    """Evaluation errors, for the operator and for `status.evaluationError` of reviews."""

    @property
    def allowed(self) -> bool:
        return self.ruling is Ruling.ALLOW


Authorize = Callable[[Attributes], Decision]
"""The configured authorizer chain as one function."""


class Authorizer(Protocol):
    """One authorization mode: synchronous, and reading views only (law 2)."""

    @property
    def name(self) -> str:
        """Name of the mode, e.g. `RBAC`."""

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """Return the decision; a refusal is never raised as an exception."""
