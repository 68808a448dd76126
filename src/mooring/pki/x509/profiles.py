"""Certificate profiles: the subject, usages and lifetime of each certificate that is issued, and the words of `spec.usages`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from mooring.identity import MASTERS
from mooring.pki.errors import IssueError
from mooring.pki.keys import PublicKey
from mooring.pki.x509 import names
from mooring.pki.x509.distinguishedname import NO_NAME, DistinguishedName
from mooring.pki.x509.names import NO_NAMES, AlternativeNames, IPAddress
from mooring.pki.x509.requests import CertificateRequest

# Key usages: the words of `spec.usages` and their extensions in a certificate.
#
# Rules kept here: the list is closed (docs/protocol/certificate-signing-requests.md#validation); `signing` is `digital signature`
# and `s/mime` is `email protection`; extended usages are encoded once each, in the order of Go's enumeration.

DIGITAL_SIGNATURE = "digital signature"
KEY_ENCIPHERMENT = "key encipherment"
CERT_SIGN = "cert sign"
CRL_SIGN = "crl sign"
SERVER_AUTH = "server auth"
CLIENT_AUTH = "client auth"

KEY_USAGES: Mapping[str, str] = MappingProxyType(
    {
        "signing": "digital_signature",
        DIGITAL_SIGNATURE: "digital_signature",
        "content commitment": "content_commitment",
        KEY_ENCIPHERMENT: "key_encipherment",
        "key agreement": "key_agreement",
        "data encipherment": "data_encipherment",
        CERT_SIGN: "key_cert_sign",
        CRL_SIGN: "crl_sign",
        "encipher only": "encipher_only",
        "decipher only": "decipher_only",
    }
)
"""Usage → bit of the KeyUsage extension (RFC 5280 4.2.1.3)."""

EXTENDED_USAGES: Mapping[str, ObjectIdentifier] = MappingProxyType(
    {
        "any": ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
        SERVER_AUTH: ExtendedKeyUsageOID.SERVER_AUTH,
        CLIENT_AUTH: ExtendedKeyUsageOID.CLIENT_AUTH,
        "code signing": ExtendedKeyUsageOID.CODE_SIGNING,
        "email protection": ExtendedKeyUsageOID.EMAIL_PROTECTION,
        "s/mime": ExtendedKeyUsageOID.EMAIL_PROTECTION,
        "ipsec end system": ObjectIdentifier("1.3.6.1.5.5.7.3.5"),
        "ipsec tunnel": ObjectIdentifier("1.3.6.1.5.5.7.3.6"),
        "ipsec user": ObjectIdentifier("1.3.6.1.5.5.7.3.7"),
        "timestamping": ExtendedKeyUsageOID.TIME_STAMPING,
        "ocsp signing": ExtendedKeyUsageOID.OCSP_SIGNING,
        "microsoft sgc": ObjectIdentifier("1.3.6.1.4.1.311.10.3.3"),
        "netscape sgc": ObjectIdentifier("2.16.840.1.113730.4.1"),
    }
)
"""Usage → purpose of the ExtendedKeyUsage extension, in Go's order."""

USAGES: tuple[str, ...] = (*KEY_USAGES, *EXTENDED_USAGES)
"""Every word allowed in `spec.usages`."""

_BITS = tuple(dict.fromkeys(KEY_USAGES.values()))


def check(usages: Iterable[str]) -> None:
    """Raise IssueError for a word outside the list and for a combination that X.509 cannot express."""
    requested = frozenset(usages)
    for usage in sorted(requested):
        if usage not in KEY_USAGES and usage not in EXTENDED_USAGES:
            raise IssueError(f'unrecognised key usage "{usage}"')
    if requested & {"encipher only", "decipher only"} and "key agreement" not in requested:
        raise IssueError('"encipher only" and "decipher only" have a meaning only together with "key agreement"')


def key_usage(usages: Iterable[str]) -> x509.KeyUsage | None:
    """Return the KeyUsage extension for these words, or None when none of them is a bit of it."""
    bits = {KEY_USAGES[usage] for usage in usages if usage in KEY_USAGES}
    return x509.KeyUsage(**{bit: bit in bits for bit in _BITS}) if bits else None


