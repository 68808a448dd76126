"""Python environments of programs whose libraries would conflict with Mooring's, one folder and one lock each.

Rules kept here: versions and hashes are locked. An environment of the same lock is left unchanged. Without one, the tests that need
it are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def install(home: Path, lock: Path) -> None:
    """Make the environment, unless one of this lock exists. Raises CalledProcessError."""
    stamp = home / "lock"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(lock)], check=True)
    subprocess.run([str(home / "bin/python"), "-m", "pip", "check", "--disable-pip-version-check"], check=True)
    stamp.write_bytes(lock.read_bytes())
