"""Files of the cluster's CA in `pki/` of the data directory, read as one state.

Rules kept here: the bundle `ca.crt` and the key `ca.key` are used together or not at all. A bundle without the certificate of the
key is half of a change, and an error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mooring.client.files import read_limited
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import load_private_key
from mooring.pki.x509.bundles import certificates_among
from mooring.pki.x509.clusterca import CaState
from mooring.trust.sharedkeys.keyset import CA, CA_KEY, CROSS_SIGNED, DISTRUSTED, RETIRED

Loaded = TypeVar("Loaded")


def ca_files(pki: Path) -> tuple[Path, ...]:
    """Return the files from which the state of the CA is read."""
    return tuple(pki / name for name in (CA, CA_KEY, CROSS_SIGNED, RETIRED, DISTRUSTED))


def read_ca(pki: Path) -> CaState:
    """Read the CA of a data directory. Raises ConfigError."""
    certificate_path = pki / CA
    bundle, key = load(certificate_path, certificates_among), load(pki / CA_KEY, load_private_key)
    others = [
        load(path, certificates_among) if path.exists() else ()
        for path in (pki / CROSS_SIGNED, pki / RETIRED, pki / DISTRUSTED)
    ]
    return load(certificate_path, lambda _: CaState.of_files(bundle, key, *others))


def load(path: Path, parse: Callable[[bytes], Loaded]) -> Loaded:
    """Read a file of the data directory. Raises ConfigError."""
    data = read_limited(path)
    try:
        return parse(data)
    except ConfigError:
        raise
    except MooringError as error:
        replaceable = path.name.startswith("apiserver.")  # no client keeps a copy of it
        remedy = "remove it, and it is made again" if replaceable else "restore it from a backup"
        raise ConfigError(f"{path}: {error}; {remedy}") from error
