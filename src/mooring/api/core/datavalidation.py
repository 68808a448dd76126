"""Validation of data that Secret and ConfigMap share: keys, total size, immutability.

Rules kept here (docs/protocol/secrets-and-configmaps.md): keys follow `names.config_key_errors`; values have at most 1 MiB
together; once `immutable` is true it stays true and the data is fixed (both errors are Forbidden).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mooring.apimachinery.names import config_key_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, forbidden, invalid

MAX_DATA = 1024 * 1024
"""Bytes of all values of one object; kube-apiserver's limit, below etcd's limit for one value."""

IMMUTABLE = "field is immutable when `immutable` is set"


def key_errors(data: Mapping[str, str], path: str) -> list[FieldError]:
    """Return an error for each key that is not a valid file name."""
    return [invalid(f"{path}[{key}]", key, detail) for key in data for detail in config_key_errors(key)]


def base64_size(data: Mapping[str, str]) -> int:
    """Return the number of decoded bytes of base64 values, without decoding them."""
    return sum(len(value) // 4 * 3 - value[-2:].count("=") for value in data.values())


def immutability_errors(new: Obj, old: Obj, fields: Iterable[str]) -> list[FieldError]:
    """Return an error for each changed field of an immutable object."""
    if not old.get("immutable"):
        return []
    errors = [] if new.get("immutable") else [forbidden("immutable", IMMUTABLE)]
    errors += [forbidden(name, IMMUTABLE) for name in fields if (new.get(name) or {}) != (old.get(name) or {})]
    return errors
