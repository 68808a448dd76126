"""ClusterRoleBinding: grants a role everywhere (reference/kubernetes.md 6.2, 6.3).

Rules kept here: those of `rbacbinding`. PUT of a missing ClusterRoleBinding creates it.
"""

from __future__ import annotations

from mooring.kinds.kind import Kind
from mooring.kinds.rbacbinding import BINDING_COLUMNS, binding_errors, binding_schema, default, role_ref_errors
from mooring.kinds.rbacrules import GROUP
from mooring.wire.names import path_segment_errors
from mooring.wire.resource import Resource

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
    create_on_update=True,
)
