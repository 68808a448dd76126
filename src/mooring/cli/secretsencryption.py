"""`mooring secrets-encryption`: which keys have encrypted the stored objects, and their replacement."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

from mooring.api.kinds import RESOURCES
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.cli import printing as printed
from mooring.cli.cluster import ChosenCluster, changing_options, cluster_options
from mooring.cli.options.flags import DURATION, REPORTED, output_option
from mooring.cli.printing import echo
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited, write_atomic
from mooring.client.serverversion import check_is_mooring
from mooring.clock import Clock
from mooring.errors import ApiError, ConfigError, ConflictError, NotFoundError
from mooring.trust.encryption import keychange
from mooring.trust.encryption.configuration import MAX_BYTES, GroupResource, parse, read_document

# Report of a cluster about its encryption at rest: the servers, and the keys of each resource.

PATH = "/mooring/v1/encryption"
NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True)
class EncryptionOverview:
    """Servers that are running, and the resources that one of them reports."""

    servers: Sequence[Obj]
    resources: Sequence[Obj]

    @property
    def stale(self) -> int:
        """Values that another key than the first has written."""
        return sum(one["stale"] for one in self.resources)

    @property
    def unreadable(self) -> int:
        """Values that no key decrypts."""
        return sum(one["unreadable"] for one in self.resources)


async def fetch_servers(client: ClusterClient, now: datetime) -> tuple[Obj, ...]:
    """Return the Leases of the servers that are running."""
    listed = await client.list("leases", NAMESPACE, label_selector=keychange.SERVER_LABEL)
    return keychange.live_servers(listed.items, now)


async def check_server(client: ClusterClient) -> None:
    """Raise NotMooringError for another API server, which does not report how it encrypts."""
    await check_is_mooring(
        client, "reports its encryption at rest; elsewhere look at --encryption-provider-config of each kube-apiserver"
    )


async def fetch(client: ClusterClient, now: datetime) -> EncryptionOverview:
    """Return the report. Raises ConfigError for a server that has none."""
    try:
        found = await client.get_path(PATH)
    except NotFoundError:
        raise ConfigError("this server does not report its encryption at rest; is it an older Mooring?") from None
    return EncryptionOverview(await fetch_servers(client, now), found["resources"])


def server_rows(report: EncryptionOverview) -> list[tuple[str, str, str]]:
    """Return a row for each server: its identity, the hash of its file, and whether it follows changes."""
    rows = []
    for lease in report.servers:
        notes = lease["metadata"].get("annotations") or {}
        rows.append(
            (
                lease["spec"].get("holderIdentity") or lease["metadata"]["name"],
                notes.get(keychange.HASH_ANNOTATION, "")[:19],
                "yes" if notes.get(keychange.RELOAD_ANNOTATION) == "true" else "no",
            )
        )
    return sorted(rows)


def resource_rows(report: EncryptionOverview) -> list[tuple[str, ...]]:
    """Return a row for each key of each resource: how many values it has written, and whether it writes now."""
    rows: list[tuple[str, ...]] = []
    for one in report.resources:
        state = "current" if not one["stale"] and not one["unreadable"] else f"{one['stale']} stale"
        if one["unreadable"]:
            state += f", {one['unreadable']} unreadable"
        keys = ", ".join(f"{key}: {count}" for key, count in sorted(one["values"].items()))
        rows.append((one["resource"], one["writes"], keys or "<none>", state))
    return rows


# `mooring secrets-encryption status`: show the servers' files, and which keys have encrypted how many values.


@click.command("status")
@output_option(*REPORTED)
@cluster_options
def status(output: str, chosen: ChosenCluster) -> None:
    """Show which file each server uses, and which provider and key wrote how many values of each resource.

    A value is stale when another key than the first one has written it. `mooring secrets-encryption rotate` writes it again.
    """

    async def overview(client: ClusterClient) -> EncryptionOverview:
        await check_server(client)
        return await fetch(client, chosen.clock.now())

    found = chosen.run_with_retries(overview)
    if output in ("json", "yaml"):
        servers = [
            {"server": server, "configHash": config_hash, "automaticReload": reloads == "yes"}
            for server, config_hash, reloads in server_rows(found)
        ]
        printed.print_document({"servers": servers, "resources": list(found.resources)}, output)
        return
    if found.servers:
        printed.print_table(("SERVER", "FILE", "RELOADS"), server_rows(found))
        echo("")
    if not found.resources:
        echo("No resource is encrypted: give servers --encryption-provider-config.", err=True)
        return
    printed.print_table(("RESOURCE", "WRITES WITH", "VALUES", "STATE"), resource_rows(found))


# `mooring secrets-encryption rotate`: replace the keys that encrypt stored objects, while servers run.
#
# Rules kept here:
# * Each step waits until every server that is running uses the file: no server meets a value that it cannot read.
# * The name of the new key stands in a file beside the configuration until the end. A command that was interrupted is started
#   again, and goes on with that key; every step is harmless when it is repeated.
# * Objects are written back unchanged, with their resourceVersion: an object that somebody changes meanwhile is encrypted by that
#   change. Values that are current already are not stored again.

LOOK_SECONDS = 0.5
"""Between two looks at the servers; they look at the file every second."""
ROUNDS = 5
"""Times that stale values are looked for: objects that are written meanwhile are stale only if they were written before a server
had the new key."""
CONCURRENT = 8
"""Objects that are written at a time: half of what one user's requests may be, so that others are served."""
SHOWN_FAILURES = 10


