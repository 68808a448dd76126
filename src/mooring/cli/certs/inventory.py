"""Inventory of certificates: those that NodeIdentities record, their state, and the entries of the denylist.

Rules kept here: the state follows from the objects alone, as the server's check of certificates does. Whether a node entry revokes
a certificate is known from the serial numbers that the entry recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring import certificaterevocation, nodeidentity
from mooring.api.mooring.certificaterevocation import KIND, key_entry, node_entry, serial_entry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_is_mooring
from mooring.clock import parse_rfc3339
from mooring.errors import ConfigError, NotFoundError, PeerError

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"
VALID, EXPIRED, REVOKED = "valid", "expired", "revoked"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class KnownCertificate:
    """A certificate that the cluster knows. Texts are empty where it does not know."""

    node: str
    serial_number: str
    public_key: str
    expires: str
    state: str
    revoked_by: str = ""
    reason: str = ""

    def document(self) -> dict[str, Any]:
        """Return the certificate for JSON and YAML. Empty fields are left out."""
        found = {
            "node": self.node,
            "serialNumber": self.serial_number,
            "publicKey": self.public_key,
            "expires": self.expires,
            "state": self.state,
            "revokedBy": self.revoked_by,
            "reason": self.reason,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Inventory:
    """NodeIdentities and entries of the denylist."""

    identities: Sequence[Obj]
    entries: Sequence[Obj]

    def certificates(self, now: datetime) -> Iterator[KnownCertificate]:
        """Yield the certificates of nodes, then those that only an entry of the denylist names."""
        by_name = {entry["metadata"]["name"]: entry for entry in self.entries}
        shown: set[str] = set()
        for identity in self.identities:
            for key in nodeidentity.keys_of(identity):
                found = _of_node(identity["metadata"]["name"], key, by_name, now)
                shown.add(found.serial_number)
                yield found
        for entry in self.entries:
            spec, name = spec_of(entry), entry["metadata"]["name"]
            for number in certificaterevocation.known_serial_numbers(spec):
                if number not in shown:
                    shown.add(number)
                    yield KnownCertificate(
                        spec.get("nodeName", ""),
                        number,
                        spec.get("publicKey", ""),
                        spec.get("expiresAt", "") if spec.get("serialNumber") else "",
                        REVOKED,
                        name,
                        spec.get("reason", ""),
                    )


def _of_node(node: str, key: Obj, by_name: dict[str, Obj], now: datetime) -> KnownCertificate:
    number = normalized(key.get("serialNumber", ""))
    public_key, expires = key.get("publicKey", ""), key.get("notAfter", "")
    entry = by_name.get(serial_entry(number)) or by_name.get(serial_entry(number, key.get("issuer", "")))
    entry = entry or by_name.get(key_entry(public_key))
    of_node = by_name.get(node_entry(node))
    if entry is None and of_node is not None and number in certificaterevocation.known_serial_numbers(spec_of(of_node)):
        entry = of_node
    if entry is not None:
        reason = spec_of(entry).get("reason", "")
        return KnownCertificate(node, number, public_key, expires, REVOKED, entry["metadata"]["name"], reason)
    state = EXPIRED if expires and parse_rfc3339(expires) <= now else VALID
    return KnownCertificate(node, number, public_key, expires, state)


async def fetch(client: ClusterClient) -> Inventory:
    """Read the objects. Raises PeerError for a server that does not have these kinds."""
    try:
        entries = (await client.list(PLURAL)).items
        return Inventory((await client.list(nodeidentity.PLURAL)).items, entries)
    except NotFoundError:
        raise await not_served(client) from None


async def not_served(client: ClusterClient) -> PeerError:
    """Return the error for a server without the denylist. Raises NotMooringError for another kind of server."""
    await check_is_mooring(client, "refuses certificates on a denylist")
    return PeerError(f"{client.server} does not serve {QUALIFIED}: its version is older than this command")


def normalized(text: str) -> str:
    """Return a serial number as objects have it: hex digits in lower case, without 0x, colons and leading zeros."""
    return text.strip().lower().removeprefix("0x").replace(":", "").lstrip("0")


def parse_serial_number(text: str) -> str:
    """Return the normalized serial number. Raises ConfigError for anything else."""
    number = normalized(text)
    if not number or not _HEX.issuperset(number) or len(number) > certificaterevocation.MAX_SERIAL_DIGITS:
        raise ConfigError(
            f'"{text}" is no serial number: give hexadecimal digits, as openssl x509 -noout -serial and '
            "mooring certs list print them"
        )
    return number
