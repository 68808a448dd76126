"""ClusterRole: schema and strategy.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.rules`. An aggregation rule has at least one selector, and its
selectors are valid.
"""

from __future__ import annotations

from mooring.api.meta.objectmeta import label_errors
from mooring.api.rbac.rules import API, POLICY_RULE, role_kind, rule_errors
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.names import label_value_errors, qualified_name_errors
from mooring.apimachinery.schema import Field, ListOf, Message, Obj
from mooring.errors import FieldError, forbidden, invalid, required

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
            found = _selector_errors(selector, f"{path}[{index}]")
            errors += found
            if found:
                errors.append(invalid(f"{path}[{index}]", None, "invalid label selector."))
    return errors


def _selector_errors(selector: Obj, path: str) -> list[FieldError]:
    errors = label_errors(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or []):
        at = f"{path}.matchExpressions[{index}]"
        key, operator, values = (
            expression.get("key", ""),
            expression.get("operator", ""),
            expression.get("values") or [],
        )
        if operator in ("In", "NotIn"):
            if not values:
                errors.append(required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden(f"{at}.values", detail))
        else:
            errors.append(invalid(f"{at}.operator", operator, "not a valid selector operator"))
        errors += [invalid(f"{at}.key", key, detail) for detail in qualified_name_errors(key)]
        errors += [
            invalid(f"{at}.values[{place}]", value, detail)
            for place, value in enumerate(values)
            for detail in label_value_errors(value)
        ]
    return errors


KIND = role_kind(CLUSTER_ROLE, _validate, namespaced=False)
