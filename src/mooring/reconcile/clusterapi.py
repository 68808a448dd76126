"""`ClusterApi`: the operations that the loop needs of a cluster, be it the local registry or any Kubernetes API server (law 7).

Rules kept here: errors are `ApiError`s in every implementation, so that the loop handles all clusters alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import CommitPrecondition, Delete

OnEvent = Callable[[str, Obj, bool], None]
"""Callback with (plural, object, deleted); called synchronously, after the views have the change."""


class ClusterApi(Protocol):
    """One cluster, as controllers use it."""

    @property
    def views(self) -> Views:
        """Views of the followed kinds."""

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        """Report every existing object, then every change, until the returned function is awaited."""

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        """Read one object, bypassing the views. Raises NotFoundError."""

    async def create(self, plural: str, obj: Obj) -> Obj:
        """Create an object. Raises AlreadyExistsError and others."""

    async def update(
        self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
    ) -> Obj:
        """PUT with the resourceVersion in `obj`. Raises ConflictError and others.

        `precondition` judges the update at its commit, where the cluster's registry is in this process.
        """

    async def delete(self, action: Delete) -> None:
        """Delete an object with the action's preconditions. Raises NotFoundError, ConflictError and others."""

    async def allows(self, review: Obj) -> bool:
        """Create a SubjectAccessReview and return its `status.allowed`."""
