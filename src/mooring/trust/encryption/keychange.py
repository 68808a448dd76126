"""Change of the keys in an EncryptionConfiguration, in steps that no server notices by an unreadable value.

Rules kept here:
* A new key is first added behind the others, and is made the first one when every server can read with it. The old keys are removed
  when no value was written with them.
* Only providers with keys of their own that write, which are the first of their entry, are changed. Other content stays.
* A step that was made already changes nothing, so that an interrupted change goes on from the file itself.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.clock import ZERO_TIME, parse_rfc3339
from mooring.errors import ConfigError
from mooring.trust.encryption.configuration import KEY_SIZES
from mooring.trust.encryption.encryptedobject import Entropy

KEY_BYTES = 32
SERVER_LABEL = "mooring.dev/encryption-at-rest"
"""Label of the Leases by which servers say which file they use."""
HASH_ANNOTATION = "mooring.dev/encryption-config-hash"
RELOAD_ANNOTATION = "mooring.dev/encryption-automatic-reload"
ABANDONED = timedelta(minutes=10)
"""Age of an expired Lease at which another server deletes it."""


def key_name(now: datetime) -> str:
    """Return the name of a new key: letters and digits only, because a colon ends the name in stored values."""
    return f"key-{now:%Y%m%d%H%M%S}"


def _key_lists(document: Obj) -> Iterator[list[Any]]:
    """Yield the keys of each provider that writes with keys of its own."""
    for entry in document["resources"]:
        first = entry["providers"][0]
        for kind in KEY_SIZES:
            if first.get(kind) is not None:
                yield first[kind]["keys"]


def names_first(document: Obj) -> tuple[str, ...]:
    """Return the name of the key that writes, for each provider with keys of its own."""
    return tuple(keys[0]["name"] for keys in _key_lists(document))


def added(document: Obj, name: str, entropy: Entropy) -> Obj:
    """Return the file with a new key behind the others. Raises ConfigError when there is no provider to give it to."""
    changed = deepcopy(document)
    lists = tuple(_key_lists(changed))
    if not lists:
        raise ConfigError(
            "no entry of the file writes with a key of its own: aescbc, aesgcm or secretbox as its first provider. "
            "The key of a KMS plugin is replaced in its key service"
        )
    for keys in lists:
        if all(one["name"] != name for one in keys):
            keys.append({"name": name, "secret": base64.b64encode(entropy(KEY_BYTES)).decode()})
    return changed


def promoted(document: Obj, name: str) -> Obj:
    """Return the file with the key `name` before the others."""
    changed = deepcopy(document)
    for keys in _key_lists(changed):
        keys.sort(key=lambda one: one["name"] != name)
    return changed


def reduced(document: Obj, name: str) -> Obj:
    """Return the file without the keys behind `name`, which is the first."""
    changed = deepcopy(document)
    for keys in _key_lists(changed):
        if keys[0]["name"] == name:
            del keys[1:]
    return changed


def live_servers(leases: Iterable[Obj], now: datetime) -> tuple[Obj, ...]:
    """Return the Leases of servers that have not ended."""
    return tuple(one for one in leases if _expires(one) >= now)


def abandoned(leases: Iterable[Obj], now: datetime, is_gone: Callable[[str], bool]) -> tuple[Obj, ...]:
    """Return the Leases of servers that ended some time ago, and of processes that are known to have ended."""
    return tuple(
        one
        for one in leases
        if SERVER_LABEL in (one["metadata"].get("labels") or {})
        and (_expires(one) < now - ABANDONED or is_gone(str((one.get("spec") or {}).get("holderIdentity") or "")))
    )


def _expires(lease: Obj) -> datetime:
    spec = lease.get("spec") or {}
    try:
        renewed = parse_rfc3339(spec.get("renewTime") or "")
    except ValueError:
        return ZERO_TIME
    return renewed + timedelta(seconds=spec.get("leaseDurationSeconds") or 0)


def servers_behind(leases: Iterable[Obj], config_hash: str) -> tuple[str, ...]:
    """Return the identities of servers that use another file, with the reason where one is known."""
    found: list[str] = []
    for lease in leases:
        notes = lease["metadata"].get("annotations") or {}
        if notes.get(HASH_ANNOTATION) != config_hash:
            holder = (lease.get("spec") or {}).get("holderIdentity") or lease["metadata"]["name"]
            hint = "" if notes.get(RELOAD_ANNOTATION) == "true" else " (it does not reload the file: restart it)"
            found.append(f"{holder}{hint}")
    return tuple(sorted(found))
