"""`mooring node list`, `show` and `delete`: the machines of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from mooring.api.mooring.membership import MAY_BE_SILENT, NODES, has_ended, is_terminating, may_be_silent
from mooring.api.mooring.nodeidentity import uses_of
from mooring.api.mooring.uniqueness import RESOLVED, condition_of
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli import printing as printed
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import VALID, Inventory, KnownCertificate
from mooring.cli.cluster import ChosenCluster, cluster_options, ending_options, printed_deletions
from mooring.cli.options.flags import LISTED, NODE, SHOWN, output_option
from mooring.cli.printing import echo, token_cell
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import NotMooringError
from mooring.clock import human_duration, parse_rfc3339
from mooring.duration import format_duration
from mooring.errors import ConfigError, ForbiddenError, NotFoundError

# Machines of a cluster, as their Nodes and NodeIdentities show them.
#
# Rules kept here:
# * A machine has a Node, or a NodeIdentity whose Node was deleted or never registered. With another Kubernetes API server, or for
#   a user who may not read NodeIdentities, only Nodes are known.
# * The certificate of a machine is the one that ends last of those that the server accepts.

READY, NOT_READY, LOST, DELETING, NO_NODE, ENDED = "Ready", "NotReady", "Lost", "Deleting", "NoNode", "Ended"
"""States of a machine. Lost: nothing was heard of it for the grace period of its heartbeat. NoNode: a member that registered no
Node. Ended: its Node was deleted, and the server rejects its certificate."""
NEVER_REGISTERED = "a certificate was issued for this name, and no machine has registered its Node"
TWO_MACHINES = "two machines use this identity"
_TOLD = ("status", "reason", "message", "lastTransitionTime")
"""Fields of the condition that are shown."""
STATES = (READY, NOT_READY, LOST, DELETING, NO_NODE, ENDED)


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """One machine."""

    name: str
    node: Obj | None
    identity: Obj | None
    certificates: Sequence[KnownCertificate] = ()

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.node is None:
            return ENDED if has_ended(self.identity, None) else NO_NODE
        if is_terminating(self.node):
            return DELETING
        ready = self.ready.get("status")
        return READY if ready == "True" else NOT_READY if ready == "False" else LOST

    @property
    def end_reason(self) -> str:
        """Why the membership ended, where the cluster recorded it; "" for a member."""
        return str(spec_of(self.identity).get("endReason", "")) if self.identity and self.state == ENDED else ""

    @property
    def described_state(self) -> str:
        """The state for people, with the reason of an end."""
        return ": ".join(filter(None, (self.state, self.end_reason)))

    @property
    def ready(self) -> Mapping[str, Any]:
        """The condition Ready of the Node, empty without one."""
        conditions = ((self.node or {}).get("status") or {}).get("conditions") or []
        return next((one for one in conditions if one.get("type") == "Ready"), {})

    @property
    def message(self) -> str:
        """Explanation of the state, "" for most machines."""
        return NEVER_REGISTERED if self.state == NO_NODE else str(self.ready.get("message") or "")

    @property
    def may_be_silent(self) -> bool:
        """True for a machine that an administrator has exempted from removal for silence."""
        return self.node is not None and may_be_silent(self.node)

    @property
    def duplicate(self) -> Obj:
        """The condition DuplicateIdentity of the record, empty for a machine that is alone with its identity."""
        condition = condition_of(self.identity) if self.identity is not None else {}
        return condition if condition.get("reason") not in (None, RESOLVED) else {}

    @property
    def is_duplicate(self) -> bool:
        """True while two machines use the identity."""
        return self.duplicate.get("status") == "True"

    @property
    def certificate(self) -> KnownCertificate | None:
        """The certificate in use; None where none is known that the server accepts."""
        accepted = [one for one in self.certificates if one.state == VALID]
        return max(accepted, key=lambda one: one.expires, default=None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses that the Node reports."""
        found = ((self.node or {}).get("status") or {}).get("addresses") or []
        return tuple(one["address"] for one in found if one.get("address") and one.get("type") != "Hostname")

    @property
    def created(self) -> str:
        """When the Node was made, else the record of its name."""
        made: str = (self.node or self.identity or {"metadata": {}})["metadata"].get("creationTimestamp", "")
        return made

    def document(self) -> dict[str, Any]:
        """Return the machine for JSON and YAML. Empty fields are left out."""
        spec = spec_of(self.identity) if self.identity is not None else {}
        found = {
            "name": self.name,
            "state": self.state,
            "endReason": self.end_reason,
            "message": self.message,
            "addresses": list(self.addresses),
            "nodeUID": (self.node or {"metadata": {}})["metadata"].get("uid", ""),
            "created": self.created,
            "token": spec.get("token", ""),
            "joinRule": spec.get("joinRule", ""),
            "from": spec.get("sourceAddress", ""),
            "mayBeSilent": self.may_be_silent,
            "silenceSeconds": int(spec.get("silenceSeconds") or 0),
            "duplicateIdentity": {one: self.duplicate[one] for one in _TOLD if one in self.duplicate},
            "certificates": [one.document() | self._use(one) for one in self.certificates],
        }
        return {key: value for key, value in found.items() if value}

    def described_use(self, certificate: KnownCertificate) -> str:
        """Return the key and the first use of a certificate in words; "" for one that was not used."""
        use = self._use(certificate)
        source = f" from {use['firstUsedFrom']}" if "firstUsedFrom" in use else ""
        return f", key {certificate.public_key}, first used {use['firstUsed']}{source}" if use else ""

    def _use(self, certificate: KnownCertificate) -> dict[str, str]:
        """Return since when, and from where, the machine uses a certificate; empty where that was not seen."""
        uses = uses_of(self.identity) if self.identity is not None else []
        use = next((one for one in uses if one["publicKey"] == certificate.public_key), {})
        named = (("firstUsed", "firstUsed"), ("firstUsedFrom", "sourceAddress"))
        return {name: use[field] for name, field in named if use.get(field)}


