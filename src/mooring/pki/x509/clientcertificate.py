"""A client certificate that was checked, as later checks need it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from mooring.clock import parse_rfc3339, rfc3339
from mooring.identity import NODE_PREFIX

# A client certificate as later checks need it: by which names an entry of the denylist or a NodeIdentity would concern it.
#
# Rules kept here: a request that waits outlives its connection, so that the facts are recorded with it, as one line of JSON. A
# record that cannot be read is None, which its reader takes for an obstacle.


@dataclass(frozen=True, slots=True)
class PathCertificate:
    """A certificate of a verified path: serial number in hex, key of its CA, and the names of its own key."""

    serial_number: str
    issuer: str
    public_keys: tuple[str, ...]


class ClientCertificate(Protocol):
    """A certificate that was verified, now or when its facts were recorded."""

    @property
    def common_name(self) -> str:
        """Common name of the subject."""

    @property
    def node_name(self) -> str:
        """Name of the node that it is for, or to whose machine it is bound; "" for every other certificate."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hex."""

    @property
    def serial_number(self) -> int:
        """Serial number."""

    @property
    def public_key(self) -> str:
        """`sha256:<hex>` of its SubjectPublicKeyInfo."""

    @property
    def issuer(self) -> str:
        """`sha256:<hex>` of the SubjectPublicKeyInfo of the CA."""

    @property
    def issued_at(self) -> datetime:
        """Latest moment at which it can have been issued."""

    @property
    def path(self) -> tuple[PathCertificate, ...]:
        """Return the certificate and those above it, apart from the cluster's own CAs."""


@dataclass(frozen=True, slots=True)
class RecordedCertificate:
    """Facts of a certificate from before."""

    common_name: str
    node_name: str
    fingerprint: str
    serial_number: int
    public_key: str
    issuer: str
    issued_at: datetime
    path: tuple[PathCertificate, ...]


def recorded(peer: ClientCertificate) -> str:
    """Return the facts as one line of JSON. Of common names those of nodes are kept: no check reads another."""
    name = peer.common_name
    facts = {
        "commonName": name if name.startswith(NODE_PREFIX) else "",
        "nodeName": peer.node_name,
        "fingerprint": peer.fingerprint,
        "serialNumber": f"{peer.serial_number:x}",
        "publicKey": peer.public_key,
        "issuer": peer.issuer,
        "issuedAt": rfc3339(peer.issued_at),
        "path": [[one.serial_number, one.issuer, *one.public_keys] for one in peer.path],
    }
    return json.dumps(facts, separators=(",", ":"))


def recorded_certificate(text: str) -> RecordedCertificate | None:
    """Return the facts in a record; None when it cannot be read."""
    try:
        facts: Any = json.loads(text)
        texts = [facts[name] for name in ("commonName", "nodeName", "fingerprint", "publicKey", "issuer")]
        name, node, fingerprint, key, issuer = (str(one) for one in texts)
        number, issued_at = int(facts["serialNumber"], 16), parse_rfc3339(facts["issuedAt"])
        path = tuple(
            PathCertificate(str(serial), str(by), tuple(map(str, keys))) for serial, by, *keys in facts["path"]
        )
        return RecordedCertificate(name, node, fingerprint, number, key, issuer, issued_at, path)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
