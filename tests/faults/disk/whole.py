"""Checks of a data directory that faults have met: keys, certificates and kubeconfigs are whole, and snapshots can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mooring.client.kubeconfigfiles import load
from mooring.controlplane.snapshots import verify
from mooring.errors import MooringError
from mooring.pki.keys import load_private_key, public_key_der
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from mooring.storage.sqlite.verification import verify_file


def file_findings(data: Path) -> Iterator[str]:
    """Yield what is wrong with the files of a data directory. Missing ones are right: a start makes them."""
    for path in sorted(data.rglob("*")):
        try:
            _check(path)
        except (MooringError, ValueError, OSError) as error:
            yield f"{path.relative_to(data)} is not whole: {error}"


def _check(path: Path) -> None:
    if path.name.startswith("."):
        return  # a temporary file, which the next write of the directory removes
    if path.suffix == ".key":
        load_private_key(path.read_bytes())
    elif path.suffix == ".crt":
        found = certificates(path.read_bytes())
        key = path.with_suffix(".key")
        if key.exists():
            _match(found, key.read_bytes())
    elif path.suffix == ".conf":
        user = load(str(path)).user
        assert user.key is not None
        _match(certificates(user.certificate_pem), user.key.reveal())
    elif path.suffix == ".snapshot":
        verify(path)


def _match(found: tuple[Certificate, ...], key_pem: bytes) -> None:
    key = public_key_der(load_private_key(key_pem))
    if not any(public_key_der(one.public_key()) == key for one in found):  # type: ignore[arg-type] # ours are EC keys
        raise ValueError("no certificate is of the key")


def store_findings(database: Path) -> Iterator[str]:
    """Yield what `mooring store verify` would name."""
    for damage in verify_file(database).damage:
        yield f"damaged: {damage}"
