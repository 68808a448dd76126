"""The built-in signers and the requests that each accepts.

Source: docs/protocol/certificate-signing-requests.md#built-in-signers.

Rules kept here:
* Requests for a signer that is not in `SIGNERS` are left to other controllers.
* A refusal names every rule that the request breaks, in the order in which Kubernetes checks them. The text becomes the message of
  the condition Failed.
* Of the signers of Kubernetes, only client certificates of kubelets are approved without a person or a custom approver.
* The signers of the supervisor compute the names of a certificate themselves (`mooring.pki.x509.supervisorsigners`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.x509.requests import CertificateRequest
from mooring.pki.x509.supervisorsigners import (
    K3S_CONTROLLER_CLIENT,
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    client_rules,
    serving_rules,
)
from mooring.pki.x509.usages import CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH

KUBE_APISERVER_CLIENT = "kubernetes.io/kube-apiserver-client"
KUBE_APISERVER_CLIENT_KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
LEGACY_UNKNOWN = "kubernetes.io/legacy-unknown"

CLIENT_SIGNERS = (KUBE_APISERVER_CLIENT_KUBELET, KUBE_APISERVER_CLIENT)
"""Signers whose certificates the API server accepts from clients. It must trust their CAs."""

COUNTERPARTS: Mapping[str, str] = MappingProxyType(
    {
        K3S_KUBELET_CLIENT: KUBE_APISERVER_CLIENT_KUBELET,
        K3S_KUBELET_SERVING: KUBELET_SERVING,
        K3S_KUBE_PROXY_CLIENT: KUBE_APISERVER_CLIENT,
        K3S_CONTROLLER_CLIENT: KUBE_APISERVER_CLIENT,
    }
)
"""Signers of the supervisor, each with the signer of Kubernetes whose CA signs for it, too."""

NODE_CLIENT = "nodeclient"
SELF_NODE_CLIENT = "selfnodeclient"

Rules = Callable[[CertificateRequest, Collection[str]], list[str]]


@dataclass(frozen=True, slots=True)
class Signer:
    """One signer. `auto_approvals` are subresources of certificatesigningrequests. A requester with the right to `create` one of
    them has its request approved automatically; they are checked in this order."""

    name: str
    rules: Rules
    auto_approvals: tuple[str, ...] = ()

    def refusals(self, request: CertificateRequest, usages: Collection[str]) -> list[str]:
        """Return every rule that the request breaks; none means that the signer signs it once it is approved."""
        return self.rules(request, usages)

    def approval_subresources(
        self, request: CertificateRequest, usages: Collection[str], username: str
    ) -> tuple[str, ...]:
        """Return the subresources whose grant approves this request of `username` automatically, in order."""
        if not self.auto_approvals or self.refusals(request, usages):
            return ()
        is_own_name = username == request.common_name
        return tuple(name for name in self.auto_approvals if is_own_name or name != SELF_NODE_CLIENT)


def _any_client(request: CertificateRequest, usages: Collection[str]) -> list[str]:
    for usage in usages:
        if usage not in (CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT):
            return [f"invalid usage for client certificate: {usage}"]
    return [] if CLIENT_AUTH in usages else [f"missing required usage for client certificate: {CLIENT_AUTH}"]


def _kubelet_client(request: CertificateRequest, usages: Collection[str]) -> list[str]:
    alternative_names = request.alternative_names
    return [
        *_organization(request),
        *(["DNS subjectAltNames are not allowed"] if alternative_names.dns else []),
        *(["email subjectAltNames are not allowed"] if alternative_names.emails else []),
        *(["IP subjectAltNames are not allowed"] if alternative_names.ips else []),
        *(["URI subjectAltNames are not allowed"] if alternative_names.uris else []),
        *_common_name(request),
        *_node_usages(usages, CLIENT_AUTH),
    ]


def _kubelet_serving(request: CertificateRequest, usages: Collection[str]) -> list[str]:
    alternative_names = request.alternative_names
    return [
        *_organization(request),
        *([] if alternative_names.dns or alternative_names.ips else ["DNS or IP subjectAltName is required"]),
        *(["email subjectAltNames are not allowed"] if alternative_names.emails else []),
        *(["URI subjectAltNames are not allowed"] if alternative_names.uris else []),
        *_common_name(request),
        *_node_usages(usages, SERVER_AUTH),
    ]


def _no_rules(request: CertificateRequest, usages: Collection[str]) -> list[str]:
    return []


def _organization(request: CertificateRequest) -> list[str]:
    return [] if request.organizations == (NODES,) else [f"subject organization is not {NODES}"]


def _common_name(request: CertificateRequest) -> list[str]:
    named = request.common_name.startswith(NODE_PREFIX)
    return [] if named else [f"subject common name does not begin with {NODE_PREFIX}"]


def _node_usages(usages: Collection[str], purpose: str) -> list[str]:
    required = {DIGITAL_SIGNATURE, purpose}
    return [] if set(usages) - {KEY_ENCIPHERMENT} == required else [_usages_differ(required | {KEY_ENCIPHERMENT})]


def _usages_differ(wanted: Collection[str]) -> str:
    return f"usages did not match [{' '.join(sorted(wanted))}]"


SIGNERS: Mapping[str, Signer] = MappingProxyType(
    {
        signer.name: signer
        for signer in (
            Signer(KUBE_APISERVER_CLIENT, _any_client),
            Signer(KUBE_APISERVER_CLIENT_KUBELET, _kubelet_client, (SELF_NODE_CLIENT, NODE_CLIENT)),
            Signer(KUBELET_SERVING, _kubelet_serving),
            Signer(LEGACY_UNKNOWN, _no_rules),
            Signer(K3S_KUBELET_CLIENT, client_rules),
            Signer(K3S_KUBELET_SERVING, serving_rules),
            Signer(K3S_KUBE_PROXY_CLIENT, client_rules),
            Signer(K3S_CONTROLLER_CLIENT, client_rules),
        )
    }
)
"""Signers of Mooring by name."""
