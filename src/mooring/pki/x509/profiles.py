"""Certificate profiles: the subject, usages and lifetime of each certificate that is issued.

Rules kept here:
* A profile returns an immutable `Template`; the authority adds issuer, serial number and signature only.
* Every certificate begins five minutes before `now`, so that a peer whose clock is slightly behind accepts it. That of a Pod begins
  two minutes before: the API server refuses five.
* Lifetimes are kubeadm's (docs/protocol/discovery-and-join.md#files-and-waits): ten years for a CA, one year for other
  certificates.
* Only RSA keys get key encipherment, which has no meaning for other keys (docs/protocol/kubelet-certificates.md#one-request).
* `from_request` does exactly what the signing controller of Kubernetes does: it rebuilds the subject from its standard attributes,
  copies the four kinds of alternative names, limits the TTL at both ends, and subtracts five minutes from lifetimes of eight hours
  and more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric import rsa

from mooring.identity import MASTERS
from mooring.pki.keys import PublicKey
from mooring.pki.x509 import names, usages
from mooring.pki.x509.encoding.distinguishedname import NO_NAME, DistinguishedName
from mooring.pki.x509.names import NO_NAMES, AlternativeNames, IPAddress
from mooring.pki.x509.requests import CertificateRequest

CA_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=365)
BACKDATE = timedelta(minutes=5)
SHORT = timedelta(hours=8)  # shorter lifetimes are kept whole: five minutes would be a large part of them
MIN_TTL = timedelta(minutes=10)  # twice BACKDATE, so that no certificate is expired when it is issued
POD_BACKDATE = timedelta(minutes=2)  # the API server refuses five; the rest is for a device that signs slowly
POD_USAGES = (usages.DIGITAL_SIGNATURE, usages.SERVER_AUTH, usages.CLIENT_AUTH)
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
    allowed = (usages.DIGITAL_SIGNATURE, usages.CERT_SIGN, usages.CRL_SIGN)
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
    allowed = _end_entity_usages(public_key, usages.SERVER_AUTH)
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
    allowed = _end_entity_usages(public_key, usages.CLIENT_AUTH)
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
    usages.check(allowed)
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
    exchange = (usages.KEY_ENCIPHERMENT,) if isinstance(key, rsa.RSAPublicKey) else ()
    return (usages.DIGITAL_SIGNATURE, *exchange, purpose)
