"""Words of a machine about itself in its certificate request: annotations below `request.mooring.dev/`.

Rules kept here (docs/approve-requests.md#what-a-machine-says-of-itself):
* The requester chooses them. They are shown to a person, and may be a further condition of an authorized machine. They
  prove nothing.
* A request has at most MAX_FACTS of them. Others, and values beyond MAX_VALUE characters, are not read: another API server stores
  anything that a client sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError

PREFIX = "request.mooring.dev/"
MAX_FACTS = 16
MAX_VALUE = 256
"""Characters of a value: a serial number has some dozen."""
FIRMWARE_FACTS: Mapping[str, str] = {
    "product-serial": "product_serial",
    "product-uuid": "product_uuid",
    "board-serial": "board_serial",
    "chassis-serial": "chassis_serial",
    "asset-tag": "chassis_asset_tag",
}
"""Facts that the firmware knows, by name, each with its file in /sys/class/dmi/id."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""Name of an annotation behind its prefix (k8s.io/apimachinery `IsQualifiedName`)."""


def fact_problem(name: str, value: str) -> str:
    """Return what is wrong with a fact, "" for one that a request may have."""
    if _NAME.fullmatch(name) is None:
        return f'"{name[:MAX_VALUE]}" is not a name of letters, digits, - _ and ., at most 63 characters'
    if not value or len(value) > MAX_VALUE or not value.isprintable():
        return f"the value of {name} must be 1 to {MAX_VALUE} printable characters"
    return ""


def parse_facts(texts: Sequence[str], key: str) -> dict[str, str]:
    """Return the facts in texts of the form NAME=VALUE. Raises ConfigError that names the key."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if problem := fact_problem(name, value) if equals else f'"{name[:MAX_VALUE]}" has no value: give NAME=VALUE':
            raise ConfigError(f"{key}: {problem}")
        if found.setdefault(name, value) != value:
            raise ConfigError(f"{key}: {name} is given twice")
    if len(found) > MAX_FACTS:
        raise ConfigError(f"{key}: more than {MAX_FACTS} facts")
    return found


def as_annotations(facts: Mapping[str, str]) -> dict[str, str]:
    """Return facts as the annotations of a request."""
    return {PREFIX + name: value for name, value in facts.items()}


def facts_of(request: Obj) -> dict[str, str]:
    """Return the facts in a request, sorted by name."""
    given = request["metadata"].get("annotations") or {}
    names = sorted(name.removeprefix(PREFIX) for name in given if name.startswith(PREFIX))
    readable = [name for name in names if not fact_problem(name, given[PREFIX + name])]
    return {name: given[PREFIX + name] for name in readable[:MAX_FACTS]}


def facts_that_differ(request: Obj, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return what a request says in place of these facts, "" for one that it does not say; empty when it says all of them."""
    found = facts_of(request) if wanted else {}
    return {name: found.get(name, "") for name, value in wanted.items() if found.get(name) != value}


def has_facts(request: Obj, wanted: Mapping[str, str]) -> bool:
    """Return True when a request says all of these."""
    return not facts_that_differ(request, wanted)
