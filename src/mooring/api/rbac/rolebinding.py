"""RoleBinding: strategy; it grants a role in one namespace.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.bindings`. PUT of a missing RoleBinding creates it.
"""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.api.rbac.bindings import BINDING_COLUMNS, binding_errors, binding_schema, default, role_ref_errors
from mooring.api.rbac.rules import GROUP
from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.resource import Resource

KIND = Kind(
    resource=Resource(
        group=GROUP,
        version="v1",
        kind="RoleBinding",
        plural="rolebindings",
        singular="rolebinding",
        namespaced=True,
        schema=binding_schema("RoleBinding", "Grants a Role or ClusterRole in one namespace."),
        columns=BINDING_COLUMNS,
    ),
    storage="/registry/rolebindings",
    name_errors=path_segment_errors,
    default=default,
    validate=lambda obj: binding_errors(obj, namespaced=True),
    validate_update=role_ref_errors,
    allow_create_on_update=True,
)
