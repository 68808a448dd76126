"""Support for tests of controller plans: views of given objects, no event loop, repeatable entropy.

Rules kept here: an object gets uid and resourceVersion from its name, so that an expected action can be written down.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, Controller, Key
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, SECRET_TYPE

NOW = datetime.fromisoformat("2026-01-02T03:04:05+00:00")
HOUR = timedelta(hours=1)


def entropy(size: int) -> bytes:
    return b"\x2a" * size


def thing(name: str, namespace: str = "", **more: Any) -> Obj:
    """Return an object with the metadata of every stored object, and `metadata` if given."""
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", **more.pop("metadata", {})}
    if namespace:
        metadata["namespace"] = namespace
    return {"metadata": metadata, **more}


def token_secret(name: str = "abcdef", namespace: str = NAMESPACE, kind: str = SECRET_TYPE, **data: str) -> Obj:
    """Return a bootstrap token Secret; underscores in the names of `data` stand for dashes, "" removes a value."""
    values = {"token-id": name, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}
    values |= {name.replace("_", "-"): value for name, value in data.items()}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items() if value}
    return thing(f"bootstrap-token-{name}", namespace, type=kind, data=encoded)


def moment(after: timedelta) -> str:
    return rfc3339(NOW + after)


def views(**objects: Iterable[Obj]) -> Views:
    """Return views of every kind; those of kinds not named are empty."""
    return {plural: FixedView(objects.get(plural, ())) for plural in BY_PLURAL}


def plan(controller: Controller, key: Key, seen: Views, now: datetime = NOW) -> list[Action]:
    return list(controller.plan(key, seen, now, entropy))


def enqueued(controller: Controller, seen: Views) -> list[Key]:
    """Pass every object to the controller, as the loop does at its start; return the keys that it enqueues."""
    return [
        key
        for plural in controller.watches
        for obj in seen[plural].list()
        for key in controller.keys(plural, obj, False, seen)
    ]


def with_metadata(obj: Obj, **metadata: Any) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], **metadata}}
