"""Client certificates: the CAs that issue them, and a certificate that was checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from mooring.clock import parse_rfc3339, rfc3339
from mooring.identity import NODE_PREFIX
from mooring.observed import Observed
from mooring.pki.x509.bundles import certificates_pem, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState, Certificates, ClusterCa

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


class CheckedPeer(Protocol):
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
class RecordedPeer:
    """Facts of a certificate from before."""

    common_name: str
    node_name: str
    fingerprint: str
    serial_number: int
    public_key: str
    issuer: str
    issued_at: datetime
    path: tuple[PathCertificate, ...]


def recorded(peer: CheckedPeer) -> str:
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


def recorded_peer(text: str) -> RecordedPeer | None:
    """Return the facts in a record; None when it cannot be read."""
    try:
        facts: Any = json.loads(text)
        texts = [facts[name] for name in ("commonName", "nodeName", "fingerprint", "publicKey", "issuer")]
        name, node, fingerprint, key, issuer = (str(one) for one in texts)
        number, issued_at = int(facts["serialNumber"], 16), parse_rfc3339(facts["issuedAt"])
        path = tuple(
            PathCertificate(str(serial), str(by), tuple(map(str, keys))) for serial, by, *keys in facts["path"]
        )
        return RecordedPeer(name, node, fingerprint, number, key, issuer, issued_at, path)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# CAs of client certificates: the cluster's own, and those that signers of client certificates have.
#
# Rules kept here (docs/choose-the-signers.md):
# * The bundle that verifies clients, and that cluster-info names, contains all of them, the cluster's own first.
# * A signer may keep a CA that the cluster has retired. One that was given up or stolen is trusted nowhere, whatever names it.
# * Holders read it at each use, because files of CAs change while the server runs.


class IssuingCas(Protocol):
    """CAs that issue client certificates now. `ClusterCa` and `ClientIssuers` are such."""

    @property
    def trusted(self) -> Certificates:
        """CAs that verify clients."""

    @property
    def trusted_pem(self) -> bytes:
        """CAs that verify clients, as PEM."""

    @property
    def retired(self) -> Certificates:
        """CAs that verify only the way back of a machine that was off."""

    @property
    def distrusted(self) -> Certificates:
        """CAs whose keys may stand on no path."""

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""

    @property
    def superseded(self) -> Certificates:
        """CAs whose certificates machines are asked to renew."""

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """CA certificates that sign for clients now, by the place where they are configured."""

    def subscribe(self, use: Callable[[], None]) -> None:
        """Call `use` after each change."""


class ClientIssuers(Observed[[]]):
    """The cluster's own CA, and the CAs of single signers of client certificates."""

    def __init__(self, own: ClusterCa, signers: Callable[[], Mapping[str, CaState]]) -> None:
        """`signers` returns the CAs of signers now, by the setting that names them. Call `notify` after a change of one."""
        self._own = own
        self._signers = signers
        super().__init__()
        own.subscribe(self.notify)

    @property
    def trusted(self) -> Certificates:
        """CAs that verify clients."""
        others = (one for state in self._signers().values() for one in state.trusted)
        return tuple(dict.fromkeys((*self._own.trusted, *(one for one in others if not self._is_given_up(one)))))

    def _is_given_up(self, ca: Certificate) -> bool:
        if any(_key(ca) == _key(one) for one in self._own.compromised):
            return True
        # A CA that was given up and is on no list is known by its signature alone.
        return any(one.is_issued_by(ca) for one in self._own.forgotten)

    @property
    def trusted_pem(self) -> bytes:
        """CAs that verify clients, as PEM."""
        return certificates_pem(self.trusted)

    @property
    def retired(self) -> Certificates:
        """CAs that verify only the way back of a machine that was off."""
        trusted = self.trusted
        return tuple(one for one in self._own.retired if one not in trusted)

    @property
    def distrusted(self) -> Certificates:
        """CAs whose keys may stand on no path."""
        keys, stolen = {_key(one) for one in self.trusted}, self._own.compromised
        return tuple(one for one in self._own.distrusted if one in stolen or _key(one) not in keys)

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""
        return self._own.forgotten

    @property
    def superseded(self) -> Certificates:
        """CAs of the cluster whose certificates machines are asked to renew."""
        issuing = self.issuers.values()
        return tuple(one for one in self._own.superseded if one not in issuing)

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """CA certificates that sign for clients now, by the place where they are configured."""
        others = {place: state.authority.certificate for place, state in self._signers().items()}
        return {**self._own.issuers, **others}


def _key(ca: Certificate) -> str:
    """Return the name of a key, which need not be readable."""
    return key_identities(ca)[0]
