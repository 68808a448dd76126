"""`python -m tests.keystone`: install a real Keystone for the tests, in `.keystone`, from requirements/keystone.lock.

Rules kept here: it has an environment of its own, because its libraries have 200 MB. Without it, the tests of
tests/server/test_keystone.py that need it are skipped; the simulated one is always available.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.keystonepeer import HOME
from tests.support.ownenvironments import install

LOCK = Path(__file__).parents[1] / "requirements/keystone.lock"

if __name__ == "__main__":
    install(HOME, LOCK)
