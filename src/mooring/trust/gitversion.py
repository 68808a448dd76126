"""`gitVersion` of `/version`: tells a Mooring server from another Kubernetes API server."""

from __future__ import annotations

import json

_BUILD = "+mooring-"
"""Part of the `gitVersion` of every Mooring server."""


def is_mooring(version: str) -> bool:
    """Return True when `gitVersion` is one of Mooring."""
    return _BUILD in version


def is_mooring_response(body: bytes) -> bool:
    """Return True when a response to `/version` is one of Mooring."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    version = found.get("gitVersion") if isinstance(found, dict) else None
    return isinstance(version, str) and is_mooring(version)
