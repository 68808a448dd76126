"""`mooring csr list` and `mooring csr show`.

Rules kept here: the list has kubectl's columns; `-o json|yaml` of the list prints the objects as the server has them, of `show` the
derived facts (`mooring.cli.csr.details`), in one document. Text that requesters chose is printed without control characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from mooring.api.certificates.certificatesigningrequest import KIND
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import age
from mooring.cli import cluster
from mooring.cli.csr.details import decoded, facts
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock, human_duration

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"


@click.command("list")
@click.option("--signer", default="", metavar="NAME", help="Only requests for this signer.")
@click.option("--pending", is_flag=True, help="Only requests that nobody has decided on.")
@output_option("table", "wide", "json", "yaml", "name")
@kubeconfig_option
@cluster.timeout_option
def list_requests(
    signer: str, pending: bool, output: str, kubeconfig: str, context_name: str, timeout: timedelta
) -> None:
    """List certificate signing requests."""
    clock = SystemClock()

    async def fetch(client: ClusterClient) -> Sequence[Obj]:
        async def ask() -> Sequence[Obj]:
            selector = f"spec.signerName={signer}" if signer else ""
            return (await client.list(PLURAL, field_selector=selector)).items

        return await cluster.patiently(ask, clock, timeout)

    found = cluster.run(cluster.selected(kubeconfig, context_name), clock, fetch)
    if pending:
        found = [obj for obj in found if not (obj.get("status") or {}).get("conditions")]
    _print_list(found, output, clock.now())


def _print_list(found: Sequence[Obj], form: str, now: datetime) -> None:
    if form in ("json", "yaml"):
        output.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(found)}, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    elif not found:
        echo("No certificate signing requests found.", err=True)
    else:
        columns = KIND.resource.columns
        headers = [column.name.upper() for column in columns]
        rows = [[str(column.cell(obj, now)) for column in columns] for obj in found]
        if form == "wide":
            headers += ["SUBJECT", "KEY"]
            for row, obj in zip(rows, found, strict=True):
                row += _wide(facts(obj, now).get("request") or {})
        output.print_table(headers, rows)


def _wide(request: dict[str, Any]) -> list[str]:
    if "problem" in request:
        return [f"<unreadable: {request['problem']}>", "<none>"]
    return [request.get("subject", {}).get("text", "<none>"), request["key"]["fingerprint"]]


@click.command("show")
@click.argument("name", nargs=-1, required=True)
@output_option("text", "wide", "json", "yaml", "name")
@kubeconfig_option
@cluster.timeout_option
def show(name: Sequence[str], output: str, kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """Show what a request asks for, and what came of it.

    Compare the key's fingerprint with what the machine prints before you approve.
    """
    clock = SystemClock()

    async def fetch(client: ClusterClient) -> Sequence[Obj]:
        return [await cluster.patiently(partial(client.get, PLURAL, one), clock, timeout) for one in name]

    _print_shown(cluster.run(cluster.selected(kubeconfig, context_name), clock, fetch), output, clock.now())


def _print_shown(found: Sequence[Obj], form: str, now: datetime) -> None:
    documents = [facts(obj, now) for obj in found]
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
                    echo(*decoded(text).decode("ascii", "replace").rstrip().split("\n"))


def lines(document: dict[str, Any], now: datetime) -> list[tuple[str, str]]:
    """The facts as labelled lines for people."""
    request, requester = document.get("request", {}), document.get("requester", {})
    certificate, subject = document.get("certificate", {}), request.get("subject", {})
    seconds = document.get("expirationSeconds")
    shown = [
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
        why = ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)
        shown.append((str(condition.get("type")), why or "<no reason>"))
    if "problem" in certificate:
        shown.append(("Certificate", f"unreadable: {certificate['problem']}"))
    elif certificate:
        shown += [
            ("Certificate serial", certificate["serialNumber"]),
            ("Certificate issuer", certificate["issuer"]),
            (
                "Valid",
                f"{certificate['notBefore']} to {certificate['notAfter']}"
                + ("" if certificate["valid"] else " (not now)"),
            ),
        ]
    return [(label, value) for label, value in shown if value]
