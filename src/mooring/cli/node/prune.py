"""`mooring node prune`: delete the Nodes of machines that have been silent for a long time.

Rules kept here:
* A machine is silent while the Ready condition of its Node is Unknown, and since the last transition of that condition. A Node that
  never had the condition is silent since its creation. Times are compared with the clock of the server.
* Nodes that are being deleted, and those with the annotation MAY_BE_SILENT, are left out.
* Nodes are listed before the question. Without a terminal --yes takes its place.
* A deletion names the version of the Node that was judged. A Node that changed meanwhile is judged again, and stays when its
  machine came back. So does one whose Lease was renewed a moment ago.
* The NodeIdentity gets the reason before the Node is deleted, because that write ends the membership. The reason is removed again
  when the Node stays.
* One failure does not stop the others. A server that cannot be reached does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from mooring.api.mooring import nodeidentity
from mooring.api.mooring.membership import MAY_BE_SILENT, NODES, is_terminating, may_be_silent
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli import printing as printed
from mooring.cli.certs import inventory
from mooring.cli.cluster import ChosenCluster, changing_options
from mooring.cli.node.machines import KnownMachine, age
from mooring.cli.options.flags import DAYS, SHOWN, output_option
from mooring.cli.printing import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.node import LEASE_NAMESPACE, LEASES
from mooring.controllers.silence import silent_since
from mooring.duration import format_duration
from mooring.errors import (
    ApiError,
    ConfigError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    PeerError,
    UnauthorizedError,
)

MIN_SILENCE = timedelta(minutes=2)
"""Shortest silence. A Node counts as lost after about 50 seconds, and a machine that starts again is silent for about a minute."""
MAX_CONFLICTS = 10
"""Judgements of one Node that other programs change, as in kubectl."""
HEADERS = ("NAME", "SILENT SINCE", "SILENT FOR", "AGE", "TOKEN")

DELETED, CAME_BACK, GONE, FAILED, NOT_TRIED = "deleted", "cameBack", "gone", "failed", "notTried"
WOULD_BE_DELETED, EXEMPT = "wouldBeDeleted", "exempt"
_TEXTS = {
    DELETED: "deleted",
    WOULD_BE_DELETED: "would be deleted",
    CAME_BACK: "came back, and stays",
    EXEMPT: f"has the annotation {MAY_BE_SILENT} now, and stays",
    GONE: "was deleted by another program",
}


@dataclass(slots=True)
class SilentNode:
    """A Node that was silent when it was listed, and what became of it."""

    node: Obj
    since: datetime
    token: str = ""
    is_recorded: bool = False
    """True for a Node with a NodeIdentity, which gets the reason."""
    outcome: str = NOT_TRIED
    message: str = ""

    @property
    def name(self) -> str:
        """The name of the Node."""
        name: str = self.node["metadata"]["name"]
        return name

    @property
    def created(self) -> str:
        """When the Node was created."""
        return KnownMachine(self.name, self.node, None).created

    def document(self) -> dict[str, Any]:
        """Return the Node for JSON and YAML. Empty fields are left out."""
        fields = {
            "name": self.name,
            "uid": self.node["metadata"].get("uid", ""),
            "silentSince": rfc3339(self.since),
            "created": self.created,
            "token": self.token,
            "outcome": self.outcome,
            "message": self.message,
        }
        return {key: value for key, value in fields.items() if value}


def silence_begin(node: Obj, now: datetime) -> datetime | None:
    """Return since when the machine of a Node is silent. None for one that is heard of, and for one that is left out.

    A time of the future, or none, is not the server's: the creation of the Node is shown, and a person decides.
    """
    metadata = node["metadata"]
    if is_terminating(node) or may_be_silent(node):
        return None
    since = silent_since(node)
    if since is None or since <= now:
        return since
    return parse_rfc3339(created) if (created := metadata.get("creationTimestamp")) else None


async def find(client: ClusterClient, silence: timedelta) -> tuple[Sequence[SilentNode], datetime]:
    """Return the Nodes that have been silent for `silence`, the longest first, and the time of the server."""
    nodes = (await client.list(NODES)).items
    now = _server_time(client)
    renewed = await _renewed(client, now)
    identities = {
        identity["metadata"]["name"]: identity
        for identity in await inventory.readable_objects(client, nodeidentity.PLURAL) or ()
    }
    silent = []
    for node in nodes:
        since = silence_begin(node, now)
        if since is not None and now - since >= silence and node["metadata"]["name"] not in renewed:
            identity = identities.get(node["metadata"]["name"])
            token = spec_of(identity).get("token", "") if identity is not None else ""
            silent.append(SilentNode(node, since, token, identity is not None))
    return sorted(silent, key=lambda one: (one.since, one.name)), now


async def _renewed(client: ClusterClient, now: datetime) -> set[str]:
    """Return the machines whose Lease was renewed a moment ago: a kubelet that starts does so before it posts its status."""
    try:
        leases = (await client.list(LEASES, LEASE_NAMESPACE)).items
    except (ForbiddenError, NotFoundError):
        return set()
    return {lease["metadata"]["name"] for lease in leases if _is_of_late(lease, now)}


def _is_of_late(lease: Obj, now: datetime) -> bool:
    try:
        return abs(now - parse_rfc3339(str(spec_of(lease).get("renewTime") or ""))) < MIN_SILENCE
    except ValueError:
        return False


def _server_time(client: ClusterClient) -> datetime:
    """Return the time by the clock of the server: a clock of this machine that is ahead would make every machine silent."""
    now = client.clock.now()
    if client.server_time is None:
        return now
    date, received = client.server_time
    return date + (now - received)


@click.command("prune")
@click.option(
    "--silent",
    type=DAYS,
    required=True,
    metavar="DURATION",
    help="Shortest silence of the machines, such as 30d or 36h; at least 2m.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@output_option(*SHOWN)
@changing_options
def prune(silent: timedelta, dry_run: bool, yes: bool, output: str, chosen: ChosenCluster) -> None:
    """Delete the Nodes of machines that have been silent for so long: their Ready condition is Unknown since then.

    With a Mooring server this ends their memberships, as mooring node delete does. Lists them and asks first. A machine that comes
    back meanwhile stays. The annotation mooring.dev/may-be-silent=true keeps a Node, however long its machine is silent.
    """
    if silent < MIN_SILENCE:
        raise click.UsageError(
            f"--silent: at least {format_duration(MIN_SILENCE)}, because a machine that starts again is silent for about a minute"
        )
    found, now = chosen.run_with_retries(lambda client: find(client, silent))
    if found:
        _print_table(found, now)
        if warning := chosen.run_with_retries(inventory.unenforced):
            echo(f"warning: {warning}.", err=True)
        if not dry_run and not yes:
            _ask(len(found))
    elif output not in ("json", "yaml"):
        echo("No machine has been silent for so long.", err=True)
    try:
        if dry_run:
            for one in found:
                one.outcome = WOULD_BE_DELETED
                _report(one, output)
        elif found:
            # Lines of text are progress enough, and a bar would stand between them.
            is_bar = output in ("json", "yaml")
            with printed.progress_bar(len(found)) if is_bar else nullcontext(_no_progress) as progress:
                chosen.run(lambda client: _Pruning(client, chosen, silent).run(found, partial(_done, output, progress)))
    finally:
        # Also after an error: what was deleted is deleted.
        if output in ("json", "yaml"):
            document = {
                "kind": "NodePruneResult",
                "silent": format_duration(silent),
                "dryRun": dry_run,
                "nodes": [one.document() for one in found],
            }
            printed.print_document(document, output)
    if failed := [one.name for one in found if one.outcome == FAILED]:
        raise ConfigError(f"{len(failed)} of {len(found)} Nodes were not deleted: {', '.join(failed)}; run this again")


def _ask(count: int) -> None:
    """Ask on the terminal. Raises ConfigError unless the user agrees."""
    nodes = "this Node" if count == 1 else f"these {count} Nodes"
    # The list was printed: a script's log says what was not deleted.
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was deleted: give --yes to delete {nodes} without a terminal")
    if not click.confirm(f"Delete {nodes}?", err=True):
        raise ConfigError("nothing was deleted")


def _print_table(found: Sequence[SilentNode], now: datetime) -> None:
    """Print the Nodes on standard error: standard output has the results."""
    rows = [
        (one.name, rfc3339(one.since), age(rfc3339(one.since), now), age(one.created, now), one.token or "<none>")
        for one in found
    ]
    echo(*printed.table(HEADERS, rows).split("\n"), err=True)


def _no_progress(phase: str, done: int) -> None:
    """Show no progress."""


def _done(form: str, progress: Callable[[str, int], None], one: SilentNode, count: int) -> None:
    _report(one, form)
    progress("Nodes", count)


def _report(one: SilentNode, form: str) -> None:
    shown = f"node/{one.name}"
    if one.outcome == FAILED:
        echo(f"{shown} was not deleted: {one.message}", err=True)
    elif form == "text":
        echo(f"{shown} {_TEXTS[one.outcome]}")
    elif form == "name":
        is_result = one.outcome in (DELETED, WOULD_BE_DELETED)
        echo(shown if is_result else f"{shown} {_TEXTS[one.outcome]}", err=not is_result)


@dataclass(frozen=True, slots=True)
class _Pruning:
    client: ClusterClient
    chosen: ChosenCluster
    silence: timedelta

    async def run(self, found: Sequence[SilentNode], report: Callable[[SilentNode, int], None]) -> None:
        """Delete the Nodes one after the other. Raises PeerError, UnauthorizedError, and errors that lasted for all retries."""
        for count, one in enumerate(found, 1):
            try:
                one.outcome = await self._delete(one)
            except UnauthorizedError:
                raise
            except ApiError as error:
                if cluster.is_transient(error):
                    raise
                one.outcome, one.message = FAILED, str(error)
            report(one, count)

    async def _delete(self, one: SilentNode) -> str:
        """Delete a Node, and return what became of it. Raises ApiError, PeerError."""
        await self._record(one, nodeidentity.SILENT)
        try:
            outcome = await self._deleted(one)
        except (ApiError, PeerError):
            await self._record(one, None)
            raise
        # A server takes the reason from a member: between the two requests it may have done so. Of a Node without a record it
        # has made one at the deletion.
        if one.is_recorded or outcome == DELETED:
            await self._record(one, None if outcome in (CAME_BACK, EXEMPT) else nodeidentity.SILENT, is_recorded=True)
        return outcome

    async def _deleted(self, one: SilentNode) -> str:
        metadata = one.node["metadata"]
        if await self._is_renewed(one.name):
            return CAME_BACK
        for attempt in range(1, MAX_CONFLICTS + 1):
            version = metadata["resourceVersion"]
            call = partial(self.client.delete, NODES, one.name, uid=metadata["uid"], resource_version=version)
            try:
                await self.chosen.retry(call)
            except NotFoundError:
                return GONE
            except ConflictError:
                if attempt == MAX_CONFLICTS:
                    raise
            else:
                return DELETED
            # Another program, such as a controller that taints, may have changed the Node as well as its machine.
            try:
                node = await self.chosen.retry(partial(self.client.get, NODES, one.name))
            except NotFoundError:
                return GONE
            since = silence_begin(node, _server_time(self.client))
            if node["metadata"]["uid"] != metadata["uid"]:
                return CAME_BACK
            if is_terminating(node):
                # A finalizer holds it.
                return GONE
            if since is None:
                return EXEMPT if may_be_silent(node) else CAME_BACK
            if _server_time(self.client) - since < self.silence:
                return CAME_BACK
            metadata = node["metadata"]
        raise AssertionError("the last attempt returns or raises")

    async def _is_renewed(self, name: str) -> bool:
        """Return True when the Lease was renewed since the Nodes were listed."""
        try:
            lease = await self.chosen.retry(partial(self.client.get, LEASES, name, LEASE_NAMESPACE))
        except (ForbiddenError, NotFoundError):
            return False
        return _is_of_late(lease, _server_time(self.client))

    async def _record(self, one: SilentNode, reason: str | None, *, is_recorded: bool = False) -> None:
        """Write the reason in the NodeIdentity, where there is one that the user may write."""
        if one.is_recorded or is_recorded:
            patch = {"spec": {"endReason": reason}}
            with suppress(ApiError, PeerError):
                await self.client.patch(nodeidentity.PLURAL, one.name, patch)
