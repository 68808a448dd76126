"""Patch documents: decoding the body of a patch, and refusing one that nests too deeply."""

from __future__ import annotations

from typing import Any

import msgspec

from mooring.apimachinery.codec.limits import MAX_DEPTH, depth_exceeds
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError


def read_patch(patch: Any) -> Any:
    """Return the JSON value of a patch, which is bytes or decoded already. Raises BadRequestError when it nests too deeply."""
    if isinstance(patch, bytes):
        try:
            patch = msgspec.json.decode(patch)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadRequestError("error decoding patch: it is not JSON") from None
    if depth_exceeds(patch):
        raise BadRequestError(f"error decoding patch: exceeded max depth of {MAX_DEPTH}")
    return patch


def read_object_patch(patch: Any) -> Obj:
    """Return the object of a merge patch or strategic merge patch, with the checks of `read_patch`."""
    patch = read_patch(patch)
    if not isinstance(patch, dict):
        raise BadRequestError("error decoding patch: it must be a JSON object")
    return patch