def extended_key_usage(usages: Iterable[str]) -> x509.ExtendedKeyUsage | None:
    """Return the ExtendedKeyUsage extension for these words, or None when none of them is a purpose."""
    requested = frozenset(usages)
    purposes = dict.fromkeys(oid for usage, oid in EXTENDED_USAGES.items() if usage in requested)
    return x509.ExtendedKeyUsage(purposes) if purposes else None


def may_sign_certificates(bits: frozenset[str] | None) -> bool:
    """Return whether a key usage with these bits allows to sign certificates. An absent or empty one limits nothing, as in Go."""
    return not bits or KEY_USAGES[CERT_SIGN] in bits


def may_sign_crls(bits: frozenset[str] | None) -> bool:
    """Return whether a key usage with these bits allows to sign CRLs."""
    return not bits or KEY_USAGES[CRL_SIGN] in bits


# Certificate profiles: the subject, usages and lifetime of each certificate that is issued.
#
# Rules kept here:
# * A profile returns an immutable `Template`; the authority adds issuer, serial number and signature only.
# * Every certificate begins five minutes before `now`, so that a peer whose clock is slightly behind accepts it. That of a Pod
#   begins two minutes before: the API server refuses five.
# * Lifetimes are kubeadm's (docs/protocol/discovery-and-join.md#files-and-waits): ten years for a CA, one year for other
#   certificates.
# * Only RSA keys get key encipherment, which has no meaning for other keys (docs/protocol/kubelet-certificates.md#one-request).
# * `from_request` does exactly what the signing controller of Kubernetes does: it rebuilds the subject from its standard
#   attributes, copies the four kinds of alternative names, limits the TTL at both ends, and subtracts five minutes from lifetimes
#   of eight hours and more.

CA_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=365)
BACKDATE = timedelta(minutes=5)
SHORT = timedelta(hours=8)  # shorter lifetimes are kept whole: five minutes would be a large part of them
MIN_TTL = timedelta(minutes=10)  # twice BACKDATE, so that no certificate is expired when it is issued
POD_BACKDATE = timedelta(minutes=2)  # the API server refuses five; the rest is for a device that signs slowly
POD_USAGES = (DIGITAL_SIGNATURE, SERVER_AUTH, CLIENT_AUTH)
"""Usages of the certificate of a Pod (X509-SVID 4.3 and 4.4)."""

CLUSTER_ADMINS = "kubeadm:cluster-admins"
CLUSTER_CA_NAME = "kubernetes"
APISERVER_NAME = "kube-apiserver"
SERVICE_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
"""DNS names of the Service `kubernetes`, which leads to the API servers."""
ADMIN_NAME = "kubernetes-admin"
SUPER_ADMIN_NAME = "kubernetes-super-admin"


@dataclass(frozen=True, slots=True)
class Template:
    """A certificate to issue, apart from issuer, serial number and signature. `usages` are words of `spec.usages`."""

    subject: DistinguishedName
    public_key: PublicKey
    not_before: datetime
    not_after: datetime
    usages: tuple[str, ...]
    alternative_names: AlternativeNames = NO_NAMES
    is_ca: bool = False
    subject_key_identifier: bytes = b""
    """Identifier of the key of a CA; by default the SHA-1 of its public key (RFC 5280 4.2.1.2)."""
    permitted: AlternativeNames = NO_NAMES
    """DNS names and addresses that certificates below a CA may carry; without them it has no name constraints."""

    def ending_by(self, moment: datetime) -> Template:
        """Return a template that is not valid after `moment`."""
        return self if self.not_after <= moment else replace(self, not_after=moment)


def certificate_authority(
    public_key: PublicKey, now: datetime, common_name: str = CLUSTER_CA_NAME, lifetime: timedelta = CA_LIFETIME
) -> Template:
    """Return the template of a CA that signs certificates and CRLs, without a limit on the length of chains below it."""
    allowed = (DIGITAL_SIGNATURE, CERT_SIGN, CRL_SIGN)
    return Template(names.subject(common_name), public_key, *_window(now, lifetime), allowed, is_ca=True)


