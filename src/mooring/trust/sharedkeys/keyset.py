"""Set of the keys and certificates that are the same on every server of a cluster, by the names of their files below `pki/`.

Rules kept here:
* Serving certificates and kubeconfigs are not part of it: each server makes its own.
* The certificate and the key of the CA belong together, or the set is refused.
* A fingerprint is a SHA-256 over public data: certificates, the public halves of keys, and the times of agent tokens. It changes
  with every change of the set and tells nothing about a key or a token.
* Two sets belong to one cluster when a CA that one of them trusts, or has retired, is trusted or retired by the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import load_private_key, public_key_der
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState
from mooring.secret import Secret
from mooring.trust.discovery.pins import pin_of
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS
from mooring.trust.sharedkeys.servertoken import public_part

CA, CA_KEY = "ca.crt", "ca.key"
TOKEN_KEY, LINEAGE_KEY = "sa.key", "lineage.key"
CROSS_SIGNED, RETIRED, DISTRUSTED = "cross-signed.crt", "retired-ca.crt", "distrusted-ca.crt"
NAMES = (
    CA,
    CA_KEY,
    CROSS_SIGNED,
    RETIRED,
    DISTRUSTED,
    TOKEN_KEY,
    "sa.pub",
    LINEAGE_KEY,
    "lineage.pub",
    "rollover/old.key",
    "rollover/old.crt",
    "rollover/new.key",
    "rollover/new.crt",
    AGENT_TOKENS,
)
"""Names of the files, each key before what is made of it."""
MAX_BYTES = 256 << 10
"""Size of a whole set. A usual one has 10 KiB, and with a hundred additional CAs 100 KiB; etcd stores 1.5 MiB in one value."""


@dataclass(frozen=True, slots=True)
class SharedKeySet:
    """One state of the set. `authorities` are the pins of its CAs, first the one that issues, then trusted, then retired ones."""

    files: Mapping[str, Secret]
    authorities: tuple[str, ...]
    fingerprint: str

    @classmethod
    def of(cls, files: Mapping[str, Secret]) -> SharedKeySet:
        """Check the content of the files. Raises ConfigError that names the file."""
        if unknown := files.keys() - set(NAMES):
            raise ConfigError(f"the keys of a cluster have no file {min(unknown)[:100]!r}")
        if sum(len(one.reveal()) for one in files.values()) > MAX_BYTES:
            raise ConfigError(
                f"the keys of a cluster are larger than {MAX_BYTES >> 10} KiB; remove CAs that nothing uses"
            )
        if missing := [name for name in (CA, CA_KEY) if name not in files]:
            raise ConfigError(f"{missing[0]} is missing")
        present = {name: files[name].reveal() for name in NAMES if name in files}
        bundles = {
            name: _certificates(name, present.get(name, b"")) for name in (CA, CROSS_SIGNED, RETIRED, DISTRUSTED)
        }
        digest = hashlib.sha256()
        for name, data in present.items():
            public = _public_half(name, data) if name.endswith(".key") else data
            if name == AGENT_TOKENS:
                public = public_part(data)
            digest.update(f"{name} {len(public)}\n".encode() + public)
        try:
            ca = CaState.of_files(bundles[CA], load_private_key(present[CA_KEY]), (), bundles[RETIRED])
        except MooringError as error:
            raise ConfigError(f"{CA}: {error}") from None
        pins = _pins((ca.authority.certificate, *ca.trusted, *ca.retired))
        return cls(dict(files), pins, digest.hexdigest())

    def with_file(self, name: str, content: Secret | None) -> SharedKeySet:
        """Return the set with other content of one file; without it for None. Raises ConfigError that names the file."""
        others = {one: data for one, data in self.files.items() if one != name}
        return SharedKeySet.of(others if content is None else {**others, name: content})


def authorities_of(ca_pem: bytes, retired_pem: bytes = b"") -> tuple[str, ...]:
    """Return the pins of the CAs in the files `ca.crt` and `retired-ca.crt`, without any key. Raises ConfigError."""
    return _pins((*_certificates(CA, ca_pem), *_certificates(RETIRED, retired_pem)))


def are_related(one: Iterable[str], other: Iterable[str]) -> bool:
    """Return whether two lists of `authorities` belong to one cluster."""
    return not set(one).isdisjoint(other)


def _certificates(name: str, data: bytes) -> tuple[Certificate, ...]:
    try:
        found = certificates(data) if data else ()
        # Raises for a key that cannot be read, while the name of the file is known.
        _pins(found)
        return found
    except MooringError as error:
        raise ConfigError(f"{name}: {error}") from None


def _public_half(name: str, data: bytes) -> bytes:
    try:
        return public_key_der(load_private_key(data))
    except MooringError as error:
        raise ConfigError(f"{name}: {error}") from None


def _pins(found: Iterable[Certificate]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(pin_of(one)) for one in found))
