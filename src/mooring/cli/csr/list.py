"""`mooring csr list`: list certificate signing requests.

Rules kept here: `-o wide` begins with kubectl's columns. The table has those of them that fit 80 columns beside the 52 characters
of a machine's request. `-o json|yaml` prints the objects of the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from mooring.api.certificates.certificatesigningrequest import KIND
from mooring.apimachinery.schema import Obj
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.csr.details import PLURAL, QUALIFIED, csr_details
from mooring.cli.options.client import LISTED, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.controllers.certificates.issuance import is_undecided

WIDE_ALONE = frozenset({"SignerName", "Requestor", "RequestedDuration"})
"""Columns of kubectl that the table leaves to `-o wide`, `csr show` and `csr review`."""


@click.command("list")
@click.option("--signer", default="", metavar="NAME", help="Only requests for this signer.")
@click.option("--pending", is_flag=True, help="Only requests without a decision.")
@output_option(*LISTED)
@cluster_options
def list_requests(signer: str, pending: bool, output: str, chosen: ChosenCluster) -> None:
    """List certificate signing requests."""
    selector = f"spec.signerName={signer}" if signer else ""
    found: Sequence[Obj] = chosen.run_with_retries(lambda client: client.list(PLURAL, field_selector=selector)).items
    if pending:
        found = [obj for obj in found if is_undecided(obj)]
    print_list(found, output, chosen.clock.now())


def print_list(found: Sequence[Obj], form: str, now: datetime) -> None:
    """Print requests in one of the forms of a list."""
    if form in ("json", "yaml"):
        output.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(found)}, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    elif not found:
        echo("No certificate signing requests found.", err=True)
    else:
        columns = [one for one in KIND.resource.columns if form == "wide" or one.name not in WIDE_ALONE]
        headers = [column.name.upper() for column in columns]
        rows = [[str(column.cell(obj, now)) for column in columns] for obj in found]
        if form == "wide":
            headers += ["SUBJECT", "KEY"]
            for row, obj in zip(rows, found, strict=True):
                row += _wide_cells(csr_details(obj, now).get("request") or {})
        output.print_table(headers, rows)


def _wide_cells(request: dict[str, Any]) -> list[str]:
    if "problem" in request:
        return [f"<unreadable: {request['problem']}>", "<none>"]
    return [request.get("subject", {}).get("text", "<none>"), request["key"]["fingerprint"]]
