"""ConfigMap: strategy, and the validation of data that it shares with Secret."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mooring.api.kind import Kind
from mooring.api.objectmeta import NAME
from mooring.apimachinery.names import config_key_errors, dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, forbidden, invalid, too_long

# Validation of data that Secret and ConfigMap share: keys, total size, immutability.
#
# Rules kept here (docs/protocol/secrets-and-configmaps.md): keys follow `names.config_key_errors`; values have at most 1 MiB
# together; once `immutable` is true it stays true and the data is fixed (both errors are Forbidden).

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


# ConfigMap: strategy.
#
# Rules kept here (docs/protocol/secrets-and-configmaps.md): keys of `data` and `binaryData` are disjoint file names, all values
# have at most 1 MiB together, `immutable` fixes both.

_OBJECT_PATH = "[]"
"""Path of the object itself in kube-apiserver's field errors."""


def _validate(obj: Obj) -> list[FieldError]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    errors = key_errors(data, "data")
    if binary:
        errors += [
            invalid(f"data[{key}]", key, "duplicate of key present in binaryData") for key in data if key in binary
        ]
        errors += key_errors(binary, "binaryData")
    size = base64_size(binary) + sum(len(text) for text in data.values())
    # A character has at most four bytes: most objects need not be encoded to know that they are small.
    if 4 * size > MAX_DATA and _utf8_size(data) + base64_size(binary) > MAX_DATA:
        errors.append(too_long(_OBJECT_PATH, MAX_DATA))
    return errors


def _utf8_size(data: dict[str, str]) -> int:
    """Return the number of UTF-8 bytes. Called only when four bytes a character would exceed the limit."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in data.values())


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="ConfigMap",
        plural="configmaps",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.ConfigMap"),
        short_names=("cm",),
        columns=(
            NAME,
            Column(
                "Data",
                lambda obj, now: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
                type="integer",
                description="Number of keys.",
            ),
            AGE,
        ),
    ),
    storage="/registry/configmaps",
    name_errors=dns1123_subdomain_errors,
    validate=_validate,
    validate_update=lambda new, old: immutability_errors(new, old, ("data", "binaryData")),
)
