"""What admission is asked: one write, after defaults and strategy, before validation.

Rules kept here: an admission plugin is synchronous and reads views (law 2); it may change `request.new` in place, or refuse
by raising an ApiError; it never changes `request.old` or anything from a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from mooring.api.kind import Change, Kind
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.escalation import Authorize
from mooring.errors import ForbiddenError
from mooring.identity import UserInfo

__all__ = ["Admission", "AdmissionRequest", "Authorize", "Operation"]

Operation = Literal["CREATE", "UPDATE", "DELETE"]


@dataclass(slots=True, kw_only=True)
class AdmissionRequest:
    """One write. `new` is None for DELETE, `old` for CREATE. `name` may be "" for virtual kinds."""

    operation: Operation
    kind: Kind
    namespace: str
    name: str
    new: Obj | None
    old: Obj | None
    change: Change
    views: Views
    authorize: Authorize
    subresource: str = ""
    dry_run: bool = False

    @property
    def user(self) -> UserInfo:
        return self.change.user

    @property
    def resource(self) -> str:
        """`<plural>[/<subresource>]`: what plugins look up in their tables."""
        plural = self.kind.resource.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural

    def forbidden(self, why: str) -> ForbiddenError:
        """403 about the object of this request."""
        return ForbiddenError.of(self.kind.resource.group, self.kind.resource.plural, self.name, why)


class Admission(Protocol):
    """One admission plugin."""

    @property
    def name(self) -> str:
        """kube-apiserver's name of it, e.g. `NamespaceLifecycle`."""

    def admit(self, request: AdmissionRequest) -> None:
        """Return to allow. Raises ApiError to refuse."""
