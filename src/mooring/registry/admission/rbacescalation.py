"""RBACEscalation: refuse roles and bindings that grant rights which their author does not hold.

Rules kept here (docs/protocol/rbac.md#escalation): creates and updates of roles and bindings are checked before they are
validated, as kube-apiserver does. The RBAC rules are read from the same views as every other decision.
"""

from __future__ import annotations

from mooring.authz.rbac.authorizer import API_GROUP, Rbac
from mooring.authz.rbac.escalation import check_binding, check_role
from mooring.registry.admission.request import AdmissionRequest

_CHECKS = {
    "roles": check_role,
    "clusterroles": check_role,
    "rolebindings": check_binding,
    "clusterrolebindings": check_binding,
}


class RbacEscalation:
    name = "RBACEscalation"

    def __init__(self) -> None:
        self._rbac = Rbac()

    def admit(self, request: AdmissionRequest) -> None:
        check = _CHECKS.get(request.resource)
        if check is None or request.new is None or request.kind.resource.group != API_GROUP:
            return
        check(request.new, request.old, request.user, self._rbac, request.views, request.authorize)
