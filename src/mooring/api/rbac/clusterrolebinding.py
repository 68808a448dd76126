"""ClusterRoleBinding: strategy; it grants a ClusterRole in the whole cluster.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.bindings`. PUT of a missing ClusterRoleBinding creates it.
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
        kind="ClusterRoleBinding",
        plural="clusterrolebindings",
        singular="clusterrolebinding",
        namespaced=False,
        schema=binding_schema(
            "ClusterRoleBinding", "Grants a ClusterRole in every namespace and for the cluster itself."
        ),
        columns=BINDING_COLUMNS,
    ),
    storage="/registry/clusterrolebindings",
    name_errors=path_segment_errors,
    default=default,
    validate=lambda obj: binding_errors(obj, namespaced=False),
    validate_update=role_ref_errors,
    allow_create_on_update=True,
)
