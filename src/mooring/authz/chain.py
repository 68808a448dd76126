"""Authorizer chain: the first authorizer that allows or denies decides.

Rules kept here (docs/protocol/authorization.md#decision): when no authorizer has an opinion, the decision is `NO_OPINION`, which is
not `allowed`. The reasons and errors of all authorizers are joined for the 403 response.
"""

from __future__ import annotations

from collections.abc import Iterable

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Authorizer, Decision, Ruling


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
