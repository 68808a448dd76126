"""JSON merge patch (RFC 7386).

Rules kept here:
* A patch gives a new object that shares nothing with its inputs; the inputs are unchanged, also when the patch fails.
* Members keep their place in the object, so that a patch changes as few of the stored bytes as possible.
* A patch that is not a JSON object, or that nests too deeply, is 400.

Source: RFC 7386; docs/protocol/patches.md.
"""

from __future__ import annotations

from typing import Any

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.patch.document import read_object_patch
from mooring.apimachinery.schema import Obj


def merge_patch(obj: Obj, patch: bytes | Obj) -> Obj:
    """Return `obj` after `patch`: null removes a member, objects merge, every other value replaces. Raises BadRequestError."""
    return _merge_object(obj, read_object_patch(patch))


def _merge_object(target: Any, patch: Obj) -> Obj:
    before: Obj = target if isinstance(target, dict) else {}
    result: Obj = {}
    for key, value in before.items():
        if key not in patch:
            result[key] = deep_copy(value)
        elif patch[key] is not None:
            result[key] = _merge_value(value, patch[key])
    for key, value in patch.items():
        if key not in before and value is not None:
            result[key] = _merge_value(None, value)
    return result


def _merge_value(before: Any, value: Any) -> Any:
    return _merge_object(before, value) if isinstance(value, dict) else deep_copy(value)
