"""Signers and the requests that each accepts: the built-in ones, and those of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_address
from types import MappingProxyType

from cryptography.x509.oid import NameOID

from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.errors import RequestError
from mooring.pki.x509 import names
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.names import AlternativeNames, IPAddress
from mooring.pki.x509.profiles import CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH
from mooring.pki.x509.requests import CertificateRequest

# The built-in signers and the requests that each accepts.
#
# Source: docs/protocol/certificate-signing-requests.md#built-in-signers.
#
# Rules kept here:
# * Requests for a signer that is not in `SIGNERS` are left to other controllers.
# * A refusal names every rule that the request breaks, in the order in which Kubernetes checks them. The text becomes the message
#   of the condition Failed.
# * Of the signers of Kubernetes, only client certificates of kubelets are approved without a person or a custom approver.
# * The signers of the supervisor compute the names of a certificate themselves (`mooring.pki.x509.signers`).

# Signers of the supervisor, which decides every name in their certificates (docs/protocol/k3s.md#certificates).
#
# Rules kept here:
# * Of the request of the machine only the key counts, with the proof of its possession. Subject, alternative names and usages in
#   it change nothing.
# * The names follow from `spec.signerName` and `spec.extra`. `issued_request` is the one function that computes them. Approver,
#   checks, signer and `mooring csr show` all call it.
# * Keys of `spec.extra` that begin with `mooring.io/k3s-` are the server's. It removes those of a requester, and sets its own
#   only on requests of the supervisor (`mooring.api.certificates.certificatesigningrequest`).
# * A request without them is of no supervisor and becomes no certificate.
# * The users `system:kube-proxy` and `system:k3s-controller` are the same on all machines. Their certificates name the machine in
#   an organizational unit, `OU=system:node:<name>`, by which the server knows when they end. Kubernetes reads nothing from it.
# * Serving certificates of kubelets have the same unit: Mooring's clients do not take a server with it for an API server.

K3S_KUBELET_CLIENT = "mooring.io/k3s-kubelet-client"
K3S_KUBELET_SERVING = "mooring.io/k3s-kubelet-serving"
K3S_KUBE_PROXY_CLIENT = "mooring.io/k3s-kube-proxy-client"
K3S_CONTROLLER_CLIENT = "mooring.io/k3s-controller-client"

KUBE_PROXY = "system:kube-proxy"
K3S_CONTROLLER = "system:k3s-controller"

RESERVED = "mooring.io/k3s-"
"""Prefix of the keys of `spec.extra` that only the server sets."""
NODE_NAME = f"{RESERVED}node-name"
NODE_IP = f"{RESERVED}node-ip"
NODE_PASSWORD = f"{RESERVED}node-password"
"""uid of the Secret against which the node password was verified. Absent when it was not verified yet."""
PASSWORD_DEFERRED = "deferred"  # noqa: S105 - a word in place of a uid, not a password
"""Value of NODE_PASSWORD where the operator lets a password through that cannot be stored now."""
CREDENTIAL = f"{RESERVED}credential"
"""Name of the authenticator that accepted the requester. Every request of the supervisor has it."""

_USERS: Mapping[str, str] = MappingProxyType({K3S_KUBE_PROXY_CLIENT: KUBE_PROXY, K3S_CONTROLLER_CLIENT: K3S_CONTROLLER})
K3S_LOCAL_NAMES = AlternativeNames(("localhost",), (IPv4Address("127.0.0.1"),))
"""Names of loopback in every serving certificate of a kubelet, by which k3s's agents reach their own kubelet."""

NODE_SIGNERS = (K3S_KUBELET_CLIENT, K3S_KUBELET_SERVING)
"""Signers whose certificates name a node."""
SHARED_SIGNERS = tuple(_USERS)
"""Signers whose certificates have a user that all machines share, and are bound to one machine."""
SUPERVISOR_SIGNERS = (*NODE_SIGNERS, *SHARED_SIGNERS)

Extra = Mapping[str, Sequence[str]]


