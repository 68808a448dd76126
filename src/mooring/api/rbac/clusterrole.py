"""ClusterRole: schema and strategy.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.rules`. An aggregation rule has at least one selector, and its
selectors are valid.
"""

from __future__ import annotations

from mooring.api.meta.labelselector import label_selector_errors
from mooring.api.rbac.rules import API, POLICY_RULE, role_kind, rule_errors
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Obj
from mooring.errors import FieldError, invalid, required

CLUSTER_ROLE = Message(
    API + "ClusterRole",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("rules", 2, ListOf(POLICY_RULE), "What is allowed.", always=True),
        Field(
            "aggregationRule",
            3,
            Message(
                API + "AggregationRule",
                (
                    Field(
                        "clusterRoleSelectors",
                        1,
                        ListOf(LABEL_SELECTOR),
                        "ClusterRoles that any of these selects lend their rules.",
                    ),
                ),
                "Where the rules come from.",
            ),
            "When set, a controller keeps the rules as the union of those of other ClusterRoles.",
            pointer=True,
        ),
    ),
    "Rules that a ClusterRoleBinding grants everywhere and a RoleBinding in its namespace.",
)


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


KIND = role_kind(CLUSTER_ROLE, _validate, namespaced=False)
