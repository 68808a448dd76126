"""Warnings about machines whose serving certificates have names of API servers, for `mooring certs list`.

Rules kept here:
* The names of API servers, and the machines that have certificates for them, follow from the same objects as in the server
  (`mooring.controllers.certificates.names.nameevidence`).
* The serial numbers are those of the serving certificates in the lineage that have not ended. It does not say which names each has.
* A user who may not read the names of the servers gets no warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import click

from mooring.api.mooring.authorizedmachine import PLURAL as MACHINES
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.view import FixedView
from mooring.cli.certs import ending
from mooring.cli.certs.ending import Ends
from mooring.cli.certs.inventory import KINDS, STATES, Inventory, KnownCertificate, readable_objects
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.flags import LISTED, NODE, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.clock import human_duration, parse_rfc3339
from mooring.controllers.certificates.names.nameevidence import (
    CONFIG_MAPS,
    ENDPOINTS,
    NODES,
    PUBLISHED_NAMESPACE,
    SERVICES,
    Reserved,
    conflicts,
)
from mooring.errors import UnreadableObjectError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, KUBELET_SERVING
from mooring.trust.discovery import clusterinfo


async def serving_name_warnings(client: ClusterClient, known: Inventory, now: datetime) -> Sequence[str]:
    """Return a sentence for each machine with a serving certificate for a name of an API server."""
    published = await readable_objects(client, CONFIG_MAPS, PUBLISHED_NAMESPACE)
    if published is None:
        return ()
    views = {
        CONFIG_MAPS: FixedView(
            [*published, *(await readable_objects(client, CONFIG_MAPS, clusterinfo.NAMESPACE) or ())]
        ),
        SERVICES: FixedView(await readable_objects(client, SERVICES, "default") or ()),
        ENDPOINTS: FixedView(await readable_objects(client, ENDPOINTS, "default") or ()),
        MACHINES: FixedView(await readable_objects(client, MACHINES) or ()),
        NODES: FixedView(known.nodes or ()),
        IDENTITIES: FixedView(known.identities),
    }
    try:
        names = Reserved().api_servers(views, now)
    except UnreadableObjectError as error:
        return (f"{error}: machines with certificates for names of API servers are not named here",)
    return [
        f"{conflict}. Serial numbers of its serving certificates: {', '.join(_serials(conflict.node, known, now)) or 'unknown'}"
        for conflict in conflicts(names, views, now)
    ]


def _serials(node: str, known: Inventory, now: datetime) -> Iterator[str]:
    """Yield the serial numbers of the serving certificates of a node that have not ended."""
    for number, entry in known.issued.items():
        subject = {KUBELET_SERVING: f"{NODE_PREFIX}{node}", K3S_KUBELET_SERVING: node}.get(entry.get("signer", ""))
        if subject and entry.get("subject") == subject and parse_rfc3339(entry["notAfter"]) > now:
            yield number


# `mooring certs list`: list the certificates that a cluster knows, with their state.
#
# Rules kept here:
# * Known are the client certificates of machines (NodeIdentity), their serving certificates and those of users (lineage), those
#   of the servers in the kubeconfig, and those on the denylist. What the user may not read is a warning.
# * A machine that has a serving certificate for a name of an API server is a warning, for a user who may read what tells it.
# * The table fits 80 columns; `-o wide` has the others.

HEADERS = ("NAME", "KIND", "SERIAL", "EXPIRES", "STATE")
WIDE = ("REASON", "USER", "TOKEN", "FROM", "RENEWED", "PUBLIC KEY", "REVOKED BY")
_NONE = "<none>"


@click.command("list")
@click.option(
    "--node",
    type=NODE,
    default="",
    metavar="NAME",
    help="Only certificates of this node.",
    shell_complete=complete_node,
)
@click.option("--kind", type=click.Choice(KINDS), help="Only certificates of this kind.")
@click.option("--state", type=click.Choice(STATES), help="Only certificates in this state.")
@output_option(*LISTED)
@cluster_options
def list_certificates(node: str, kind: str | None, state: str | None, output: str, chosen: ChosenCluster) -> None:
    """List the certificates of machines, users and the server, with their state.

    A certificate of a user, or for the HTTPS port of a machine, is listed until 30 days after its end, and that of a Pod until
    its end; mooring audit list has all.
    """
    now = chosen.clock.now()

    async def fetch(client: ClusterClient) -> tuple[Ends, Inventory, Sequence[str]]:
        ends, known = await chosen.retry(lambda: ending.fetch(client, chosen.selected, now))
        return ends, known, await chosen.retry(lambda: serving_name_warnings(client, known, now))

    ends, known, warnings = chosen.run(fetch)
    found = [
        one
        for one in ends.certificates
        if (not node or one.node == node) and kind in (None, one.kind) and state in (None, one.state)
    ]
    unlisted = [f"not listed: {one}" for one in ends.unreadable]
    for warning in (*([known.warning] if known.warning else ()), *unlisted, *warnings):
        echo(f"warning: {warning}", err=True)
    print_list(found, output, now)


def print_list(found: Sequence[KnownCertificate], form: str, now: datetime) -> None:
    """Print certificates in one of the forms of a list."""
    if form in ("json", "yaml"):
        items = [one.document() for one in found]
        output.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}, form)
    elif form == "name":
        for one in found:
            echo(one.serial_number)
    elif not found:
        echo("No certificates found.", err=True)
    else:
        is_wide = form == "wide"
        rows = [(*_cells(one, now), *(_wide_cells(one, now) if is_wide else ())) for one in found]
        output.print_table((*HEADERS, *(WIDE if is_wide else ())), rows)


def _cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    return one.name or "<unknown>", one.kind, one.serial_number, _expiry(one.expires, now), one.state


def _wide_cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    found = (one.reason, one.user, one.token, one.source, _renewal(one, now), one.public_key, one.revoked_by)
    return tuple(cell or _NONE for cell in found)


def _renewal(one: KnownCertificate, now: datetime) -> str:
    """Return when the next certificate took its place."""
    if not one.renewed_at:
        return "<yes>" if one.is_renewed else ""
    return f"{human_duration(now - parse_rfc3339(one.renewed_at))} ago"


def _expiry(text: str, now: datetime) -> str:
    if not text:
        return "<unknown>"
    left = parse_rfc3339(text) - now
    return f"in {human_duration(left)}" if left > timedelta(0) else f"{human_duration(-left)} ago"
