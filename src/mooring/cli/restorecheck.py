"""`mooring restore-check`: what a restored store would bring back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from mooring.api.mooring import tombstones
from mooring.api.mooring.membership import new_identity, with_spec
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.tombstones import ACCEPTED, BY_HAND, Tombstone, is_more, joins_of, uids_of
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, cluster_options, ending_options
from mooring.cli.options.flags import LISTED, output_option
from mooring.cli.printing import echo, print_document, print_table
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_is_mooring
from mooring.clock import rfc3339
from mooring.errors import ApiError, ConfigError, ConflictError, NotFoundError
from mooring.trust.bootstraptoken.restrictions import JOINED_KEYS
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name

# The ConfigMap of tombstones, as the commands read and change it.

MAX_CONFLICTS = 10
"""Attempts, as in kubectl."""

REMEDIES: Mapping[str, str] = {
    Tombstone.TOKEN: "apply deletes the token",
    Tombstone.JOINS: "apply counts the joins again",
    Tombstone.NODE: "apply deletes the Node, which ends the membership",
    Tombstone.ROLLOVER: "replace the CA again (mooring ca rollover start), then accept",
    Tombstone.SERVER_TOKEN: "replace again what was replaced: the server token (mooring token rotate --grace 0), the agent token "
    "(mooring token rotate --agent --grace 0), the keys in pki; then accept",
    Tombstone.LINEAGE: "keep the checkpoint; the records after the restored ones are lost; then accept",
    Tombstone.WATERMARK: "compare the audit log with the store, then accept",
    Tombstone.MORE: "settle the others, and bring back the keys of what cannot be read; the server then lists these",
}


async def fetch(client: ClusterClient) -> Obj | None:
    """Return the ConfigMap, or None."""
    try:
        return await client.get(tombstones.CONFIG_MAPS, tombstones.NAME, tombstones.NAMESPACE)
    except NotFoundError:
        return None


def waiting(config_map: Obj | None) -> dict[str, Mapping[str, Any]]:
    """Return the tombstones that wait, by key."""
    return {key: tombstones.value_of(text) for key, text in sorted(tombstones.pending(config_map).items())}


async def fetch_waiting(client: ClusterClient) -> dict[str, Mapping[str, Any]]:
    """Return the tombstones that wait, by key. Raises NotMooringError for another API server, which remembers none."""
    await check_is_mooring(client, "remembers tombstones that a restored store would bring back")
    return waiting(await fetch(client))


def kind_of(key: str) -> str:
    """Return the kind of a tombstone."""
    return key.partition(".")[0]


def selected(found: Mapping[str, Mapping[str, Any]], keys: tuple[str, ...], every: bool) -> list[str]:
    """Return the keys that the arguments choose. Raises ConfigError for one that does not wait, or that stands for others."""
    if bool(keys) == every:
        raise ConfigError("name the tombstones as `mooring restore-check list` prints them, or give --all")
    for key in keys:
        if key not in found:
            raise ConfigError(f'no tombstone "{key}" waits; see mooring restore-check list')
        if tombstones.is_more(key):
            raise ConfigError(f"{key} stands for tombstones that are not listed yet: {REMEDIES[Tombstone.MORE]}")
    return [key for key in found if not tombstones.is_more(key)] if every else list(keys)


async def change(client: ClusterClient, edit: Callable[[dict[str, str]], None]) -> None:
    """Change the entries by compare-and-swap. Raises ConflictError when other programs change them all the time."""
    for attempt in range(1, MAX_CONFLICTS + 1):
        config_map = await fetch(client)
        if config_map is None:
            return
        data: dict[str, str] = dict(config_map.get("data") or {})
        edit(data)
        try:
            await client.update(tombstones.CONFIG_MAPS, {**config_map, "data": data})
            return
        except ConflictError:
            if attempt == MAX_CONFLICTS:
                raise


# `mooring restore-check list`: list the tombstones that wait to be settled.


@click.command("list")
@output_option(*LISTED)
@cluster_options
def list_tombstones(output: str, chosen: ChosenCluster) -> None:
    """List what the store would bring back: deleted tokens and Nodes, and other tombstones that a server remembers.

    Revocations are not listed: the servers have made them again.

    While the list is not empty, the servers serve and issue nothing.
    """
    found = chosen.run_with_retries(fetch_waiting)
    if output in ("json", "yaml"):
        print_document(
            {"kind": "RestoreCheck", "items": [{"key": key, **value} for key, value in found.items()]}, output
        )
    elif output == "name":
        for key in found:
            echo(key)
    elif not found:
        echo("No tombstone waits to be settled.", err=True)
    else:
        print_table(["TOMBSTONE", "REMEDY"], [[key, REMEDIES.get(kind_of(key), "accept")] for key in found])


# `mooring restore-check apply`: end again what a restored store brought back.
#
# Rules kept here: each tombstone is applied by the same objects as at the first time, and leaves the list only when that succeeded.
# The command may be repeated. An object that was made again since, with another uid, is left alone.


@click.command("apply")
@click.argument("tombstone", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Apply every tombstone that can be applied.")
@ending_options
@click.pass_context
def apply(ctx: click.Context, tombstone: tuple[str, ...], every: bool, chosen: ChosenCluster) -> None:
    """End again what the store brought back: delete tokens and Nodes, and count joins again.

    Each TOMBSTONE is one that `mooring restore-check list` prints. The exit code is 1 when one of them has to be settled by hand.
    """
    left = chosen.run(lambda client: _apply_all(client, tombstone, every, chosen))
    for key, problem in left.items():
        remedy = problem or REMEDIES.get(kind_of(key), "no command of this version applies it; then accept")
        echo(f"{key}: {remedy}", err=True)
    if left:
        ctx.exit(1)


async def _apply_all(
    client: ClusterClient, keys: tuple[str, ...], every: bool, chosen: ChosenCluster
) -> dict[str, str]:
    """Apply the tombstones; return the keys of those that a person has to settle, and why where an object cannot be read."""
    found = await chosen.retry(lambda: fetch_waiting(client))
    left = {key: "" for key in found if is_more(key)} if every else {}
    for key in selected(found, keys, every):
        kind, value = kind_of(key), found[key]
        if kind in BY_HAND or kind not in REMEDIES or not _has_value(kind, value):
            left[key] = ""
            continue

        async def apply_one(key: str = key, kind: str = kind, value: Mapping[str, Any] = value) -> None:
            await _apply(client, kind, value["name"], value)
            await change(client, lambda data: _remove(data, key))

        try:
            await chosen.retry(apply_one)
        except ApiError as error:
            if not cluster.is_unreadable(error):
                raise
            left[key] = f"it waits until its object can be read, or is deleted: {error.message}"
        else:
            echo(f"{key} applied")
    return left


def _has_value(kind: str, value: Mapping[str, Any]) -> bool:
    """Return whether an entry has what its kind needs. A server has written it, and a person may have edited it."""
    if kind == Tombstone.JOINS and not isinstance(value.get("joins"), int):
        return False
    return isinstance(value.get("name"), str) and isinstance(value.get("uid"), str)


def _remove(data: dict[str, str], key: str) -> None:
    data.pop(key, None)


async def _apply(client: ClusterClient, kind: str, name: str, value: Mapping[str, Any]) -> None:
    if kind == Tombstone.TOKEN:
        await _delete(client, "secrets", secret_name(name), NAMESPACE, value)
    elif kind == Tombstone.NODE:
        await _delete(client, "nodes", name, "", value)
        await _record(client, name, value["uid"])
    elif kind == Tombstone.JOINS:
        await _count_again(client, name, value["uid"], value["joins"])


async def _delete(client: ClusterClient, plural: str, name: str, namespace: str, value: Mapping[str, Any]) -> None:
    for uid in uids_of(value):
        try:
            await client.delete(plural, name, namespace, uid=uid)
        except (NotFoundError, ConflictError):
            continue  # gone, or another object of this name


async def _record(client: ClusterClient, name: str, uid: str) -> None:
    """Record the deleted Node in the NodeIdentity of a name that has no Node, and none that was deleted.

    The store may be older than the Node, and then restricts no certificate of the name.
    """
    try:
        await client.get("nodes", name)
    except NotFoundError:
        pass
    else:
        return
    now = rfc3339(client.clock.now())
    try:
        identity = await client.get(IDENTITIES, name)
    except NotFoundError:
        await client.create(IDENTITIES, new_identity(name, nodeUID=uid, changedAt=now))
        return
    if not spec_of(identity).get("nodeUID"):
        await client.update(IDENTITIES, with_spec(identity, nodeUID=uid, changedAt=now))


async def _count_again(client: ClusterClient, token_id: str, uid: str, joins: int) -> None:
    """Fill up the joins of a token with keys that no machine has."""
    try:
        secret = await client.get("secrets", secret_name(token_id), NAMESPACE)
    except NotFoundError:
        return
    metadata = secret["metadata"]
    missing = joins - joins_of(secret)
    if metadata.get("uid") != uid or missing <= 0:
        return
    annotations = dict(metadata.get("annotations") or {})
    keys = [key for key in annotations.get(JOINED_KEYS, "").split(",") if key]
    keys += [hashlib.sha256(f"{uid}/{len(keys) + place}".encode()).hexdigest() for place in range(missing)]
    annotations[JOINED_KEYS] = ",".join(keys)
    await client.update("secrets", {**secret, "metadata": {**metadata, "annotations": annotations}})


# `mooring restore-check accept`: let come back what a restored store brought back.
#
# Rules kept here: what was accepted is kept in the ConfigMap, so that no other server that remembers it asks again.


@click.command("accept")
@click.argument("tombstone", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Accept every tombstone that waits.")
@ending_options
def accept(tombstone: tuple[str, ...], every: bool, chosen: ChosenCluster) -> None:
    """Let what the store brought back count again: deleted tokens and Nodes, and others. A revocation is deleted instead.

    Each TOMBSTONE is one that `mooring restore-check list` prints.
    """
    for key in chosen.run(lambda client: _accept_all(client, tombstone, every, chosen)):
        echo(f"{key} accepted")


async def _accept_all(
    client: ClusterClient, keys: tuple[str, ...], every: bool, chosen: ChosenCluster
) -> Sequence[str]:
    found = await chosen.retry(lambda: fetch_waiting(client))
    accepted = selected(found, keys, every)

    def edit(data: dict[str, str]) -> None:
        for key in accepted:
            if key in data:
                data[ACCEPTED + key] = data.pop(key)

    await chosen.retry(lambda: change(client, edit))
    return accepted