def issued_request(request: CertificateRequest, signer_name: str, extra: Extra) -> CertificateRequest:
    """Return the request with the names that the signer puts into the certificate. Raises RequestError.

    Requests for other signers are returned unchanged.
    """
    if signer_name not in SUPERVISOR_SIGNERS:
        return request
    if CREDENTIAL not in extra:
        raise RequestError(f"certificates of {signer_name} are requested from the supervisor only")
    node = node_name_in(extra)
    if not node:
        raise RequestError(f"a certificate of {signer_name} needs the name of a node")
    user = _USERS.get(signer_name)
    if user is not None:
        return replace(request, subject=names.subject(user, unit=NODE_PREFIX + node), alternative_names=names.NO_NAMES)
    if signer_name == K3S_KUBELET_CLIENT:
        subject = names.subject(NODE_PREFIX + node, (NODES,))
        return replace(request, subject=subject, alternative_names=names.NO_NAMES)
    addresses = dict.fromkeys((*K3S_LOCAL_NAMES.ips, *map(node_address, extra.get(NODE_IP) or ())))
    listed = AlternativeNames(tuple(dict.fromkeys((node, *K3S_LOCAL_NAMES.dns))), tuple(addresses))
    return replace(request, subject=names.subject(node, unit=NODE_PREFIX + node), alternative_names=listed)


def node_address(text: str) -> IPAddress:
    """Parse an address of a node. Raises RequestError.

    An IPv4 address in its IPv6 form is returned as IPv4, as in Go, so that it is compared with those of other nodes. An address
    with a zone is none that a certificate can have.
    """
    try:
        address = ip_address(text)
    except ValueError:
        address = None
    if address is None or getattr(address, "scope_id", None):
        raise RequestError("an address of the node is no IP address") from None
    return canonical_address(address)


def machine_of(subject: DistinguishedName) -> str:
    """Return the name of the machine to which a certificate of a shared user is bound; "" for every other certificate.

    A certificate that was issued before machines were named has no unit, and is bound to none until it runs out.
    """
    if names.common_name(subject) not in _USERS.values():
        return ""
    units = names.values(subject, NameOID.ORGANIZATIONAL_UNIT_NAME)
    return next((unit.removeprefix(NODE_PREFIX) for unit in units if unit.startswith(NODE_PREFIX)), "")


def node_name_in(extra: Extra) -> str:
    """Return the name of the node that the supervisor recorded; "" when there is none."""
    return next(iter(extra.get(NODE_NAME) or ()), "")


def password_in(extra: Extra) -> str:
    """Return the uid of the Secret against which the supervisor verified the node password; "" when it verified none."""
    found = next(iter(extra.get(NODE_PASSWORD) or ()), "")
    return "" if found == PASSWORD_DEFERRED else found


def is_password_deferred(extra: Extra) -> bool:
    """Return true for a request whose node password is verified later, as the operator has said."""
    return PASSWORD_DEFERRED in (extra.get(NODE_PASSWORD) or ())


def credential_in(extra: Extra) -> str:
    """Return the name of the authenticator that the supervisor recorded; "" for a request of another client."""
    return next(iter(extra.get(CREDENTIAL) or ()), "")


def usages_of(signer_name: str, *, is_rsa: bool) -> tuple[str, ...]:
    """Return the usages of a certificate. Only RSA keys get key encipherment, which has no meaning for others."""
    purpose = SERVER_AUTH if signer_name == K3S_KUBELET_SERVING else CLIENT_AUTH
    return (DIGITAL_SIGNATURE, *((KEY_ENCIPHERMENT,) if is_rsa else ()), purpose)


def client_rules(request: CertificateRequest, usages: Collection[str]) -> list[str]:
    """Return the rules of a signer of client certificates that a request breaks."""
    return _usage_rules(usages, CLIENT_AUTH)


def serving_rules(request: CertificateRequest, usages: Collection[str]) -> list[str]:
    """Return the rules of the signer of serving certificates that a request breaks."""
    return _usage_rules(usages, SERVER_AUTH)


def _usage_rules(usages: Collection[str], purpose: str) -> list[str]:
    allowed = {DIGITAL_SIGNATURE, purpose}
    return (
        [] if set(usages) - {KEY_ENCIPHERMENT} == allowed else [f"usages did not match [{' '.join(sorted(allowed))}]"]
    )


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
