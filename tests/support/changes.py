"""Creates and updates of one kind without a registry: its hooks, run in the registry's order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.objectmeta import prepare_meta_for_create, prepare_meta_for_update, validate_meta, validate_meta_update
from mooring.errors import FieldError
from mooring.identity import UserInfo

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC)
USER = UserInfo(
    "jane",
    uid="u-1",
    groups=("devs", "system:authenticated"),
    extra={"authentication.kubernetes.io/credential-id": ("X509SHA256=ab",)},
)
UID = "6b1d0f6e-0000-4000-8000-000000000001"

Obj = dict[str, Any]


def texts(errors: Sequence[FieldError]) -> list[str]:
    """Return each error as Kubernetes prints it."""
    return [str(error) for error in errors]


def created(kind: Kind, obj: Obj, user: UserInfo = USER, namespace: str = "default") -> tuple[Obj, list[str]]:
    """Return the object that a create of `obj` stores, and its validation errors."""
    new = copy.deepcopy(obj)
    new.setdefault("metadata", {"name": "x"})
    kind.default(new)
    prepare_meta_for_create(new, kind, namespace, UID, NOW, bytes)
    kind.prepare_for_create(new, Change(user, NOW))
    return new, texts(validate_meta(new, kind) + kind.validate(new) + kind.validate_create(new))


def updated(kind: Kind, new: Obj, old: Obj, subresource: str = "") -> tuple[Obj, list[str]]:
    """Return the object that an update from `old`, the result of a create, to `new` stores, and its validation errors."""
    new, old = copy.deepcopy(new), copy.deepcopy(old)
    new["metadata"] = {**old["metadata"], "resourceVersion": "7", **new.get("metadata", {})}
    policy = (kind.subresources or {})[subresource] if subresource else kind
    kind.default(new)
    policy.prepare_for_update(new, old, Change(USER, LATER))
    prepare_meta_for_update(new, old, kind)
    errors = validate_meta(new, kind) + validate_meta_update(new, old, kind)
    found = [*errors, *kind.validate(new), *policy.validate_update(new, old)]
    return new, texts(found + (policy.validate_at(new, old, LATER) if isinstance(policy, SubresourceStrategy) else []))
