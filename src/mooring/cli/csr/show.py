"""`mooring csr show`: show the details of certificate signing requests, before and after they are decided.

Rules kept here: `-o json|yaml` prints the details (`mooring.cli.csr.details`) in one document.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import age
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.csr.details import PLURAL, QUALIFIED, csr_details
from mooring.cli.csr.difference import Before, document, fetch_before, text_lines
from mooring.cli.options.client import output_option
from mooring.cli.options.flags import REQUEST
from mooring.cli.printing import output
from mooring.cli.printing.output import echo, highlight
from mooring.cli.valuecompletion import complete_request
from mooring.client.cluster import ClusterClient
from mooring.clock import human_duration
from mooring.controllers.certificates.issuance import is_undecided

Shown = tuple[Obj, dict[str, Any], Before | None]
"""A request, its details, and what its node had before; None for a decided request and for one that is not for a node."""


@click.command("show")
@click.argument("name", nargs=-1, type=REQUEST, required=True, shell_complete=complete_request)
@output_option("text", "wide", "json", "yaml", "name")
@cluster_options
def show(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Show the details of certificate signing requests.

    Before you approve a request, compare the fingerprint of its key with the one that the machine prints.
    """
    clock = chosen.clock

    async def fetch(client: ClusterClient) -> Sequence[Shown]:
        return [await chosen.retry(partial(_fetch, client, one, clock.now())) for one in name]

    _print_requests(chosen.run(fetch), output, clock.now())


async def _fetch(client: ClusterClient, name: str, now: datetime) -> Shown:
    return await shown(client, await client.get(PLURAL, name), now)


async def shown(client: ClusterClient, obj: Obj, now: datetime) -> Shown:
    """Return a request with its details and what its node had before. Raises ApiError, PeerError."""
    details = csr_details(obj, now)
    return obj, details, await fetch_before(client, details) if is_undecided(obj) else None


def _print_requests(requests: Sequence[Shown], form: str, now: datetime) -> None:
    found = [obj for obj, _, _ in requests]
    documents = [
        details if before is None else {**details, "before": document(obj, details, before)}
        for obj, details, before in requests
    ]
    if form in ("json", "yaml"):
        items = documents[0] if len(documents) == 1 else {"kind": "List", "apiVersion": "v1", "items": documents}
        output.print_document(items, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    else:
        for index, one in enumerate(requests):
            if index:
                echo()
            print_request(one, now)
            obj = one[0]
            if form == "wide":
                for text in (obj["spec"].get("request"), (obj.get("status") or {}).get("certificate")):
                    echo(*base64_field(text).decode("ascii", "replace").rstrip().split("\n"))


def print_request(request: Shown, now: datetime) -> None:
    """Print the details of one request, and the difference to what its node had before, coloured on a terminal."""
    obj, details, before = request
    for label, value in lines(details, now):
        echo(f"{label + ':':<22}{value}")
    if before is None:
        return
    echo(f'Compared with what node "{before.node_name}" had:')
    for label, value, matters in text_lines(obj, details, before):
        (highlight if matters else echo)(f"  {label + ':':<28}{value}")


def lines(details: dict[str, Any], now: datetime) -> list[tuple[str, str]]:
    """Return the details as labelled lines."""
    request, requester = details.get("request", {}), details.get("requester", {})
    certificate, subject = details.get("certificate", {}), request.get("subject", {})
    seconds = details.get("expirationSeconds")
    labelled = [
        ("Name", details["name"]),
        ("Age", age(details.get("created"), now)),
        ("Condition", details["condition"]),
        ("Requester", requester.get("username", "<none>")),
        ("Requester groups", ", ".join(requester.get("groups", ()))),
        ("Signer", details.get("signerName", "<none>")),
        ("Usages", ", ".join(details.get("usages", ()))),
        ("Requested duration", human_duration(timedelta(seconds=seconds)) if seconds else ""),
        ("Subject", subject.get("text", "")),
        ("DNS names", ", ".join(request.get("dnsNames", ()))),
        ("IP addresses", ", ".join(request.get("ipAddresses", ()))),
        ("Email addresses", ", ".join(request.get("emailAddresses", ()))),
        ("URIs", ", ".join(request.get("uris", ()))),
        ("Key type", request.get("key", {}).get("algorithm", "")),
        ("Key fingerprint", request.get("key", {}).get("fingerprint", "")),
        ("Request unreadable", request.get("problem", "")),
        ("Signer would refuse", "; ".join(request.get("refusedBySigner", ()))),
    ]
    for condition in details.get("conditions", ()):
        reason = ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)
        labelled.append((str(condition.get("type")), reason or "<no reason>"))
    if "problem" in certificate:
        labelled.append(("Certificate", f"unreadable: {certificate['problem']}"))
    elif certificate:
        labelled += [
            ("Certificate serial", certificate["serialNumber"]),
            ("Certificate issuer", certificate["issuer"]),
            (
                "Valid",
                f"{certificate['notBefore']} to {certificate['notAfter']}"
                + ("" if certificate["valid"] else " (not now)"),
            ),
        ]
    return [(label, value) for label, value in labelled if value]
