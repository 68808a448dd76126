"""Hashes of passwords: scrypt in the PHC string form.

Rules kept here (RFC 7914; the PHC string format; OWASP's password storage sheet for the cost):
1. `$scrypt$ln=15,r=8,p=1$<salt>$<hash>`: ln is log2 of N, salt and hash are base64 without padding. A text that begins with
   `$scrypt$` and has another form is an error, never a plain password.
2. The cost has an upper bound, so that a mistake in the file cannot stop the server, and a lower bound, so that a hash protects
   the password.
3. A password is its UTF-8 bytes as they were sent, neither trimmed nor normalised.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field

from mooring.errors import ConfigError
from mooring.secret import Secret

PREFIX = "$scrypt$"
LN, R, P = 15, 8, 1
"""32 MiB and a tenth of a second of one core: a password is judged once in a while, and then remembered."""
SALT_BYTES = 16
HASH_BYTES = 32
MIN_LN = 10
MAX_MEMORY = 128 << 20
"""Bytes of one computation, and two run at a time: ln=17,r=8, the most that OWASP names."""
MAX_WORK = 1 << 21
"""N·r·p: two of the most costly that OWASP names, about a second."""
MIN_SALT, MAX_SALT = 8, 64
MIN_HASH, MAX_HASH = 16, 64
_FORM = re.compile(
    r"\$scrypt\$ln=([1-9][0-9]?),r=([1-9][0-9]{0,2}),p=([1-9][0-9]{0,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """One stored hash."""

    ln: int
    r: int
    p: int
    salt: bytes
    expected: bytes = field(repr=False)

    @property
    def work(self) -> int:
        """Cost of a derivation, for comparison with others."""
        return (self.r * self.p) << self.ln

    def derive(self, password: Secret) -> bytes:
        """Return the derived key, which equals `expected` for the right password. Takes a tenth of a second."""
        return hashlib.scrypt(
            password.reveal(),
            salt=self.salt,
            n=1 << self.ln,
            r=self.r,
            p=self.p,
            maxmem=128 * self.r * ((1 << self.ln) + self.p + 2),  # what OpenSSL reckons, to the byte
            dklen=len(self.expected),
        )

    def text(self) -> str:
        """Return the PHC string."""
        return f"{PREFIX}ln={self.ln},r={self.r},p={self.p}${_encode(self.salt)}${_encode(self.expected)}"


def hash_password(password: Secret, salt: bytes) -> PasswordHash:
    """Return the hash to store. `salt`: SALT_BYTES of entropy."""
    derived = PasswordHash(LN, R, P, salt, bytes(HASH_BYTES)).derive(password)
    return PasswordHash(LN, R, P, salt, derived)


def parse_hash(text: str) -> PasswordHash:
    """Parse a PHC string. Raises ConfigError, which does not repeat the text."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"what begins with {PREFIX} is not a hash of the form {PREFIX}ln=…,r=…,p=…$salt$hash; it has commas, put it in quotes"
        )
    ln, r, p = (int(number) for number in found.groups()[:3])
    if ln < MIN_LN:
        raise ConfigError(f"the hash is too weak: ln must be {MIN_LN} or more")
    if (r << ln) * 128 > MAX_MEMORY or (r * p << ln) > MAX_WORK:
        raise ConfigError("the hash is too costly: 128·r·2^ln is at most 128 MiB, and r·p·2^ln at most 2^21")
    salt, expected = _decode(found[4]), _decode(found[5])
    if not MIN_SALT <= len(salt) <= MAX_SALT or not MIN_HASH <= len(expected) <= MAX_HASH:
        raise ConfigError(
            f"the hash must have {MIN_SALT} to {MAX_SALT} bytes of salt, and {MIN_HASH} to {MAX_HASH} of hash, in base64"
        )
    return PasswordHash(ln, r, p, salt, expected)


def _encode(value: bytes) -> str:
    return base64.b64encode(value).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Return b"" for a text that is not base64."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return b""
