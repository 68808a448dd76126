"""Recent proofs of node passwords: a machine that has just proven its password is believed once more without scrypt.

Rules kept here (docs/adr/0052-certificates-of-k3s-agents.md):
* An agent gives its password twice within a second, for the two certificates of its kubelet. A second scrypt would prove nothing.
* A proof is for one Secret, by its uid, counts for PROOF_SECONDS, and once. A wrong password leaves it, and is judged by scrypt.
* What is kept is HMAC-SHA256 of the password under a key of this process. No part of it is stored or sent.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from mooring.secret import Secret

PROOF_SECONDS = 10.0
"""Seconds: an agent of k3s gives up a request after ten, and asks for the second certificate right after the first."""
MAX_PROOFS = 1024
"""Proofs that are kept. One takes about 300 bytes, and a server verifies no more than 20 passwords a second."""
KEY_BYTES = 32


@dataclass(slots=True)
class RecentProofs:
    """Proofs of one process. `key`: KEY_BYTES of entropy."""

    key: bytes = field(repr=False)
    _proofs: dict[str, tuple[float, bytes]] = field(default_factory=dict, repr=False)
    """Time until which a proof counts, and its MAC, by the uid of the Secret. The oldest is the first."""

    def add(self, uid: str, password: Secret, now: float) -> None:
        """Keep that `password` was proven for the Secret `uid` at `now`, in seconds of a monotonic clock."""
        self._proofs.pop(uid, None)
        self._proofs[uid] = (now + PROOF_SECONDS, self._mac(password))
        while len(self._proofs) > MAX_PROOFS or next(iter(self._proofs.values()))[0] <= now:
            del self._proofs[next(iter(self._proofs))]

    def has(self, uid: str, now: float) -> bool:
        """Return whether some password was proven for the Secret a moment ago."""
        return now < self._proofs.get(uid, (0.0, b""))[0]

    def take(self, uid: str, password: Secret, now: float) -> bool:
        """Return whether `password` was proven a moment ago, and forget it if so."""
        until, mac = self._proofs.get(uid, (0.0, b""))
        if now >= until or not hmac.compare_digest(mac, self._mac(password)):
            return False
        del self._proofs[uid]
        return True

    def _mac(self, password: Secret) -> bytes:
        return hmac.digest(self.key, password.reveal(), hashlib.sha256)
