"""Role: schema and strategy.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.rules`, without URLs. PUT of a missing Role creates it.
"""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.api.rbac.rules import API, GROUP, POLICY_RULE, ROLE_COLUMNS, rule_errors
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Field, ListOf, Message

ROLE = Message(
    API + "Role",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("rules", 2, ListOf(POLICY_RULE), "What is allowed in this namespace.", always=True),
    ),
    "Rules that a RoleBinding of the same namespace can grant.",
)

KIND = Kind(
    resource=Resource(
        group=GROUP,
        version="v1",
        kind="Role",
        plural="roles",
        namespaced=True,
        schema=ROLE,
        columns=ROLE_COLUMNS,
    ),
    storage="/registry/roles",
    name_errors=path_segment_errors,
    validate=lambda obj: rule_errors(obj, namespaced=True),
    allow_create_on_update=True,
)
