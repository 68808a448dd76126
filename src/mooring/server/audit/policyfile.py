"""Read the audit policy from the file of `--audit-policy-file`."""

from __future__ import annotations

from pathlib import Path

from mooring.apimachinery.auditpolicy import MAX_BYTES, AuditPolicy, parse_policy
from mooring.client.files import read_limited
from mooring.errors import ConfigError


def read_policy(path: str) -> AuditPolicy | None:
    """Return the audit policy in a file, or None for an empty path. Raises ConfigError."""
    if not path:
        return None
    try:
        data = read_limited(Path(path), MAX_BYTES)
    except ConfigError as error:
        raise ConfigError(f"audit-policy-file: {error}") from error
    return parse_policy(data, f"audit-policy-file: {path}")
