"""`mooring issuance list` and `mooring issuance checkpoint`: records of issued certificates."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import timedelta

import click

from mooring.api.mooring.lineagerecord import PLURAL, entries_of
from mooring.api.mooring.nodeidentity import PLURAL as NODE_IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster, printing
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.flags import LISTED, NODE, REPORTED, TOKEN, output_option, usage
from mooring.cli.printing import echo, print_document, token_cell
from mooring.cli.valuecompletion import complete_node, complete_token
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, parse_rfc3339, rfc3339
from mooring.errors import ConfigError, NotFoundError
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.signers import SIGNERS
from mooring.trust.issuancelog import TRIMMED, VerifiedIssuanceLog, verify
from mooring.trust.k3s.token import bootstrap_token_id

# Records of the issuance log of a cluster, for the commands that read them.

REQUESTS = "certificatesigningrequests"
_SIGNER = "csrsigner"
"""The controller that writes records; mooring controllers runs it by name only."""


async def fetch_records(client: ClusterClient, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    """Return all records. Raises PeerError for a cluster without the kind."""
    try:
        return await _listed(client, PLURAL, clock, limit)
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL, controller=_SIGNER) from None


async def fetch_requests(client: ClusterClient, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    """Return all requests. Fetch them before the records: a certificate is recorded first, and published in its request then."""
    return await _listed(client, REQUESTS, clock, limit)


def certificates_in(requests: Sequence[Obj], since: str, trimmed: str) -> list[tuple[str, str]]:
    """Return (serial number, description) of the certificates that must be recorded: those in requests that were created at
    `since` or later, and that ended after `trimmed`."""
    found: list[tuple[str, str]] = []
    for csr in requests:
        issued, spec = (csr.get("status") or {}).get("certificate"), csr.get("spec") or {}
        if not issued or spec.get("signerName") not in SIGNERS:
            continue
        if csr["metadata"].get("creationTimestamp", "") < since:
            continue  # from before the issuance log began
        try:
            leaf = certificates(base64.b64decode(issued))[0]
        except (PkiError, ValueError):
            continue  # no certificate that a client could use
        if rfc3339(leaf.not_valid_after_utc) <= trimmed:
            continue
        found.append((f"{leaf.serial_number:x}", f"the certificate in the request {csr['metadata']['name']}"))
    return found


async def fetch_identities(client: ClusterClient, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    """Return all node identities; none of a cluster without the kind."""
    try:
        return await _listed(client, NODE_IDENTITIES, clock, limit)
    except NotFoundError:
        return []


def claims_in(identities: Sequence[Obj], trimmed: str) -> list[tuple[str, str]]:
    """Return (serial number, description) of the certificates in node identities that ended after `trimmed`.

    An identity is written before its certificate is signed, so that one may lack a record because it was never issued, and says a
    few minutes more than the certificate (BACKDATE).
    """
    return [
        (key["serialNumber"], f"a certificate of the node {identity['metadata']['name']}")
        for identity in identities
        for key in keys_of(identity)
        if key.get("serialNumber") and rfc3339(parse_rfc3339(key["notAfter"]) - BACKDATE) > trimmed
    ]


async def _listed(client: ClusterClient, plural: str, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    async def ask() -> Sequence[Obj]:
        return (await client.list(plural)).items

    return await cluster.retry(ask, clock, limit)


def require_whole(verified: VerifiedIssuanceLog) -> None:
    """Raise ConfigError for a chain with a fault."""
    for fault in verified.faults:
        raise ConfigError(f"record {fault.record}: {fault.message}; see mooring issuance verify")


# `mooring issuance list`: list the certificates that were issued, with what obtained them.

COLUMNS = {"TIME": "time", "SUBJECT": "subject", "TOKEN": "token", "SOURCE": "sourceAddress"}
WIDE = {"SERIAL": "serialNumber", "REQUESTER": "requester", "EXPIRES": "notAfter", "TOKEN SUBJECT": "identitySubject"}
"""Columns, each with the field of an entry."""


@click.command("list")
@click.option(
    "--token",
    type=TOKEN,
    default="",
    metavar="TOKEN",
    help="Only certificates that were requested with this token: its id, or the whole token.",
    shell_complete=complete_token,
)
@click.option(
    "--node",
    type=NODE,
    default="",
    metavar="NAME",
    help="Only client certificates of this node.",
    shell_complete=complete_node,
)
@click.option("--serial", default="", metavar="HEX", help="Only the certificate with this serial number.")
@output_option(*LISTED)
@cluster_options
def list_entries(token: str, node: str, serial: str, output: str, chosen: ChosenCluster) -> None:
    """List the certificates that were issued.

    `mooring issuance verify` says whether the list can be trusted.
    """
    wanted = {"node": node}
    with usage():
        # A value that names nothing would answer that nothing was issued.
        if token:
            wanted["token"] = bootstrap_token_id(token)
        if serial:
            from mooring.cli.certs.inventory import parse_serial_number  # needed by few command lines

            wanted["serialNumber"] = parse_serial_number(serial)
    records = chosen.run(lambda client: fetch_records(client, chosen.clock, chosen.timeout))
    entries = (entry for record in records for entry in entries_of(record))
    until = max((entry.get("notAfter", "") for entry in entries if entry.get("event") == TRIMMED), default="")
    if until:
        echo(trim_notice(until), err=True)
    print_list(list(_entries(records, {name: value for name, value in wanted.items() if value})), output)


def trim_notice(until: str) -> str:
    """Return what a person must know of a log that was trimmed, whose missing certificates ended by `until`."""
    return f"The log was trimmed: certificates that ended by {until} may be missing."


def _entries(records: Iterable[Obj], wanted: Obj) -> Iterable[Obj]:
    for record in records:
        for entry in entries_of(record):
            if entry.get("event") != TRIMMED and all(entry.get(name) == value for name, value in wanted.items()):
                yield {**entry, "record": record["metadata"]["name"]}


def print_list(entries: Sequence[Obj], form: str) -> None:
    """Print entries in one of the forms of a list."""
    if form in ("json", "yaml"):
        printing.print_document({"kind": "LineageEntryList", "items": list(entries)}, form)
    elif form == "name":
        echo(*(entry.get("serialNumber", "") for entry in entries))
    elif not entries:
        echo("No certificates found.", err=True)
    else:
        columns = COLUMNS | (WIDE if form == "wide" else {})
        printing.print_table(
            tuple(columns),
            [[_cell(entry, field) or "<none>" for field in columns.values()] for entry in entries],
        )


def _cell(entry: Obj, field: str) -> str:
    text: str = entry.get(field, "")
    return token_cell(text, entry.get("joinRule", "")) if field == "token" else text


# `mooring issuance checkpoint`: print the end of the chain, to be kept elsewhere.


@click.command("checkpoint")
@output_option(*REPORTED)
@cluster_options
def checkpoint(output: str, chosen: ChosenCluster) -> None:
    """Print the end of the chain of records, after verifying it.

    Keep the line where an attacker with the database cannot change it. `mooring issuance verify --checkpoint` then finds every
    change of the records up to here.
    """
    verified = verify(chosen.run(lambda client: fetch_records(client, chosen.clock, chosen.timeout)))
    require_whole(verified)
    if not verified.records:
        raise ConfigError(
            "there are no records yet: the first certificate that the controllers sign makes the first one"
        )
    head = verified.head
    if output == "text":
        echo(str(head))
    else:
        print_document({"checkpoint": str(head), "hash": head.hash, "sequence": head.sequence}, output)
