"""Labels and taints that a node registers itself with, as kubelet's flags write them.

Rules kept here (kubelet's `--node-labels` and `--register-with-taints`):
* A label is `key=value`. The last one of a key counts.
* A taint is `key=value:effect` or `key:effect`. Two with the same key and effect are an error, as in the API.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.api.core.node import TAINT_EFFECTS
from mooring.apimachinery.names import label_value_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError, quoted

_MAX_SHOWN = 100
"""Characters of a value in an error."""


def parse_labels(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return the labels. Raises ConfigError that names the flag."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{flag}: {_shown(text)} is not a label; write it like rack=seven")
        _check(text, key, value, flag)
        labels[key] = value
    return labels


def parse_taints(texts: Sequence[str], flag: str) -> tuple[Obj, ...]:
    """Return the taints as a Node has them. Raises ConfigError that names the flag."""
    taints: dict[tuple[str, str], Obj] = {}
    for text in texts:
        pair, colon, effect = text.rpartition(":")
        key, equals, value = pair.partition("=")
        if not colon or effect not in TAINT_EFFECTS:
            raise ConfigError(
                f"{flag}: {_shown(text)} is not a taint; write it like dedicated=gpu:NoSchedule, with one of the effects "
                f"{', '.join(TAINT_EFFECTS)}"
            )
        _check(text, key, value, flag)
        if (key, effect) in taints:
            raise ConfigError(f"{flag}: two taints have the key {key} and the effect {effect}")
        taints[key, effect] = {"key": key, **({"value": value} if equals else {}), "effect": effect}
    return tuple(taints.values())


def _check(text: str, key: str, value: str, flag: str) -> None:
    for part, errors in (("key", qualified_name_errors(key)), ("value", label_value_errors(value))):
        if errors:
            raise ConfigError(f"{flag}: the {part} of {_shown(text)} is invalid: {errors[0]}")


def _shown(text: str) -> str:
    return quoted(text[:_MAX_SHOWN])
