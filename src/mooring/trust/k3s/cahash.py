"""Hash of a CA bundle in a k3s token, and the check of a bundle against it.

Rules kept here (docs/protocol/k3s.md#hash-of-the-ca):
* A bundle of one certificate: SHA-256 of the bytes of the file, as the server serves them at `/cacerts`.
* A bundle of several: the first certificate is verified against the others. Those without an authority key identifier, or with that
  of themselves, are roots, and the rest intermediates. The digest is that of the root's DER, and survives a new intermediate.
* When that verification fails, the digest is that of the file's bytes.
* A check also accepts the digest of the bytes of any file, and those of one certificate in it: of its DER, and of its PEM as Go
  writes it. A line end more is the same certificate, and a token outlives the CA that comes beside its own in a rollover.
* A digest vouches for what it covers and for nothing beside it. Anybody can add a CA of his own to a bundle whose root is pinned,
  and k3s then trusts it. `check_ca_hash` therefore returns the certificates to trust: the verified path to a root, or the one
  certificate that is named, or all of a file whose bytes are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from mooring.errors import ConfigError
from mooring.pki.errors import PeerCertificateError, PkiError
from mooring.pki.x509.bundles import certificates_among, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.verify import path_to_root
from mooring.trust.k3s.token import is_digest

MAX_MOMENTS = 32
"""Moments at which a bundle is verified when no time is given. Each costs at most as many signature checks as a client's chain."""


class CaHashError(ConfigError):
    """The bundle cannot be read, or is not the one that the token names."""


def ca_hash(bundle_pem: bytes, now: datetime | None = None) -> str:
    """Return the hash that k3s writes into a token for this bundle. Raises CaHashError.

    k3s verifies several certificates at the present time. Without `now` the periods need only overlap.
    """
    path = _path(_certificates(bundle_pem), now)
    return _digest(path[-1].der if path else bundle_pem)


def accepted_hashes(bundle_pem: bytes, now: datetime | None = None) -> tuple[str, ...]:
    """Return the hashes with which a token may name this bundle, first the one that k3s writes. Raises CaHashError."""
    return tuple(dict.fromkeys((ca_hash(bundle_pem, now), *_vouched(bundle_pem, now))))


def check_ca_hash(bundle_pem: bytes, wanted: str, now: datetime | None = None) -> bytes:
    """Return, as PEM, the CAs that the hash of a token vouches for. Trust no other. Raises CaHashError that names both digests."""
    if (trusted := _vouched(bundle_pem, now).get(wanted)) is not None:
        return trusted
    named = wanted if is_digest(wanted) else "no SHA-256 in lower-case hexadecimal digits"
    raise CaHashError(
        f"token CA hash does not match the Cluster CA certificate hash: {named} != {ca_hash(bundle_pem, now)}; the token is of "
        "another cluster or of a CA that was replaced, or another server answered: compare with the token of the server"
    )


def _vouched(bundle_pem: bytes, now: datetime | None) -> dict[str, bytes]:
    """Return for each accepted digest the certificates that it covers."""
    found = _certificates(bundle_pem)
    covered = {_digest(bundle_pem): certificates_pem(found)}
    path = _path(found, now)
    for certificate in (*path[-1:], *found):
        trusted = certificates_pem(path if certificate in path[-1:] else (certificate,))
        covered.setdefault(_digest(certificate.der), trusted)
        covered.setdefault(_digest(certificates_pem((certificate,))), trusted)
    return covered


def _path(bundle: Sequence[Certificate], now: datetime | None) -> tuple[Certificate, ...]:
    """Return the path from the first of several certificates to its root; empty for a lone one, and when it does not verify."""
    first, *others = bundle
    if not others:
        return ()
    roots = [one for one in others if _names_itself(one)]
    intermediates = [one for one in others if not _names_itself(one)]
    for moment in (now,) if now is not None else _moments(bundle):
        try:
            return path_to_root((first, *intermediates), roots, moment)
        except PeerCertificateError:
            continue
    return ()


def _moments(bundle: Sequence[Certificate]) -> list[datetime]:
    """Return the beginnings of all periods, the latest first: a path whose periods overlap is valid at one of them."""
    return sorted({one.not_valid_before_utc for one in bundle}, reverse=True)[:MAX_MOMENTS]


def _names_itself(certificate: Certificate) -> bool:
    """Return whether k3s takes a certificate for a root: no authority key identifier, or that of the certificate itself."""
    authority = certificate.extensions.authority_key_identifier
    return not authority or authority == certificate.extensions.subject_key_identifier


def _certificates(bundle_pem: bytes) -> tuple[Certificate, ...]:
    try:
        return certificates_among(bundle_pem)
    except PkiError as error:
        raise CaHashError(f"the CA bundle of the cluster cannot be read: {error}") from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
