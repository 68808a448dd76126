"""`python -m tests.keystone`: install a real Keystone for the tests, in `.keystone`, from requirements/keystone.lock.

Rules kept here: it has an environment of its own, because its libraries (200 MB) would conflict with Mooring's. Versions and hashes
are locked. An existing environment of the same lock is left unchanged. Without it, the tests of tests/server/test_keystone.py that
need it are skipped; the simulated one is always available.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.keystonepeer import HOME

LOCK = Path(__file__).parents[1] / "requirements/keystone.lock"


def install() -> None:
    """Make the environment, unless one of this lock exists."""
    stamp = HOME / "lock"
    if stamp.exists() and stamp.read_bytes() == LOCK.read_bytes():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(HOME)], check=True)
    pip = [str(HOME / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(LOCK)], check=True)
    subprocess.run([str(HOME / "bin/python"), "-m", "pip", "check", "--disable-pip-version-check"], check=True)
    stamp.write_bytes(LOCK.read_bytes())


if __name__ == "__main__":
    install()
