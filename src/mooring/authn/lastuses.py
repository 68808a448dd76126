"""Uses of tokens in Secrets and of certificates of nodes, noted for background tasks. No request waits for a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.uniqueness import CertificateUse, newer_uses, with_use
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.bounded import Bounded
from mooring.clock import parse_rfc3339, rfc3339
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.clientcertificate import ClientCertificate
from mooring.trust.bootstraptoken import restrictions

# Uses of the tokens that Secrets hold.
#
# Rules kept here:
# * Token of a service account (docs/protocol/service-account-tokens.md#legacy-tokens): a use is noted when the label of the Secret
#   names neither today nor tomorrow, because another server's clock may be ahead. So it is noted once a day.
# * Bootstrap token: a use is noted when the annotation is missing, unreadable, or more than an hour away. A thousand joins in an
#   hour cause one write.
# * The number of notes is bounded; a use without room is noted at the next use.

LAST_USED = "kubernetes.io/legacy-token-last-used"
BOOTSTRAP_LAST_USED = restrictions.LAST_USED
"""Annotation of a bootstrap token: the time of a use, at most an hour before the last one."""
BOOTSTRAP_USE_EVERY = timedelta(hours=1)
MAX_NOTED = 4096
"""Secrets used for the first time of the day between two writings: they come together after midnight."""


@dataclass(frozen=True, slots=True)
class LastUse:
    """The token of this very Secret was used. `metadata`: what the Secret's metadata is to say of it."""

    namespace: str
    name: str
    uid: str
    metadata: Obj


class LastUses:
    """Notes of one server process."""

    def __init__(self, most: int = MAX_NOTED) -> None:
        self._most = most
        self._noted: dict[tuple[str, str], LastUse] = {}

    def note(self, secret: Obj, now: datetime) -> None:
        """Note that the token of a service account in `secret` was used at `now`."""
        metadata = secret["metadata"]
        day = now.date()
        said = (metadata.get("labels") or {}).get(LAST_USED)
        if said in (day.isoformat(), (day + timedelta(days=1)).isoformat()):
            return
        self._keep(secret, {"labels": {LAST_USED: day.isoformat()}})

    def note_bootstrap_token(self, secret: Obj, now: datetime) -> None:
        """Note that the bootstrap token in `secret` was used at `now`."""
        said = (secret["metadata"].get("annotations") or {}).get(BOOTSTRAP_LAST_USED, "")
        try:
            if abs(now - parse_rfc3339(said)) < BOOTSTRAP_USE_EVERY:
                return
        except ValueError:
            pass  # missing, or not written by a server
        self._keep(secret, {"annotations": {BOOTSTRAP_LAST_USED: rfc3339(now)}})

    def _keep(self, secret: Obj, said: Obj) -> None:
        metadata = secret["metadata"]
        place = (metadata["namespace"], metadata["name"])
        if place in self._noted or len(self._noted) < self._most:
            self._noted[place] = LastUse(*place, metadata.get("uid", ""), said)

    def take(self) -> tuple[LastUse, ...]:
        """Return and clear the notes."""
        noted, self._noted = self._noted, {}
        return tuple(noted.values())


# Uses of the client certificates of nodes, as evidence of a second machine (`mooring.api.mooring.uniqueness`).
#
# Rules kept here:
# * The first use of each certificate is noted, and a use that returns to an older one. A fleet causes one write for each renewal.
# * How long a newer certificate is in use is measured here, from the first request with an older one that saw it: clocks of servers
#   are not compared. A machine that renews changes all its programs within OVERLAP; one that reads the files of another program,
#   such as a kubelet without a rotation of its own, within RENEWAL_OVERLAP.
# * A certificate about which an identity has nothing more to say costs two lookups.

OVERLAP = 30.0
"""Seconds for which a machine may use two certificates of which neither was requested with the other. An agent looks for files that
another program placed every ten seconds."""
RENEWAL_OVERLAP = 600.0
"""Seconds for which a machine may use a certificate and the one that was requested with it: Go clients read their files again every
five minutes."""
MAX_SETTLED = 1 << 14
"""Certificates whose uses are known: those of a large fleet. Each takes about 300 bytes."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A certificate of this node was used. `behind`: the newer certificate that it returned after; "" for none."""

    node: str
    use: CertificateUse
    behind: str


class CertificateUses:
    """Notes of one server process. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float], most: int = MAX_NOTED) -> None:
        self._monotonic = monotonic
        self._most = most
        self._noted: dict[str, NodeUse] = {}
        self._settled: Bounded[str, str] = Bounded(MAX_SETTLED)
        """resourceVersion of the identity that has nothing more to say about a certificate."""
        self._seen: Bounded[tuple[str, str], float] = Bounded(MAX_SETTLED)
        """When a newer certificate was first seen beside an older one."""

    def note(self, peer: ClientCertificate, address: str, views: Views, now: datetime) -> None:
        """Note that the certificate authenticated a request from `address`."""
        if not peer.common_name.startswith(NODE_PREFIX):
            return
        identity = views[IDENTITIES].get(peer.node_name)
        if identity is None or peer.fingerprint in self._noted:
            return
        version = identity["metadata"].get("resourceVersion", "")
        if self._settled.get(peer.fingerprint) == version:
            return
        fingerprint = f"sha256:{peer.fingerprint}"
        use = CertificateUse(fingerprint, peer.public_key, f"{peer.serial_number:x}", address, now)
        behind, waits = self._behind(identity, use)
        if with_use(identity, use, behind) is None:
            if not waits:
                self._settled[peer.fingerprint] = version
        elif len(self._noted) < self._most:
            self._noted[peer.fingerprint] = NodeUse(peer.node_name, use, behind)

    def _behind(self, identity: Obj, use: CertificateUse) -> tuple[str, bool]:
        """Return the newest certificate that this use is behind, and whether a newer one is not in use for long enough yet."""
        behind, waits, now = "", False, self._monotonic()
        for newer, descends in newer_uses(identity, use):
            pair = (use.certificate, newer["certificate"])
            since = self._seen.get(pair)
            if since is None:
                since = self._seen[pair] = now
            if now - since >= (RENEWAL_OVERLAP if descends else OVERLAP):
                behind = newer["certificate"]
            else:
                waits = True
        return behind, waits

    def take(self) -> tuple[NodeUse, ...]:
        """Return and clear the notes."""
        noted, self._noted = self._noted, {}
        return tuple(noted.values())