async def fetch(
    client: ClusterClient, now: datetime, *, with_issuance_log: bool = True
) -> tuple[tuple[KnownMachine, ...], Inventory]:
    """Return the machines by name, and the inventory that was read. Raises ApiError, PeerError."""
    nodes = {one["metadata"]["name"]: one for one in (await client.list(NODES)).items}
    try:
        known = await inventory.fetch(client, with_issuance_log=with_issuance_log)
    except (NotMooringError, ForbiddenError):
        known = Inventory(identities=(), entries=(), nodes=tuple(nodes.values()))
    identities = {one["metadata"]["name"]: one for one in known.identities}
    certificates: dict[str, list[KnownCertificate]] = {}
    for one in known.certificates(now):
        certificates.setdefault(one.node, []).append(one)
    names = sorted(nodes.keys() | identities.keys())
    return tuple(
        KnownMachine(name, nodes.get(name), identities.get(name), certificates.get(name, ())) for name in names
    ), known


def until(text: str, now: datetime) -> str:
    """Return how long a moment is away, as `in 3d` or `3d ago`; `<unknown>` without one."""
    if not text:
        return "<unknown>"
    left = parse_rfc3339(text) - now
    return f"in {human_duration(left)}" if left > timedelta(0) else f"{human_duration(-left)} ago"


def age(text: str, now: datetime) -> str:
    """Return how long ago a moment was."""
    return human_duration(now - parse_rfc3339(text)) if text else "<unknown>"


# `mooring node list`: list the machines of a cluster.

HEADERS = ("NAME", "STATE", "CERTIFICATE ENDS", "TOKEN", "AGE")
WIDE = ("ADDRESSES", "FROM", "KEY")
_NONE = "<none>"


@click.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also machines whose membership has ended.")
@click.option("--state", type=click.Choice(STATES), help="Only machines in this state.")
@output_option(*LISTED)
@cluster_options
def list_nodes(show_all: bool, state: str | None, output: str, chosen: ChosenCluster) -> None:
    """List the machines of a cluster: their state, and when their certificates end."""
    now = chosen.clock.now()
    found, _ = chosen.run_with_retries(lambda client: fetch(client, now))
    wanted = [one for one in found if (one.state == state if state else show_all or one.state != ENDED)]
    if output in ("json", "yaml"):
        items = [one.document() for one in wanted]
        printed.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}, output)
    elif output == "name":
        for one in wanted:
            echo(f"node/{one.name}")
    elif not wanted:
        echo("No machines found.", err=True)
    else:
        print_table(wanted, now, is_wide=output == "wide")
        if any(one.state == NO_NODE for one in wanted):
            echo(f"{NO_NODE}: {NEVER_REGISTERED}.", err=True)
        for one in wanted:
            if one.is_duplicate:
                echo(f"{one.name}: {TWO_MACHINES}: mooring node show {one.name}", err=True)


