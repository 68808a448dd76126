"""legacy-service-account-token-tracking: records the day since which this cluster tracks uses of tokens in Secrets.

Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens; KEP-2799):
* ConfigMap kube-system/kube-apiserver-legacy-service-account-token-tracking holds it as `since`, a day in UTC.
* A missing ConfigMap is created. A day that cannot be parsed, or lies in the future, is replaced by today, because a token whose
  uses were not tracked is not known to be unused. Tomorrow is accepted, since the clock of another server may be ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update

CONFIG_MAPS = "configmaps"
KUBE_SYSTEM, TRACKING = "kube-system", "kube-apiserver-legacy-service-account-token-tracking"
SINCE = "since"


def parse_day(text: str | None) -> date | None:
    """Parse a day such as `2026-01-02`; None for anything else."""
    try:
        found = date.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.isoformat() == text else None  # fromisoformat also accepts weeks, and days without dashes


def tracked_since(views: Views) -> date | None:
    """Return the day since which uses are tracked; None when unknown."""
    found = views[CONFIG_MAPS].get(TRACKING, KUBE_SYSTEM)
    return parse_day((found.get("data") or {}).get(SINCE)) if found else None


@dataclass(frozen=True, slots=True)
class LegacyTokenTracking:
    """Keeps the tracking ConfigMap."""

    name: str = "legacy-service-account-token-tracking"
    watches: tuple[str, ...] = (CONFIG_MAPS, "namespaces")

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == CONFIG_MAPS:
            relevant = (metadata["namespace"], metadata["name"]) == (KUBE_SYSTEM, TRACKING)
        else:  # without a ConfigMap, no other event would enqueue the key
            relevant = metadata["name"] == KUBE_SYSTEM and not deleted
        return ((KUBE_SYSTEM, TRACKING),) if relevant else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        today = now.date()
        data = {SINCE: today.isoformat()}
        found = views[CONFIG_MAPS].get(TRACKING, KUBE_SYSTEM)
        if found is None:
            metadata = {"name": TRACKING, "namespace": KUBE_SYSTEM}
            return (Create(CONFIG_MAPS, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data}),)
        since = tracked_since(views)
        if since is not None and since <= today + timedelta(days=1):
            return ()
        if found.get("immutable"):
            return (Delete.of(CONFIG_MAPS, found),)
        return (Update(CONFIG_MAPS, {**found, "data": {**(found.get("data") or {}), **data}}),)
