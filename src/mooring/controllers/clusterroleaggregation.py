"""clusterrole-aggregation-controller: fills ClusterRoles that have an aggregationRule with the rules of the selected roles.

Rules kept here (docs/protocol/rbac.md#aggregation):
* The rules are the union over all selectors, for each the selected roles by name, without duplicates and without the role itself.
  Other rules are removed.
* Any change of any ClusterRole plans every aggregating one; those are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import label_selector_from_object
from mooring.controllers.actions import Action, Entropy, Key, Update

CLUSTER_ROLES = "clusterroles"


@dataclass(frozen=True, slots=True)
class ClusterRoleAggregation:
    """Keeps aggregated ClusterRoles up to date."""

    name: str = "clusterrole-aggregation-controller"
    watches: tuple[str, ...] = (CLUSTER_ROLES,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return tuple(
            ("", role["metadata"]["name"]) for role in views[CLUSTER_ROLES].list() if role.get("aggregationRule")
        )

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        role = views[CLUSTER_ROLES].get(key[1])
        if role is None or not role.get("aggregationRule"):
            return ()
        rules = _aggregated_rules(role, views)
        if rules == (role.get("rules") or []):
            return ()
        changed = {name: value for name, value in role.items() if name != "rules"}
        return (Update(CLUSTER_ROLES, changed | ({"rules": rules} if rules else {})),)


def _aggregated_rules(role: Obj, views: Views) -> list[Obj]:
    sources = sorted(views[CLUSTER_ROLES].list(), key=lambda source: str(source["metadata"]["name"]))
    rules: list[Obj] = []
    for wanted in role["aggregationRule"].get("clusterRoleSelectors") or ():
        selector = label_selector_from_object(wanted)
        for source in sources:
            metadata = source["metadata"]
            if metadata["name"] == role["metadata"]["name"] or not selector.matches(metadata.get("labels") or {}):
                continue
            rules += [rule for rule in source.get("rules") or () if rule not in rules]
    return rules