@dataclass(frozen=True, slots=True)
class EncryptionFile:
    """The configuration file and the file that names the new key."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path.with_name(f"{self.path.name}.rotation")

    def read(self) -> bytes:
        return read_limited(self.path, MAX_BYTES + 1)

    def document(self) -> Obj:
        """Return the content, checked. Raises ConfigError."""
        data = self.read()
        parse(data, str(self.path))
        return read_document(data, str(self.path))

    def write(self, document: Obj) -> None:
        """Replace the content, unless it is the same. Raises ConfigError."""
        if document == self.document():
            return
        data = encode_yaml(document)
        parse(data, str(self.path))
        write_atomic(self.path, data)

    @property
    def hash(self) -> str:
        return f"sha256:{hashlib.sha256(self.read()).hexdigest()}"

    def new_key(self, clock: Clock) -> str:
        """Return the name of the new key: that of an interrupted command, else a new one, which is noted first."""
        if self.journal.exists():
            try:
                name = json.loads(read_limited(self.journal))["key"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ConfigError(f"{self.journal} is damaged: delete it, and start again") from None
            echo(f"Going on with the key {name} of an interrupted rotation.", err=True)
            return str(name)
        name = keychange.key_name(clock.now())
        # Before the configuration has the key.
        write_atomic(self.journal, json.dumps({"key": name}).encode())
        return name


@click.command("rotate")
@click.option(
    "--encryption-provider-config", "file", metavar="FILE", required=True, envvar="MOORING_ENCRYPTION_PROVIDER_CONFIG",
    help="The file that the servers use. Comments in it are lost.",
)  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Remove the old keys without a question.")
@click.option(
    "--wait", type=DURATION, default="5m", show_default=True, help="Time limit for servers to use a changed file."
)
@changing_options
def rotate(file: str, yes: bool, wait: timedelta, chosen: ChosenCluster) -> None:
    """Replace the keys of aescbc, aesgcm and secretbox that encrypt stored objects.

    Adds a new key, writes with it, encrypts all objects again, and removes the old keys. Servers need
    --encryption-provider-config-automatic-reload. On several machines, copy the file to each when the command asks for it.
    A command that was interrupted goes on when it is started again.
    """
    place = EncryptionFile(Path(file))

    async def work(client: ClusterClient) -> None:
        # Before the first change of the file: the server must be reachable, and be one that can tell who uses the file.
        await chosen.retry(lambda: client.get_path("/version"))
        await check_server(client)
        await _rotate(_Rotation(place, client, chosen.clock, wait), lambda: yes or _confirmed(place))

    chosen.run(work)


def _confirmed(place: EncryptionFile) -> bool:
    return click.confirm(f"Every value is encrypted by the new key. Remove the old keys from {place.path}?", err=True)


@dataclass(frozen=True, slots=True)
class _Rotation:
    """Connection and settings that the steps of one rotation use."""

    place: EncryptionFile
    client: ClusterClient
    clock: Clock
    wait: timedelta


async def _rotate(rotation: _Rotation, may_remove: Callable[[], bool]) -> None:
    place = rotation.place
    # Before anything is written.
    keychange.added(place.document(), "check", secrets.token_bytes)
    name = place.new_key(rotation.clock)
    # For reading alone at first. A server that writes with a key that another one does not have makes values that it
    # cannot read.
    place.write(keychange.added(place.document(), name, secrets.token_bytes))
    await _until_used(rotation, f"The key {name} is added: servers can read with it.")
    # Once every server can read with it.
    place.write(keychange.promoted(place.document(), name))
    await _until_used(rotation, f"The key {name} is the first: servers write with it.")
    # Once every server writes with it, so that no value of an old key is added behind this pass.
    await _encrypt_again(rotation)
    if not may_remove():
        raise ConfigError("the old keys are still in the file; start the command again to remove them")
    # Only after all values are of the new key: a value of a removed key is lost.
    place.write(keychange.reduced(place.document(), name))
    await _until_used(rotation, "The old keys are removed.")
    # Last: a command that was interrupted before goes on with the same key.
    place.journal.unlink(missing_ok=True)


async def _until_used(rotation: _Rotation, done: str) -> None:
    """Return once every running server uses the file as it is now. Raises ConfigError after the time limit."""
    wanted, shown = rotation.place.hash, ""
    deadline = rotation.clock.monotonic() + rotation.wait.total_seconds()
    while True:
        servers = await fetch_servers(rotation.client, rotation.clock.now())
        behind = keychange.servers_behind(servers, wanted)
        if servers and not behind:
            echo(done)
            return
        waiting = (
            f"Waiting for {len(behind)} of {len(servers)} servers to use {rotation.place.path} as it is now: {', '.join(behind)}"
            if servers
            else "Waiting for a server that uses a file: is --encryption-provider-config given to it?"
        )
        if waiting != shown and shown:
            echo(waiting, err=True)
        shown = waiting
        if rotation.clock.monotonic() > deadline:
            raise ConfigError(f"{waiting}; then start the command again")
        await rotation.clock.sleep(LOOK_SECONDS)


async def _encrypt_again(rotation: _Rotation) -> None:
    """Write every stale value again. Raises ConfigError when some could not be."""
    failures: list[str] = []
    for _ in range(ROUNDS):
        found = await fetch(rotation.client, rotation.clock.now())
        # Such values may be of a key that would be removed.
        if found.unreadable:
            raise ConfigError(
                f"{found.unreadable} values cannot be decrypted: see mooring secrets-encryption status. The old keys are kept"
            )
        if not found.stale:
            echo("Every value is encrypted by its first key.")
            return
        failures = await _write_stale(rotation.client, found)
        if failures:
            break
    for failure in failures[:SHOWN_FAILURES]:
        echo(failure, err=True)
    raise ConfigError(
        "some values are not encrypted by the first key yet: start the command again. The old keys are kept"
    )


async def _write_stale(client: ClusterClient, found: EncryptionOverview) -> list[str]:
    """Write the objects of resources that have stale values; return the failures."""
    failures: list[str] = []
    resources = {GroupResource(one.group, one.plural): one for one in RESOURCES}
    by_name = {str(known): resource for known, resource in resources.items()}
    for one in found.resources:
        resource = by_name.get(one["resource"])
        if not one["stale"] or resource is None:
            continue
        items = (await client.list(resource)).items
        with click.progressbar(length=len(items), label=f"Encrypting {one['resource']}") as bar:
            for start in range(0, len(items), CONCURRENT):
                run = items[start : start + CONCURRENT]
                failures += await _write_all(client, resource, run)
                bar.update(len(run))
    return failures


async def _write_all(client: ClusterClient, resource: Resource, items: Sequence[Obj]) -> list[str]:
    async def write(item: Obj) -> str:
        try:
            await client.update(resource, item)
        except (NotFoundError, ConflictError):
            # Deleted, or written by somebody else, with the new key.
            return ""
        except ApiError as error:
            return f"{resource.plural} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}: {error}"
        return ""

    return [problem for problem in await asyncio.gather(*map(write, items)) if problem]
