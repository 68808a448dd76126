"""File of CAs that a setting names: it is not taken for an absent one when it is empty.

An empty bundle stands for the roots of the machine everywhere. A file that a power loss or a half-finished copy left empty would
therefore replace the CA of the operator by every CA of the machine.
"""

from __future__ import annotations

from mooring.errors import ConfigError


def named_cas(content: bytes, file: str) -> bytes:
    """Return the content of a named file. Raises ConfigError for an empty one."""
    if not content.strip():
        raise ConfigError(
            f'"{file}" is empty: without a CA every CA of this machine would be trusted in its place; restore the file, or '
            "name none"
        )
    return content
