"""AlwaysAllow and AlwaysDeny (docs/protocol/authorization.md#modes), for tests and for clusters behind another authorizer."""

from __future__ import annotations

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling


class AlwaysAllow:
    """Allows every request. The settings that select it must turn anonymous authentication off."""

    name = "AlwaysAllow"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return Decision(Ruling.ALLOW)


class AlwaysDeny:
    """Has no opinion on any request, which denies it unless another authorizer allows it."""

    name = "AlwaysDeny"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return Decision(Ruling.NO_OPINION, "Everything is forbidden.")
