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
_PARTS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
"""Fields of a rule. Rules are compared by a hash of them: a role that feeds others may have thousands of rules."""


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
    own = role["metadata"]["name"]
    left = {name: source for source in views[CLUSTER_ROLES].list() if (name := str(source["metadata"]["name"])) != own}
    names = sorted(left)
    rules: dict[tuple[tuple[str, ...], ...], Obj] = {}
    for wanted in role["aggregationRule"].get("clusterRoleSelectors") or ():
        selector = label_selector_from_object(wanted)
        selected = [name for name in names if selector.matches(left[name]["metadata"].get("labels") or {})]
        for name in selected:
            for rule in left.pop(name).get("rules") or ():
                rules.setdefault(tuple(tuple(rule.get(part) or ()) for part in _PARTS), rule)
        names = [name for name in names if name in left]
    return list(rules.values())
