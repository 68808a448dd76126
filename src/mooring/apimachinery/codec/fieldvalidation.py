"""Field validation: unknown and duplicate fields become warnings or one error, by `?fieldValidation=`.

Source: docs/protocol/requests.md#options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mooring.apimachinery.codec.fieldpath import MAX_REPORTED
from mooring.errors import ApiError


def unknown_fields(paths: Iterable[str]) -> list[str]:
    """Return a warning for each path of an unknown field."""
    return [f'unknown field "{path}"' for path in paths]


def duplicate_fields(paths: Iterable[str]) -> list[str]:
    """Return a warning for each path of a duplicate field."""
    return [f'duplicate field "{path}"' for path in paths]


def warn_or_refuse(policy: str, found: Sequence[str], strict_error: Callable[[str], ApiError]) -> Sequence[str]:
    """Return the warnings `found`; with the policy Strict raise the error that `strict_error` makes of them.

    `policy` is the value of `fieldValidation`; empty means Warn.
    """
    if policy == "Ignore":
        return ()
    if found and policy == "Strict":
        lines = [text for text in found if text.startswith("line ")]
        others = [text for text in found if not text.startswith("line ")]
        yaml_errors = ["\n  ".join(("yaml: unmarshal errors:", *lines))] if lines else []
        raise strict_error(", ".join((*yaml_errors, *others)))
    return found[:MAX_REPORTED]
