"""Several servers on one machine: flags of one SQLite file and one server token for data directories of their own."""

from __future__ import annotations

from pathlib import Path

FILE = "store.db"
"""Name of the SQLite file below the directory that holds the data directories."""

_TOKEN = "0123456789abcdef0123456789abcdef"


def shared_store(root: Path) -> tuple[str, ...]:
    """Return the flags of each server on the SQLite file of `root`; the first start seals the keys of the cluster in it."""
    token = root / "server-token"
    token.touch(0o600)
    token.write_text(f"{_TOKEN}\n")
    return ("--storage", f"sqlite:{root / FILE}", "--server-token-file", str(token))
