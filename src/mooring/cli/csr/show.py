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
from mooring.cli import cluster
from mooring.cli.csr.details import PLURAL, QUALIFIED, csr_details
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock, human_duration


@click.command("show")
@click.argument("name", nargs=-1, required=True)
@output_option("text", "wide", "json", "yaml", "name")
@kubeconfig_option
@cluster.timeout_option
def show(name: Sequence[str], output: str, kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """Show the details of certificate signing requests.

    Before you approve a request, compare the fingerprint of its key with the one that the machine prints.
    """
    clock = SystemClock()

    async def fetch(client: ClusterClient) -> Sequence[Obj]:
        return [await cluster.retry(partial(client.get, PLURAL, one), clock, timeout) for one in name]

    _print_requests(cluster.run(cluster.selected(kubeconfig, context_name), clock, fetch), output, clock.now())


def _print_requests(found: Sequence[Obj], form: str, now: datetime) -> None:
    documents = [csr_details(obj, now) for obj in found]
    if form in ("json", "yaml"):
        items = documents[0] if len(documents) == 1 else {"kind": "List", "apiVersion": "v1", "items": documents}
        output.print_document(items, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    else:
        for index, (obj, document) in enumerate(zip(found, documents, strict=True)):
            if index:
                echo()
            for label, value in lines(document, now):
                echo(f"{label + ':':<22}{value}")
            if form == "wide":
                for text in (obj["spec"].get("request"), (obj.get("status") or {}).get("certificate")):
                    echo(*base64_field(text).decode("ascii", "replace").rstrip().split("\n"))


def lines(document: dict[str, Any], now: datetime) -> list[tuple[str, str]]:
    """Return the details as labelled lines."""
    request, requester = document.get("request", {}), document.get("requester", {})
    certificate, subject = document.get("certificate", {}), request.get("subject", {})
    seconds = document.get("expirationSeconds")
    labelled = [
        ("Name", document["name"]),
        ("Age", age(document.get("created"), now)),
        ("Condition", document["condition"]),
        ("Requester", requester.get("username", "<none>")),
        ("Requester groups", ", ".join(requester.get("groups", ()))),
        ("Signer", document.get("signerName", "<none>")),
        ("Usages", ", ".join(document.get("usages", ()))),
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
    for condition in document.get("conditions", ()):
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
