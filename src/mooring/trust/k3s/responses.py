"""Responses of a k3s supervisor that an agent reads: configuration, API servers, CA bundles and issued certificates.

Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
* A certificate is used only with the key that this machine made. A response with a private key, as older servers of k3s send it,
  is refused.
* The subject of a certificate must be the one that was asked for, because a Node is named by it.
* Fields that an agent of Mooring does not need are not read. A list that is null is empty: Go writes a list that was never filled
  so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki import pem
from mooring.pki.errors import PkiError
from mooring.pki.keys import UNREADABLE, PrivateKey, accepted_public_key, public_key_der
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.certificate import Certificate
from mooring.settings.addresses import parse_endpoint
from mooring.trust.k3s.headers import CLIENT_CONTROLLER, CLIENT_KUBE_PROXY, CLIENT_KUBELET, SERVING_KUBELET
from mooring.trust.k3s.refusals import UnusableResponseError

MAX_APISERVERS = 64
"""API servers of one cluster: more than any has."""
KUBE_PROXY = "system:kube-proxy"
CONTROLLER = "system:k3s-controller"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate that an agent asks for: its path, whether the request names the node, and what it must contain."""

    path: str
    names_node: bool = False
    serves: bool = False

    @property
    def name(self) -> str:
        """Name of the files, such as `client-kubelet`."""
        return self.path.rpartition("/")[2].removesuffix(".crt")

    def common_name(self, node_name: str) -> str:
        """Return the common name of the certificate for this node."""
        return _COMMON_NAMES.get(self.path, node_name if self.serves else NODE_PREFIX + node_name)


SERVING = Wanted(SERVING_KUBELET, names_node=True, serves=True)
KUBELET = Wanted(CLIENT_KUBELET, names_node=True)
WANTED = (SERVING, KUBELET, Wanted(CLIENT_KUBE_PROXY), Wanted(CLIENT_CONTROLLER))
"""Every certificate of an agent, in the order of k3s's requests."""
_COMMON_NAMES: Mapping[str, str] = MappingProxyType({CLIENT_KUBE_PROXY: KUBE_PROXY, CLIENT_CONTROLLER: CONTROLLER})


@dataclass(frozen=True, slots=True)
class SupervisorConfiguration:
    """The part of `/v1-k3s/config` that an agent of Mooring uses. 0 stands for a port that is not named."""

    https_port: int = 0
    supervisor_port: int = 0

    @property
    def api_port(self) -> int:
        """Port of the API server where it differs from that of the supervisor; 0 where it does not."""
        return self.https_port if self.supervisor_port and self.https_port != self.supervisor_port else 0


def read_configuration(step: str, body: bytes) -> SupervisorConfiguration:
    """Return the configuration in a response. Raises UnusableResponseError."""
    value = _json(step, body)
    if not isinstance(value, dict):
        raise UnusableResponseError(step, "the response is not the JSON object of a supervisor's configuration")
    return SupervisorConfiguration(_port(value.get("HTTPSPort")), _port(value.get("SupervisorPort")))


def read_apiservers(step: str, body: bytes) -> tuple[str, ...]:
    """Return the addresses (`host:port`) of the API servers in a response. Raises UnusableResponseError."""
    value = _json(step, body)
    value = [] if value is None else value
    if not isinstance(value, list) or len(value) > MAX_APISERVERS:
        raise UnusableResponseError(step, "the response is not a short JSON list of API servers")
    found = []
    for one in value:
        try:
            endpoint = parse_endpoint(str(one), "apiservers", 0)
        except ConfigError:
            continue
        if endpoint.port:
            found.append(str(endpoint))
    return tuple(dict.fromkeys(found))


def read_bundle(step: str, body: bytes) -> bytes:
    """Return the CA bundle in a response as it was sent. Raises UnusableResponseError."""
    try:
        bundles.certificates(body)
    except PkiError as error:
        raise UnusableResponseError(step, f"the response is not a bundle of CAs: {error}") from None
    return body


def read_certificate(
    step: str, body: bytes, wanted: Wanted, node_name: str, key: PrivateKey, now: datetime
) -> tuple[Certificate, ...]:
    """Return the issued certificate and the CAs after it. Raises UnusableResponseError for any but the wanted one."""
    try:
        if any("PRIVATE KEY" in block.label for block in pem.blocks(body)):
            raise UnusableResponseError(
                step,
                "the server made the key itself and sent it; this machine uses only keys that it made: update the server",
            )
        chain = bundles.certificates(body)
        public = public_key_der(accepted_public_key(chain[0].public_key()))
    except (PkiError, *UNREADABLE) as error:
        raise UnusableResponseError(step, f"the response is not a certificate: {error}") from None
    if public != public_key_der(key):
        raise UnusableResponseError(step, "the certificate is for another key than the one in the request")
    if problem := _problem(chain[0], wanted, node_name, now):
        raise UnusableResponseError(step, problem)
    return chain


def is_usable(leaf: Certificate, wanted: Wanted, node_name: str, now: datetime) -> bool:
    """Return True when a certificate that is kept is the wanted one, and valid now."""
    return not _problem(leaf, wanted, node_name, now)


def has_addresses(leaf: Certificate, addresses: Iterable[str]) -> bool:
    """Return True when a certificate is for each of these IP addresses."""
    found = names.alternative_names(leaf.extensions).ips
    return {canonical_address(ip_address(text)) for text in addresses} <= set(found)


def _problem(leaf: Certificate, wanted: Wanted, node_name: str, now: datetime) -> str:
    subject, common_name = leaf.subject, wanted.common_name(node_name)
    if names.common_name(subject) != common_name:
        return f'the certificate does not name "{common_name}"'
    if wanted is KUBELET and NODES not in names.organizations(subject):
        return f"the certificate is not one of the group {NODES}"
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if wanted.serves else ExtendedKeyUsageOID.CLIENT_AUTH
    purposes = leaf.extensions.extended_key_usage
    if purposes is None:
        return "the certificate names no purpose"
    if purpose not in purposes:
        return "the certificate is for another purpose"
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        period = f"{rfc3339(leaf.not_valid_before_utc)} to {rfc3339(leaf.not_valid_after_utc)}"
        return f"the certificate is valid from {period}, and this machine's clock says {rfc3339(now)}"
    return ""


def _json(step: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UnusableResponseError(step, "the response is not JSON") from None


def _port(value: object) -> int:
    return value if type(value) is int and 0 < value < 65536 else 0
