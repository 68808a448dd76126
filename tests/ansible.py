"""`python -m tests.ansible`: install Ansible for the tests, in `.ansible`, from requirements/ansible.lock.

Rules kept here: it has an environment of its own, because its collections have 200 MB. Without it, tests/compat/test_ansible.py is
skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.ownenvironments import install

HOME = Path(os.environ.get("MOORING_TEST_ANSIBLE") or Path(__file__).parents[1] / ".ansible")
"""Environment of Ansible."""
LOCK = Path(__file__).parents[1] / "requirements/ansible.lock"

if __name__ == "__main__":
    install(HOME, LOCK)
