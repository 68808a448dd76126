"""IP addresses, CIDRs and ports: validation for Pods, Nodes, Services and their endpoints, warnings for Nodes and endpoints.

Rules kept here (Kubernetes API reference, core/v1 Endpoints, discovery.k8s.io/v1 EndpointSlice; wording as kube-apiserver's):
* An address has a text form of RFC 4291 or RFC 5952, without a zone. An endpoint address is none that is local to each machine:
  unspecified, loopback, link-local.
* A port is a number from 1 to 65535, or a name of RFC 6335. Protocols are TCP, UDP and SCTP.
"""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address

from mooring.apimachinery.names import dns1123_label_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, invalid, not_supported, required

MAX_PORT = 65535
PROTOCOLS = ("SCTP", "TCP", "UDP")
NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
NOT_A_RANGE = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
NOT_A_PORT = f"must be between 1 and {MAX_PORT}, inclusive"
MAX_PORT_NAME = 15
"""RFC 6335 5.1: characters of a service name."""

_port_name = re.compile("[-a-z0-9]+").fullmatch


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; None when `text` is not valid."""
    try:
        return ipaddress.ip_address(text) if "%" not in text else None
    except ValueError:
        return None


def address_errors(text: str, path: str) -> list[FieldError]:
    """Return the errors of a text that `parse_address` refuses."""
    without_zeros = re.sub(r"(^|[.:])0+(?=[0-9])", r"\1", text) if "." in text else text
    return [invalid(path, text, NOT_AN_ADDRESS if parse_address(without_zeros) is None else "must not have leading 0s")]


def address_warnings(path: str, text: str) -> list[str]:
    """Return a warning about an IPv6 address that is not in canonical form."""
    address = parse_address(text)
    if not isinstance(address, IPv6Address):
        return []
    if address.ipv4_mapped is not None:
        return [f'{path}: non-standard IP address "{text}" is invalid: use "{address.ipv4_mapped}"']
    if str(address) != text:
        return [f'{path}: IPv6 address "{text}" should be in RFC 5952 canonical format ("{address}")']
    return []


def range_warnings(path: str, text: str) -> list[str]:
    """Return a warning about a CIDR with host bits, or an IPv6 CIDR that is not in canonical form."""
    try:
        whole = ipaddress.ip_interface(text)
    except ValueError:
        return []
    network = whole.network
    if whole.ip != network.network_address:
        single = f"{whole.ip}/{network.max_prefixlen}"
        return [f'{path}: CIDR value "{text}" is ambiguous in this context (should be "{network}" or "{single}"?)']
    if network.version == 6 and str(network) != text:
        return [f'{path}: IPv6 CIDR value "{text}" should be in RFC 5952 canonical format ("{network}")']
    return []


def special_address_errors(address: IPv4Address | IPv6Address, path: str) -> list[FieldError]:
    """Return an error for an address that cannot be an endpoint: unspecified, loopback or link-local."""
    if address.is_unspecified:
        detail = f"may not be unspecified ({address})"
    elif address.is_loopback:
        detail = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    elif address.is_link_local:
        detail = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    elif _is_link_local_multicast(address):
        detail = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
    else:
        return []
    return [invalid(path, str(address), detail)]


def _is_link_local_multicast(address: IPv4Address | IPv6Address) -> bool:
    head = address.packed
    if isinstance(address, IPv4Address):
        return head[:3] == b"\xe0\x00\x00"
    return head[0] == 0xFF and head[1] & 0x0F == 0x02


def port_name_errors(name: str) -> list[str]:
    """Return the reasons to refuse the name of a container port (RFC 6335)."""
    if len(name) > MAX_PORT_NAME:
        return [f"must be no more than {MAX_PORT_NAME} characters"]
    if not _port_name(name):
        return ["must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"]
    errors = [] if re.search("[a-z]", name) else ["must contain at least one letter (a-z)"]
    if "--" in name:
        errors.append("must not contain consecutive hyphens")
    if "-" in (name[0], name[-1]):
        errors.append("must not begin or end with a hyphen")
    return errors


def protocol_errors(protocol: str, path: str) -> list[FieldError]:
    if not protocol:
        return [required(path)]
    return [] if protocol in PROTOCOLS else [not_supported(path, protocol, PROTOCOLS)]


def endpoint_port_errors(port: Obj, path: str) -> list[FieldError]:
    """Validate protocol, number (if present) and application protocol of a port of Endpoints or EndpointSlices."""
    errors = protocol_errors(port.get("protocol", ""), f"{path}.protocol")
    number, application = port.get("port"), port.get("appProtocol")
    if number is not None and not 1 <= number <= MAX_PORT:
        errors.append(invalid(f"{path}.port", number, NOT_A_PORT))
    if application:
        errors += [invalid(f"{path}.appProtocol", application, detail) for detail in qualified_name_errors(application)]
    return errors


def port_names_errors(ports: list[Obj], path: str, *, needed: bool, unique: bool = True) -> list[FieldError]:
    """Validate the names of the ports at `path`: labels, with `unique` no duplicates, with `needed` none missing."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at, name = f"{path}[{index}].name", port.get("name", "")
        if not name and needed:
            errors.append(required(at))
        elif name:
            errors += [invalid(at, name, detail) for detail in dns1123_label_errors(name)]
        if unique and name in seen and (name or not needed):
            errors.append(duplicate(at, name))
        seen.add(name)
    return errors
