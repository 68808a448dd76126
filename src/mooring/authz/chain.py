"""The chain of authorizers.

Rules kept here (docs/protocol/authorization.md#decision): the first that allows or denies decides. When all have no opinion, the
answer is `NO_OPINION`, which is not `allowed`: empty means deny. Their reasons and errors are joined for the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Authorizer, Decision, Ruling


def authorize(attributes: Attributes, authorizers: Iterable[Authorizer], views: Views) -> Decision:
    """One decision. Act on `.allowed` only."""
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
