"""`mooring ends apply`: end again what a restored store brought back.

Rules kept here: each end is applied by the same objects as at the first time, and leaves the list only when that succeeded. The
command may be repeated. An object that was made again since, with another uid, is left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import click

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.ends import BY_HAND, End, is_more, joins_of, uids_of
from mooring.api.mooring.membership import new_identity, with_spec
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.ends.stored import REMEDIES, change, fetch_waiting, kind_of, selected
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import rfc3339
from mooring.errors import ApiError, ConflictError, NotFoundError
from mooring.trust.bootstraptoken.restrictions import JOINED_KEYS
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name


@click.command("apply")
@click.argument("end", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Apply every end that can be applied.")
@ending_options
@click.pass_context
def apply(ctx: click.Context, end: tuple[str, ...], every: bool, chosen: ChosenCluster) -> None:
    """End again what the store brought back: delete tokens and Nodes, and count joins again.

    Each END is one that `mooring ends list` prints. The exit code is 1 when one of them has to be settled by hand.
    """
    left = chosen.run(lambda client: _apply_all(client, end, every, chosen))
    for key, problem in left.items():
        remedy = problem or REMEDIES.get(kind_of(key), "no command of this version applies it; then waive")
        echo(f"{key}: {remedy}", err=True)
    if left:
        ctx.exit(1)


async def _apply_all(
    client: ClusterClient, keys: tuple[str, ...], every: bool, chosen: ChosenCluster
) -> dict[str, str]:
    """Apply the ends; return the keys of those that a person has to settle, and why where an object cannot be read."""
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
    if kind == End.JOINS and not isinstance(value.get("joins"), int):
        return False
    return isinstance(value.get("name"), str) and isinstance(value.get("uid"), str)


def _remove(data: dict[str, str], key: str) -> None:
    data.pop(key, None)


async def _apply(client: ClusterClient, kind: str, name: str, value: Mapping[str, Any]) -> None:
    if kind == End.TOKEN:
        await _delete(client, "secrets", secret_name(name), NAMESPACE, value)
    elif kind == End.NODE:
        await _delete(client, "nodes", name, "", value)
        await _record(client, name, value["uid"])
    elif kind == End.JOINS:
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
