"""Certificates that a node wants: subject, alternative names, signer and usages (docs/protocol/kubelet-certificates.md).

Rules kept here:
* CN `system:node:<name>`, O `system:nodes`. Usages are digital signature and the purpose, and key encipherment with RSA keys only.
* The names of a serving certificate are the addresses of the Node, sorted. Without an IP address none is requested.
* A certificate satisfies its template while it has every name of it. Names beyond those do not matter, as for kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from mooring.apimachinery.schema import Obj
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.keys import PrivateKey, algorithm_of
from mooring.pki.x509 import names
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import IPAddress
from mooring.pki.x509.profiles import CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING

_IP_TYPES = ("InternalIP", "ExternalIP")
_DNS_TYPES = ("Hostname", "InternalDNS", "ExternalDNS")


@dataclass(frozen=True, slots=True)
class CertificateTemplate:
    """Certificate that a node wants."""

    node_name: str
    signer: str = KUBE_APISERVER_CLIENT_KUBELET
    purpose: str = CLIENT_AUTH
    dns: tuple[str, ...] = ()
    ips: tuple[IPAddress, ...] = ()

    @property
    def common_name(self) -> str:
        return NODE_PREFIX + self.node_name

    def usages(self, key: PrivateKey) -> tuple[str, ...]:
        """Return the usages for a certificate of `key`."""
        if algorithm_of(key).startswith("RSA"):
            return (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, self.purpose)
        return (DIGITAL_SIGNATURE, self.purpose)

    def request_pem(self, key: PrivateKey, challenge_password: str = "") -> bytes:
        """Return the certificate request as PEM. Raises RequestError for a DNS name outside ASCII."""
        return build_request(key, self.common_name, (NODES,), self.dns, self.ips, challenge_password)

    def is_satisfied_by(self, leaf: Certificate) -> bool:
        """Return True when the certificate has the subject and every name of this template."""
        if names.common_name(leaf.subject) != self.common_name or NODES not in names.organizations(leaf.subject):
            return False
        found = names.alternative_names(leaf.extensions)
        return set(self.dns) <= set(found.dns) and set(self.ips) <= set(found.ips)


def serving_template(node_name: str, addresses: Iterable[Obj]) -> CertificateTemplate | None:
    """Return the template for the addresses in a Node's status; None without an IP address, as kubelet since 1.31.

    Addresses of loopback are left out: no node is certified for them.
    """
    dns: set[str] = set()
    ips: set[IPAddress] = set()
    for one in addresses:
        kind, address = one.get("type"), str(one.get("address", ""))
        try:
            ip = canonical_address(ip_address(address))
        except ValueError:
            if kind in _DNS_TYPES and address:
                dns.add(address)
        else:
            if kind in (*_IP_TYPES, *_DNS_TYPES):
                ips.add(ip)
    if not ips:
        return None
    ordered = tuple(sorted((ip for ip in ips if not ip.is_loopback), key=lambda one: (one.version, int(one))))
    return CertificateTemplate(node_name, KUBELET_SERVING, SERVER_AUTH, tuple(sorted(dns)), ordered)
