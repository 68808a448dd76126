"""Privileged group: members of `system:masters` are allowed everything.

Rules kept here (docs/protocol/authorization.md#decision): this authorizer comes first and reads no objects, so no edit of RBAC
objects can lock out the holders of the break-glass certificate.
"""

from __future__ import annotations

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.identity import MASTERS

_ALLOW = Decision(Ruling.ALLOW)
_NO_OPINION = Decision(Ruling.NO_OPINION)


class PrivilegedGroup:
    """Allows members of `system:masters`; has no opinion on other users."""

    name = "Masters"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return _ALLOW if MASTERS in attributes.user.groups else _NO_OPINION
