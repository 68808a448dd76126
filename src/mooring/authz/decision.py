"""Attributes of a request, decisions, and the chain of authorizers that makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from mooring.api.view import Views
from mooring.identity import UserInfo

# `Attributes`: the request properties that authorizers decide on.
#
# The meaning of each is in docs/protocol/requests.md#attributes.


# not frozen, although never changed: every request creates one, and freezing costs a microsecond
@dataclass(slots=True, kw_only=True)
class Attributes:
    """Attributes of a resource request or, when `resource` is empty, of a request for `path`.

    `verb`: get list watch create update patch delete deletecollection, or any custom verb of a review; for paths the lower
    case HTTP method. `name` is "" for create, and for list/watch unless a metadata.name field selector names one object.
    `field_selector`/`label_selector`: the raw texts, for authorizers that use them.
    """

    user: UserInfo
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""
    label_selector: str = ""


# Authorization decisions: allow, deny, no opinion (law 3), and the `Authorizer` interface.


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


# Authorizer chain: the first authorizer that allows or denies decides.
#
# Rules kept here (docs/protocol/authorization.md#decision): when no authorizer has an opinion, the decision is `NO_OPINION`,
# which is not `allowed`. The reasons and errors of all authorizers are joined for the 403 response.


def authorize(attributes: Attributes, authorizers: Iterable[Authorizer], views: Views) -> Decision:
    """Return the decision of the chain. Callers act on `.allowed` only."""
    reasons: list[str] = []
    errors: list[str] = []
    for authorizer in authorizers:
        decision = authorizer.authorize(attributes, views)
        if decision.ruling is not Ruling.NO_OPINION:
            return decision
        if decision.reason:
            reasons.append(decision.reason)
        if decision.error:
            errors.append(decision.error)
    return Decision(Ruling.NO_OPINION, "\n".join(reasons), ", ".join(errors))
