"""A PKCS#11 token in software (SoftHSM), in a directory of a test."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mooring.pki.keys import PrivateKey, private_key_pem

PIN = "271828"
MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib/aarch64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
)
MODULE = next((path for path in MODULES if Path(path).exists()), "")
MISSING = next(
    (
        reason
        for reason, is_missing in (
            ("SoftHSM is not installed (Debian: softhsm2)", not MODULE or shutil.which("softhsm2-util") is None),
            ("python-pkcs11 is not installed (extra pkcs11)", importlib.util.find_spec("pkcs11") is None),
        )
        if is_missing
    ),
    "",
)
"""Reason to skip the tests that need a token, empty when there is none."""


class SoftHsm:
    """Tokens in one directory. The module reads `SOFTHSM2_CONF` once in a process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.configuration = directory / "softhsm2.conf"
        (directory / "tokens").mkdir()
        self.configuration.write_text(f"directories.tokendir = {directory}/tokens\nobjectstore.backend = file\n")
        self.environment = {"SOFTHSM2_CONF": str(self.configuration)}
        self.pin_file = directory / "pin"
        self.pin_file.write_text(f"{PIN}\n")
        self.pin_file.chmod(0o600)

    def make_token(self, label: str) -> None:
        """Create a token."""
        self._run("--init-token", "--free", "--label", label, "--so-pin", "314159", "--pin", PIN)

    def put_key(self, token: str, label: str, key: PrivateKey, number: str = "01") -> None:
        """Put a private key into a token."""
        file = self.directory / "import.pem"
        file.write_bytes(private_key_pem(key))
        self._run("--import", str(file), "--token", token, "--label", label, "--id", number, "--pin", PIN)
        file.unlink()

    def reload(self) -> None:
        """Make this process see these tokens: another test may have loaded the module with others. Ends every session."""
        import pkcs11

        pkcs11.lib(MODULE).reinitialize()

    def uri(self, token: str, label: str) -> str:
        """Return the URI of a key."""
        return f"pkcs11:token={token};object={label}?module-path={MODULE}&pin-source=file:{self.pin_file}"

    def _run(self, *arguments: str) -> None:
        program = shutil.which("softhsm2-util")
        assert program is not None
        subprocess.run([program, *arguments], env={**os.environ, **self.environment}, check=True, capture_output=True)


@contextmanager
def soft_hsm(directory: Path) -> Iterator[SoftHsm]:
    """Serve a directory of tokens to this process."""
    made = SoftHsm(directory)
    before = os.environ.get("SOFTHSM2_CONF")
    os.environ.update(made.environment)
    try:
        yield made
    finally:
        os.environ.pop("SOFTHSM2_CONF")
        if before is not None:
            os.environ["SOFTHSM2_CONF"] = before