def apiserver_serving(
    public_key: PublicKey, now: datetime, dns: Iterable[str] = (), ips: Iterable[IPAddress] = ()
) -> Template:
    """Return the template of the API server, with the names of the `kubernetes` Service before the given names and addresses."""
    return serving(public_key, now, APISERVER_NAME, (*SERVICE_NAMES, *dns), ips)


def serving(
    public_key: PublicKey,
    now: datetime,
    common_name: str,
    dns: Iterable[str] = (),
    ips: Iterable[IPAddress] = (),
    lifetime: timedelta = LIFETIME,
) -> Template:
    """Return the template of a server with these names and addresses."""
    listed = AlternativeNames(tuple(dict.fromkeys(dns)), tuple(dict.fromkeys(ips)))
    allowed = _end_entity_usages(public_key, SERVER_AUTH)
    return Template(names.subject(common_name), public_key, *_window(now, lifetime), allowed, listed)


def client(
    public_key: PublicKey,
    now: datetime,
    username: str,
    groups: Iterable[str] = (),
    lifetime: timedelta = LIFETIME,
    uid: str = "",
) -> Template:
    """Return the template of an API user. The common name is the username, each organization is a group."""
    allowed = _end_entity_usages(public_key, CLIENT_AUTH)
    return Template(names.subject(username, groups, uid), public_key, *_window(now, lifetime), allowed)


def admin(public_key: PublicKey, now: datetime) -> Template:
    """Return the template for `admin.conf`, whose rights come from a revocable ClusterRoleBinding
    (docs/protocol/kubeadm-init.md)."""
    return client(public_key, now, ADMIN_NAME, (CLUSTER_ADMINS,))


def super_admin(public_key: PublicKey, now: datetime) -> Template:
    """Return the template for `super-admin.conf`, which bypasses RBAC for repairs (docs/protocol/kubeadm-init.md)."""
    return client(public_key, now, SUPER_ADMIN_NAME, (MASTERS,))


def pod(public_key: PublicKey, alternative_names: AlternativeNames, now: datetime, lifetime: timedelta) -> Template:
    """Return the template of a Pod, which has names and no subject. `lifetime` counts from its backdated beginning."""
    begin = now.replace(microsecond=0) - POD_BACKDATE
    return Template(NO_NAME, public_key, begin, begin + lifetime, POD_USAGES, alternative_names)


def from_request(
    request: CertificateRequest,
    requested_usages: Iterable[str],
    now: datetime,
    expiration_seconds: int | None,
    cap: timedelta,
) -> Template:
    """Return the template for an approved request. Raises IssueError for usages that X.509 cannot express."""
    allowed = tuple(dict.fromkeys(requested_usages))
    check(allowed)
    begin = now.replace(microsecond=0)
    life = ttl(expiration_seconds, cap)
    end = begin + (life if life < SHORT else life - BACKDATE)
    return Template(
        names.standard_subject(request.subject),
        request.public_key,
        begin - BACKDATE,
        end,
        allowed,
        request.alternative_names,
    )


def ttl(expiration_seconds: int | None, cap: timedelta) -> timedelta:
    """Return the lifetime of a requested certificate: at least MIN_TTL, and at most `cap`, which takes precedence."""
    if expiration_seconds is None or expiration_seconds > cap.total_seconds():
        return cap
    return max(timedelta(seconds=expiration_seconds), MIN_TTL)


def _window(now: datetime, lifetime: timedelta) -> tuple[datetime, datetime]:
    begin = now.replace(microsecond=0)  # X.509 times have whole seconds
    return begin - BACKDATE, begin + lifetime


def _end_entity_usages(key: PublicKey, purpose: str) -> tuple[str, ...]:
    exchange = (KEY_ENCIPHERMENT,) if isinstance(key, rsa.RSAPublicKey) else ()
    return (DIGITAL_SIGNATURE, *exchange, purpose)
