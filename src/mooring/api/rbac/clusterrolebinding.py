"""ClusterRoleBinding: strategy; it grants a ClusterRole in the whole cluster.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.bindings`.
"""

from __future__ import annotations

from mooring.api.rbac.bindings import binding_kind

KIND = binding_kind("ClusterRoleBinding", namespaced=False)
