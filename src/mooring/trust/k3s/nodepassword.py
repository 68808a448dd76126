"""Node passwords of k3s: the scrypt line, the Secret that holds it, and recent proofs of one."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field

from mooring.apimachinery.names import SUBDOMAIN_MAX
from mooring.apimachinery.schema import Obj
from mooring.errors import MooringError
from mooring.secret import Secret

# Node passwords of k3s: the scrypt line, and the Secret that holds it.
#
#     $1:<salt in hex>:15:8:1:<derived key, base64 without padding>
#
# Rules kept here (docs/protocol/k3s.md#node-passwords, RFC 7914):
# * The numbers are log2 of N, r and p. New lines have those of k3s: 32 MiB, 8 bytes of salt and a key of 64 bytes.
# * A reader takes the numbers from the line, within bounds that are checked before the first is used.
# * A password is compared in constant time, and with its length: scrypt takes "a" with a zero byte behind it for "a".
# * The Secret is `<node>.node-password.k3s` in kube-system, with the name in lower case. It is immutable and has the one key
#   `hash`. A Secret that an older k3s wrote without its type is read alike.
# * An error repeats neither the line nor the password.

NAMESPACE = "kube-system"
SECRET_TYPE = "k3s.cattle.io/node-password"  # noqa: S105 - a type name, no secret
SUFFIX = ".node-password.k3s"
MAX_NODE_NAME = SUBDOMAIN_MAX - len(SUFFIX)
"""Characters of a node name, so that the Secret can be stored."""
HASH_KEY = "hash"

LN, R, P = 15, 8, 1
SALT_BYTES, KEY_BYTES = 8, 64
MAX_MEMORY = 64 << 20
"""Bytes of one computation: twice those of k3s's lines."""
MAX_WORK = 1 << 20
"""N·r·p: four times that of k3s's lines, about 0.4 s of a core."""
MIN_KEY, MAX_KEY = 16, 64
MAX_SALT = 64
MAX_LINE = 512
"""Characters of a line. Those of k3s have 117."""
MAX_PASSWORD = 256
"""Bytes of a node password. k3s's agents make 32."""

_LINE = re.compile(r"\$1:([0-9a-fA-F]*):([0-9]{1,2}):([0-9]{1,3}):([0-9]{1,3}):([A-Za-z0-9+/]+)", re.ASCII)


class NodePasswordError(MooringError):
    """The Secret of a node password holds no line that can be verified."""


@dataclass(frozen=True, slots=True)
class NodePasswordHash:
    """One scrypt line."""

    ln: int
    r: int
    p: int
    salt: bytes
    key: bytes = field(repr=False)

    def matches(self, password: Secret) -> bool:
        """Return true for the right password. Takes a tenth of a second and 32 MiB: call it in a thread."""
        derived = _derive(password, self.salt, self.ln, self.r, self.p, len(self.key))
        return hmac.compare_digest(derived, self.key) & (b"\0" not in password.reveal())

    def line(self) -> str:
        """Return the text that the Secret holds."""
        key = base64.b64encode(self.key).rstrip(b"=").decode()
        return f"$1:{self.salt.hex()}:{self.ln}:{self.r}:{self.p}:{key}"


def hash_password(password: Secret, salt: bytes) -> NodePasswordHash:
    """Return the hash to store. `salt`: SALT_BYTES of entropy. Takes as long as `NodePasswordHash.matches`."""
    return NodePasswordHash(LN, R, P, salt, _derive(password, salt, LN, R, P, KEY_BYTES))


def _derive(password: Secret, salt: bytes, ln: int, r: int, p: int, size: int) -> bytes:
    # What OpenSSL reckons, to the byte.
    memory = 128 * r * ((1 << ln) + p + 2)
    return hashlib.scrypt(password.reveal(), salt=salt, n=1 << ln, r=r, p=p, maxmem=memory, dklen=size)


def parse_line(text: str) -> NodePasswordHash:
    """Parse a line. Raises NodePasswordError."""
    found = _LINE.fullmatch(text) if len(text) <= MAX_LINE else None
    if found is None:
        raise NodePasswordError("the hash is not of the form $1:<salt>:<log2 N>:<r>:<p>:<key>")
    ln, r, p = (int(number) for number in found.groups()[1:4])
    if not (ln and r and p) or (r << ln) * 128 > MAX_MEMORY or r * p << ln > MAX_WORK:
        raise NodePasswordError("the hash is too costly to verify, or has a number that is zero")
    try:
        salt = bytes.fromhex(found[1])
        key = base64.b64decode(found[5] + "=" * (-len(found[5]) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise NodePasswordError("salt or key of the hash cannot be decoded") from None
    if len(salt) > MAX_SALT or not MIN_KEY <= len(key) <= MAX_KEY:
        raise NodePasswordError(
            f"the hash has a salt above {MAX_SALT} bytes, or no {MIN_KEY} to {MAX_KEY} bytes of key"
        )
    return NodePasswordHash(ln, r, p, salt, key)


def secret_name(node: str) -> str:
    """Return the name of the Secret with the password of a node."""
    return f"{node.lower()}{SUFFIX}"


def node_of(secret: Obj) -> str:
    """Return the name of the node whose password a Secret of the right type holds; "" for every other Secret."""
    metadata = secret["metadata"]
    if metadata.get("namespace") != NAMESPACE or secret.get("type") != SECRET_TYPE:
        return ""
    name: str = metadata["name"]
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else ""


def new_secret(node: str, hashed: NodePasswordHash) -> Obj:
    """Return the Secret to create for the first password of a node."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": NAMESPACE, "name": secret_name(node)},
        "type": SECRET_TYPE,
        "immutable": True,
        "data": {HASH_KEY: base64.b64encode(hashed.line().encode()).decode()},
    }


def hash_in(secret: Obj) -> NodePasswordHash:
    """Return the hash that a Secret holds. Raises NodePasswordError."""
    try:
        text = base64.b64decode((secret.get("data") or {}).get(HASH_KEY, ""), validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        raise NodePasswordError("the hash is no text in base64") from None
    return parse_line(text)


# Recent proofs of node passwords: a machine that has just proven its password is believed once more without scrypt.
#
# Rules kept here (docs/adr/0052-certificates-of-k3s-agents.md):
# * An agent gives its password twice within a second, for the two certificates of its kubelet. A second scrypt would prove
#   nothing.
# * A proof is for one Secret, by its uid, counts for PROOF_SECONDS, and once. A wrong password leaves it, and is judged by
#   scrypt.
# * What is kept is HMAC-SHA256 of the password under a key of this process. No part of it is stored or sent.

PROOF_SECONDS = 10.0
"""Seconds: an agent of k3s gives up a request after ten, and asks for the second certificate right after the first."""
MAX_PROOFS = 1024
"""Proofs that are kept. One takes about 300 bytes, and a server verifies no more than 20 passwords a second."""
PROOF_KEY_BYTES = 32


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
