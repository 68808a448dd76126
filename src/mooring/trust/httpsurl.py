"""https URLs that a configuration, a provider or a token names: their check, and their host as it is dialled and verified."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from mooring.errors import ConfigError
from mooring.settings.addresses import names_user


def is_https(text: str) -> bool:
    """Return whether the scheme of a URL is https, in any case (RFC 3986 3.1)."""
    return text[:8].lower() == "https://"


def url_of(endpoint: str) -> str:
    """Return the https URL of `host:port`. The zone of an address is written as in RFC 6874 (`%25eth0`)."""
    return "https://" + endpoint.replace("%", "%25")


def https_url_problem(text: str, *, query: bool = False, fragment: bool = False) -> str:
    """Return the reason why `text` is not an https URL with a host and without user name; "" when it is one.

    A query and a fragment are refused unless `query` and `fragment` allow them. With a query, behind the host an @ may stand: such
    URLs are those of a provider's documents.
    """
    if any(map(str.isspace, text)):
        return "it contains a blank" if text == text.strip() else "it begins or ends with a blank"
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "it is not a URL"
    if parts.scheme != "https":
        return "the scheme must be https"
    if not has_host or not text.isascii() or not text.isprintable():
        return "it is not a URL"
    if "@" in parts.netloc:
        return "it must not contain a user name or a password"
    if names_user(text) and not query:
        return "it must not contain a user name or a password; in a path, @ is written as %40"
    if "?" in text.partition("#")[0] and not query:
        return "it must not contain a query"
    return "it must not contain a fragment" if "#" in text and not fragment else ""


def dialled_host(parts: SplitResult) -> str:
    """Return the host of a URL to connect to, in lower case. An IPv6 address keeps its zone, written as in RFC 4007 (`%eth0`).

    Both `%25eth0` (RFC 6874) and `%eth0` are read.
    """
    address, percent, zone = (parts.hostname or "").partition("%")
    return f"{address}%{unquote(zone.removeprefix('25'))}" if percent else address


def tls_name(host: str) -> str:
    """Return the name of a host that TLS sends and verifies.

    One final dot is not part of it (RFC 6066 3, Go's `x509.VerifyHostname`), nor is the zone of an address, which has a meaning on
    one machine only (RFC 4007 6). An IPv4-mapped address is the IPv4 address, as to Go's `net.IP.Equal`.
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        address = host.partition("%")[0]
        mapped = IPv6Address(address).ipv4_mapped if is_address(address) else None
        return address if mapped is None else str(mapped)
    return host[:-1] if host.endswith(".") and len(host) > 1 else host


def is_sent_by_tls(name: str) -> bool:
    """Return whether TLS can send a name: OpenSSL refuses an empty one, a dot in front and NUL."""
    return bool(name) and not name.startswith(".") and "\0" not in name


def is_address(host: str) -> bool:
    """Return whether a host is an IP address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# File of CAs that a setting names: it is not taken for an absent one when it is empty.
#
# An empty bundle stands for the roots of the machine everywhere. A file that a power loss or a half-finished copy left empty
# would therefore replace the CA of the operator by every CA of the machine.


def named_cas(content: bytes, file: str) -> bytes:
    """Return the content of a named file. Raises ConfigError for an empty one."""
    if not content.strip():
        raise ConfigError(
            f'"{file}" is empty: without a CA every CA of this machine would be trusted in its place; restore the file, or '
            "name none"
        )
    return content
