"""NodeMembership: a machine whose Node was deleted does not create it again by itself.

Rules kept here: the certificate of such a machine is rejected before admission (`mooring.authn.revocations`). This plugin
refuses the Node when the machine authenticates in another way, such as by a bearer token or as an impersonated user. While the
membership cannot be read, the machine waits. An administrator may create the Node.
"""

from __future__ import annotations

from mooring.api.mooring.membership import lapse
from mooring.authz.node import node_name
from mooring.errors import ServiceUnavailableError
from mooring.registry.admission.request import AdmissionRequest


class NodeMembership:
    name = "NodeMembership"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != "nodes" or node_name(request.user) != request.name:
            return
        found = lapse(request.name, request.views)
        if found is not None and found.is_undecided:
            raise ServiceUnavailableError(f"whether this machine is a member cannot be read now: {found.detail}")
        if found is not None:
            raise request.forbidden(
                "the Node was deleted, which ended the membership of this machine; let it join again with a valid token "
                "(mooring join)"
            )
