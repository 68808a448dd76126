"""What the loop needs of a cluster: the plane's own registry, or any Kubernetes API server (law 7).

Rules kept here: errors are the caller's `ApiError`s whichever side answers, so that the loop treats both alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Delete

OnEvent = Callable[[str, Obj, bool], None]
"""(plural, object, whether it is gone): called synchronously, after the views have it."""


class ClusterApi(Protocol):
    """One cluster as controllers see it."""

    @property
    def views(self) -> Views:
        """Pictures of the kinds that are followed."""

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        """Report every object there is, then every change, until the returned function is awaited."""

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        """One object, not from a view. Raises NotFoundError."""

    async def create(self, plural: str, obj: Obj) -> Obj:
        """Raises AlreadyExistsError and others."""

    async def update(self, plural: str, obj: Obj, subresource: str = "") -> Obj:
        """PUT with the resourceVersion in `obj`. Raises ConflictError and others."""

    async def delete(self, action: Delete) -> None:
        """Raises NotFoundError, ConflictError and others."""

    async def allows(self, review: Obj) -> bool:
        """`status.allowed` of a SubjectAccessReview."""
