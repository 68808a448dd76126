"""Certificates that only openssl still makes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.pki import keys
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate


@pytest.fixture
def v1_certificate(tmp_path: Path) -> Callable[[], Certificate]:
    """A maker of self-signed version 1 certificates: no extensions at all, as old tutorials make them."""

    def make() -> Certificate:
        (tmp_path / "key").write_bytes(keys.private_key_pem(keys.generate_key()))
        subprocess.run(
            ["openssl", "req", "-new", "-key", "key", "-subj", "/CN=old", "-out", "csr"], cwd=tmp_path, check=True
        )
        made = subprocess.run(
            ["openssl", "x509", "-req", "-in", "csr", "-signkey", "key", "-days", "30"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        return bundles.certificates_among(made.stdout)[0]

    return make
