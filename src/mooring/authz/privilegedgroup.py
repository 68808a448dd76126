"""`system:masters` may do everything, always.

Rules kept here (docs/protocol/authorization.md#decision): this authorizer stands first and reads nothing, so no edit of RBAC
objects can lock the holders of the break-glass certificate out.
"""

from __future__ import annotations

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.identity import MASTERS

_ALLOW = Decision(Ruling.ALLOW)
_NO_OPINION = Decision(Ruling.NO_OPINION)


class PrivilegedGroup:
    """Allows members of `system:masters`; no opinion on others."""

    name = "PrivilegedGroup"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return _ALLOW if MASTERS in attributes.user.groups else _NO_OPINION
