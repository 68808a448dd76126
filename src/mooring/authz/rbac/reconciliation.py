"""Reconciliation of default RBAC objects at start: what to write so that a stored object grants at least the default.

Rules kept here (docs/protocol/rbac.md#default-roles):
1. Reconciliation only adds missing rules, subjects, labels and annotations. Additions of an administrator stay.
2. An object whose autoupdate annotation is `"false"` is left alone.
3. An aggregated role keeps its rules, which the aggregation controller writes, and gets missing selectors. The aggregation rule
   of a role that is not aggregated by default is removed.
4. A binding to another role is replaced, because roleRef is immutable: the wanted object is returned without uid and
   resourceVersion, to be created after the stored one is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.escalation import covers
from mooring.authz.rbac.rules import compile_rule, compile_rules

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"


def reconcile(existing: Obj | None, wanted: Obj) -> Obj | None:
    """Return the object to write so that `existing` grants at least `wanted`, or None when it already does."""
    if existing is None:
        return deep_copy(wanted)
    if (existing["metadata"].get("annotations") or {}).get(AUTOUPDATE) == "false":
        return None
    if "roleRef" in wanted and existing.get("roleRef") != wanted["roleRef"]:
        return deep_copy(wanted)
    result = deep_copy(existing)
    for marks in ("labels", "annotations"):
        merged = {**wanted["metadata"].get(marks, {}), **(existing["metadata"].get(marks) or {})}
        if merged:
            result["metadata"][marks] = merged
    if "roleRef" in wanted:
        _add(result, "subjects", wanted.get("subjects", ()))
    elif "aggregationRule" in wanted:
        _add(result.setdefault("aggregationRule", {}), "clusterRoleSelectors", _selectors(wanted))
    else:
        result.pop("aggregationRule", None)
        held = compile_rules(existing.get("rules"))
        missing = [one for one in wanted.get("rules", ()) if covers(held, (compile_rule(one),))]
        _add(result, "rules", missing)
    return None if result == existing else result


def _selectors(role: Obj) -> Sequence[Obj]:
    selectors: Sequence[Obj] = role["aggregationRule"]["clusterRoleSelectors"]
    return selectors


def _add(holder: Obj, key: str, wanted: Sequence[Obj]) -> None:
    """Append the missing elements to the list `holder[key]`; an absent list stays absent when nothing is missing."""
    present = holder.get(key) or []
    missing = [deep_copy(one) for one in wanted if one not in present]
    if missing:
        holder[key] = [*present, *missing]
