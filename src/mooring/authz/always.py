"""The two authorizers that do not look (docs/protocol/authorization.md#modes), for tests and for clusters behind something else."""

from __future__ import annotations

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling


class AlwaysAllow:
    """Allows everything. With it anonymous access must be off: whoever builds the chain sees to that."""

    name = "AlwaysAllow"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return Decision(Ruling.ALLOW)


class AlwaysDeny:
    """No opinion on anything, which denies when nobody else allows."""

    name = "AlwaysDeny"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return Decision(Ruling.NO_OPINION, "Everything is forbidden.")
