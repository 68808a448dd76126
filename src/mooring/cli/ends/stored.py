"""The ConfigMap of ends, as the commands read and change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mooring.api.mooring import ends
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_is_mooring
from mooring.errors import ConfigError, ConflictError, NotFoundError

MAX_CONFLICTS = 10
"""Attempts, as in kubectl."""

REMEDIES: Mapping[str, str] = {
    ends.End.TOKEN: "apply deletes the token",
    ends.End.JOINS: "apply counts the joins again",
    ends.End.NODE: "apply deletes the Node, which ends the membership",
    ends.End.ROLLOVER: "replace the CA again (mooring ca rollover start), then waive",
    ends.End.SERVER_TOKEN: "replace again what was replaced: the server token (mooring token rotate --grace 0), the agent token "
    "(mooring token rotate --agent --grace 0), the keys in pki; then waive",
    ends.End.LINEAGE: "keep the checkpoint; the records after the restored ones are lost; then waive",
    ends.End.MARK: "compare the audit log with the store, then waive",
    ends.End.MORE: "settle the others, and bring back the keys of what cannot be read; the server then lists these",
}


async def fetch(client: ClusterClient) -> Obj | None:
    """Return the ConfigMap, or None."""
    try:
        return await client.get(ends.CONFIG_MAPS, ends.NAME, ends.NAMESPACE)
    except NotFoundError:
        return None


def waiting(config_map: Obj | None) -> dict[str, Mapping[str, Any]]:
    """Return the ends that wait, by key."""
    return {key: ends.value_of(text) for key, text in sorted(ends.pending(config_map).items())}


async def fetch_waiting(client: ClusterClient) -> dict[str, Mapping[str, Any]]:
    """Return the ends that wait, by key. Raises NotMooringError for another API server, which remembers none."""
    await check_is_mooring(client, "remembers ends that a restored store would bring back")
    return waiting(await fetch(client))


def kind_of(key: str) -> str:
    """Return the kind of an end."""
    return key.partition(".")[0]


def selected(found: Mapping[str, Mapping[str, Any]], keys: tuple[str, ...], every: bool) -> list[str]:
    """Return the keys that the arguments choose. Raises ConfigError for one that does not wait, or that stands for others."""
    if bool(keys) == every:
        raise ConfigError("name the ends as `mooring ends list` prints them, or give --all")
    for key in keys:
        if key not in found:
            raise ConfigError(f'no end "{key}" waits; see mooring ends list')
        if ends.is_more(key):
            raise ConfigError(f"{key} stands for ends that are not listed yet: {REMEDIES[ends.End.MORE]}")
    return [key for key in found if not ends.is_more(key)] if every else list(keys)


async def change(client: ClusterClient, edit: Callable[[dict[str, str]], None]) -> None:
    """Change the entries by compare-and-swap. Raises ConflictError when other programs change them all the time."""
    for attempt in range(1, MAX_CONFLICTS + 1):
        config_map = await fetch(client)
        if config_map is None:
            return
        data: dict[str, str] = dict(config_map.get("data") or {})
        edit(data)
        try:
            await client.update(ends.CONFIG_MAPS, {**config_map, "data": data})
            return
        except ConflictError:
            if attempt == MAX_CONFLICTS:
                raise
