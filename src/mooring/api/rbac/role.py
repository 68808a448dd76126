"""Role: schema and strategy.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.rules`, without URLs.
"""

from __future__ import annotations

from mooring.api.rbac.rules import API, POLICY_RULE, role_kind, rule_errors
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message

ROLE = Message(
    API + "Role",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("rules", 2, ListOf(POLICY_RULE), "What is allowed in this namespace.", always=True),
    ),
    "Rules that a RoleBinding of the same namespace can grant.",
)

KIND = role_kind(ROLE, lambda obj: rule_errors(obj, namespaced=True), namespaced=True)