def print_table(found: Sequence[KnownMachine], now: datetime, *, is_wide: bool) -> None:
    """Print machines as a table."""
    rows = [(*_cells(one, now), *(_wide_cells(one) if is_wide else ())) for one in found]
    printed.print_table((*HEADERS, *(WIDE if is_wide else ())), rows)


def _cells(one: KnownMachine, now: datetime) -> tuple[str, ...]:
    certificate = one.certificate
    ends = until(certificate.expires, now) if certificate is not None else _NONE
    spec = spec_of(one.identity) if one.identity is not None else {}
    token = token_cell(spec.get("token", ""), spec.get("joinRule", ""))
    return one.name, one.described_state, ends, token or _NONE, age(one.created, now)


def _wide_cells(one: KnownMachine) -> tuple[str, ...]:
    source = spec_of(one.identity).get("sourceAddress", "") if one.identity is not None else ""
    key = one.certificate.public_key if one.certificate is not None else ""
    return ",".join(one.addresses) or _NONE, source or _NONE, key or _NONE


# `mooring node show`: show what a cluster knows of a machine.


@click.command("show")
@click.argument("name", nargs=-1, type=NODE, required=True, shell_complete=complete_node)
@output_option(*SHOWN)
@cluster_options
def show(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Show machines: their state, addresses, and certificates."""
    now = chosen.clock.now()
    found, _ = chosen.run_with_retries(lambda client: fetch(client, now))
    known = {one.name: one for one in found}
    if missing := [one for one in name if one not in known]:
        raise ConfigError(f'there is no machine "{missing[0]}" in this cluster: mooring node list --all lists them')
    wanted = [known[one] for one in dict.fromkeys(name)]
    if output in ("json", "yaml"):
        items = [one.document() for one in wanted]
        document = items[0] if len(items) == 1 else {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
        printed.print_document(document, output)
        return
    for number, one in enumerate(wanted):
        if output == "name":
            echo(f"node/{one.name}")
            continue
        if number:
            echo()
        echo(*_lines(one, now))


def _lines(one: KnownMachine, now: datetime) -> list[str]:
    found = one.document()
    silence = timedelta(seconds=0 if one.may_be_silent else found.get("silenceSeconds", 0))
    labelled = [
        ("Name", one.name),
        ("State", ": ".join(filter(None, (one.described_state, found.get("message"))))),
        ("Addresses", ", ".join(one.addresses)),
        ("Created", f"{one.created}, {age(one.created, now)} ago" if one.created else ""),
        ("Node uid", found.get("nodeUID", "")),
        ("Token", found.get("token", "")),
        ("Join rule", found.get("joinRule", "")),
        ("Asked from", found.get("from", "")),
        ("Ephemeral", f"the membership ends after {format_duration(silence)} of silence" if silence else ""),
        ("Exempt", f"not removed for silence ({MAY_BE_SILENT})" if one.may_be_silent else ""),
        ("Duplicate", f"{one.duplicate['reason']}: {one.duplicate['message']}" if one.duplicate else ""),
        *(
            (
                "Certificate",
                f"{known.serial_number}, {known.state}{f' ({known.reason})' if known.reason else ''}, ends "
                f"{known.expires or '<unknown>'}, {known.user}{one.described_use(known)}",
            )
            for known in one.certificates
        ),
    ]
    return [f"{label + ':':<14}{value}" for label, value in labelled if value]


# `mooring node delete`: delete Nodes, which ends the membership of their machines.


@click.command("delete")
@click.argument("name", nargs=-1, type=NODE, required=True, shell_complete=complete_node)
@output_option(*SHOWN)
@ending_options
def delete(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Delete Nodes. With a Mooring server this ends the membership of their machines: their certificates are refused at once.

    A server with --node-deletion=reregisters, and another Kubernetes API server, go on accepting the certificates. The first
    refuses them after mooring certs revoke --node.
    """

    async def work(client: ClusterClient) -> str:
        with printed_deletions(output) as report:
            for one in name:
                try:
                    await chosen.retry(partial(client.delete, NODES, one))
                except NotFoundError:
                    revoke = f"mooring certs revoke --node {one}"
                    raise ConfigError(
                        f'there is no Node "{one}"; if a machine of this name never registered one, run {revoke}'
                    ) from None
                report(f"node/{one}", f"node/{one} deleted")
        return await inventory.unenforced(client)

    if unenforced := chosen.run(work):
        echo(f"warning: {unenforced}.", err=True)
