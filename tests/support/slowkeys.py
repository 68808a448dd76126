"""RSA and DSA keys for tests, from primes in a file: finding them takes a second for each 3072 bits.

Rules kept here: OpenSSL 3 made the primes for these tests, and nothing else uses them. Where the making of a key is what a test is
about, it makes one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import dsa, rsa

_PRIMES = json.loads(Path(__file__).with_suffix(".json").read_text())
_EXPONENT = 65537


@cache
def rsa_key(bits: int, which: int = 0) -> rsa.RSAPrivateKey:
    """Return a key of 1024, 2048 (three: `which` is 0, 1 or 2) or 3072 bits."""
    p, q = (int(_PRIMES[f"RSA-{bits}"][which][name], 16) for name in "pq")
    private = pow(_EXPONENT, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p,
        q,
        private,
        rsa.rsa_crt_dmp1(private, p),
        rsa.rsa_crt_dmq1(private, q),
        rsa.rsa_crt_iqmp(p, q),
        rsa.RSAPublicNumbers(_EXPONENT, p * q),
    )
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


def dsa_key() -> dsa.DSAPrivateKey:
    """Return a new key of 1024 bits."""
    numbers = dsa.DSAParameterNumbers(*(int(_PRIMES["DSA-1024"][name], 16) for name in "pqg"))
    return numbers.parameters().generate_private_key()
