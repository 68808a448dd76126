"""What Secrets and ConfigMaps have in common: keys that are file names, one size limit, and freezing.

Rules kept here (docs/protocol/secrets-and-configmaps.md): keys follow `names.config_key_errors`; values together weigh at most 1
MiB; once `immutable` is true it stays true and the data stays as it is (both Forbidden).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mooring.apimachinery.names import config_key_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, forbidden, invalid

MAX_DATA = 1024 * 1024
"""Bytes of all values of one object: kube-apiserver's limit, below what etcd takes as one value."""

FROZEN = "field is immutable when `immutable` is set"


def key_errors(data: Mapping[str, str], path: str) -> list[FieldError]:
    """Keys that could not be file names."""
    return [invalid(f"{path}[{key}]", key, why) for key in data for why in config_key_errors(key)]


def base64_size(data: Mapping[str, str]) -> int:
    """Bytes that the base64 values stand for, without decoding them."""
    return sum(len(value) // 4 * 3 - value[-2:].count("=") for value in data.values())


def frozen_errors(new: Obj, old: Obj, fields: Iterable[str]) -> list[FieldError]:
    """Changes to an object that was frozen."""
    if not old.get("immutable"):
        return []
    errors = [] if new.get("immutable") else [forbidden("immutable", FROZEN)]
    errors += [forbidden(name, FROZEN) for name in fields if (new.get(name) or {}) != (old.get(name) or {})]
    return errors
