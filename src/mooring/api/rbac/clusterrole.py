"""ClusterRole: strategy.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.rules`. An aggregation rule has at least one selector, and its
selectors are valid.
"""

from __future__ import annotations

from mooring.api.meta.labelselector import label_selector_errors
from mooring.api.rbac.rules import role_kind, rule_errors
from mooring.apimachinery.schema import Obj, message
from mooring.errors import FieldError, invalid, required


def _validate(obj: Obj) -> list[FieldError]:
    errors = rule_errors(obj, namespaced=False)
    aggregation = obj.get("aggregationRule")
    if aggregation is not None:
        path, selectors = "aggregationRule.clusterRoleSelectors", aggregation.get("clusterRoleSelectors") or []
        if not selectors:
            errors.append(required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
        for index, selector in enumerate(selectors):
            found = label_selector_errors(selector, f"{path}[{index}]")
            errors += found
            if found:
                errors.append(invalid(f"{path}[{index}]", None, "invalid label selector."))
    return errors


KIND = role_kind(message("io.k8s.api.rbac.v1.ClusterRole"), _validate, namespaced=False)
