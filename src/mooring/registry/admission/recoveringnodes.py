"""RecoveringNodeRestriction: a recovering node may request a client certificate of its own node, and write nothing else.

Rules kept here (docs/come-back-after-expiry.md): for users in the group system:recovering-nodes, whatever RBAC grants them:
* A CertificateSigningRequest is for the signer kube-apiserver-client-kubelet, and its common name is that of the node.
* No other stored object may be written. Access reviews about itself are not stored objects.
"""

from __future__ import annotations

from mooring.identity import NODE_PREFIX, RECOVERING_NODE_PREFIX, RECOVERING_NODES
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.registry.admission.certificates import CSRS, parse_new_request
from mooring.registry.admission.request import AdmissionRequest


class RecoveringNodeRestriction:
    name = "RecoveringNodeRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        if RECOVERING_NODES not in request.user.groups or request.kind.virtual:
            return
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            raise request.forbidden("a recovering node may only create certificate signing requests")
        if (request.new.get("spec") or {}).get("signerName") != KUBE_APISERVER_CLIENT_KUBELET:
            raise request.forbidden(f"a recovering node may only use the signer {KUBE_APISERVER_CLIENT_KUBELET}")
        own = NODE_PREFIX + request.user.username.removeprefix(RECOVERING_NODE_PREFIX)
        parsed = parse_new_request(request)
        if parsed is not None and parsed.common_name != own:
            raise request.forbidden(f'"{request.user.username}" may only request a certificate of "{own}"')
