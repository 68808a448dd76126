"""RoleBinding: strategy; it grants a role in one namespace.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.bindings`.
"""

from __future__ import annotations

from mooring.api.rbac.bindings import binding_kind

KIND = binding_kind("RoleBinding", namespaced=True)
