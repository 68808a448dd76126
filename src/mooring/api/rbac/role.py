"""Role: strategy.

Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac.rules`, without URLs.
"""

from __future__ import annotations

from mooring.api.rbac.rules import role_kind, rule_errors
from mooring.apimachinery.schema import message

KIND = role_kind(message("io.k8s.api.rbac.v1.Role"), lambda obj: rule_errors(obj, namespaced=True), namespaced=True)
