"""Types of admission: one write as plugins see it, and the plugin interface.

Rules kept here: a plugin is synchronous and reads views (law 2). It may change `request.new` in place, or refuse by raising an
ApiError. It never changes `request.old` or an object from a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from mooring.api.kind import Change, Kind
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Authorize
from mooring.errors import ForbiddenError
from mooring.identity import UserInfo

Operation = Literal["CREATE", "UPDATE", "DELETE"]


@dataclass(slots=True, kw_only=True)
class AdmissionRequest:
    """One write, after defaulting and strategy, before validation.

    `new` is None for DELETE, `old` for CREATE. `name` may be "" for virtual kinds.
    """

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
        """`<plural>[/<subresource>]`, the key of the plugins' tables."""
        plural = self.kind.resource.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural

    def forbidden(self, reason: str) -> ForbiddenError:
        """Return 403 for the object of this request."""
        return ForbiddenError.of(self.kind.resource.group, self.kind.resource.plural, self.name, reason)


class Admission(Protocol):
    """One admission plugin."""

    @property
    def name(self) -> str:
        """Name of the plugin in kube-apiserver, such as `NamespaceLifecycle`."""

    def admit(self, request: AdmissionRequest) -> None:
        """Allow the write by returning. Raises ApiError to refuse it."""
