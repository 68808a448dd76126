"""Privileged group: members of `system:masters` are allowed everything.

Rules kept here (docs/protocol/authorization.md#decision): this authorizer comes first and reads no objects, so no edit of RBAC
objects can lock out the holders of the break-glass certificate.
"""

from __future__ import annotations

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.identity import MASTERS, UserInfo

_ALLOW = Decision(Ruling.ALLOW)
_NO_OPINION = Decision(Ruling.NO_OPINION)


class PrivilegedGroup:
    """Allows members of `system:masters`; has no opinion on other users."""

    name = "Masters"

    def __init__(self) -> None:
        self._last: tuple[UserInfo | None, Decision] = (None, _NO_OPINION)
        """Last user and the decision: an impersonation of 1 000 groups judges one user a thousand times, who may have 10 000."""

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        user, (last, decision) = attributes.user, self._last
        if user is not last:
            decision = _ALLOW if MASTERS in user.groups else _NO_OPINION
            self._last = (user, decision)
        return decision
