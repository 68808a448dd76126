"""Selection of the certificate signing requests that approve, deny and review decide: by name, by selector, or all that wait.

Rules kept here: names and selectors exclude each other. A selector selects undecided requests only. Requests that the user has not
named are listed and confirmed first, unless `--yes`; without a terminal `--yes` is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any

import click

from mooring.apimachinery.schema import Obj
from mooring.cli.csr.details import PLURAL, csr_details
from mooring.cli.options.flags import REQUEST, Command, not_empty, options_of
from mooring.cli.printing.output import echo, table
from mooring.cli.valuecompletion import complete_waiting_request
from mooring.client.cluster import ClusterClient
from mooring.controllers.certificates.issuance import is_undecided
from mooring.errors import ConfigError


def _with_selection(command: Command) -> Command:
    """Give the command one argument `selection` in place of the flags that select requests."""

    @wraps(command)
    def selecting(
        *args: Any,
        selector: str,
        field_selector: str,
        signer: str,
        name: Sequence[str] = (),
        all_pending: bool = False,
        yes: bool = False,
        **values: Any,
    ) -> Any:
        selection = RequestSelection(name, selector, field_selector, signer, all_pending, yes)
        return command(*args, selection=selection, **values)

    return selecting


_SELECTORS = (
    click.option(
        "-l",
        "--selector",
        default="",
        callback=not_empty,
        metavar="SELECTOR",
        help="Only undecided requests with these labels.",
    ),
    click.option(
        "--field-selector",
        default="",
        callback=not_empty,
        metavar="SELECTOR",
        help="Only undecided requests with these fields.",
    ),
    click.option(
        "--signer", default="", callback=not_empty, metavar="NAME", help="Only undecided requests for this signer."
    ),
)
selector_options = options_of(*_SELECTORS, _with_selection)
"""Selectors alone; the command gets the argument `selection`."""
selection_options = options_of(
    click.argument("name", nargs=-1, type=REQUEST, shell_complete=complete_waiting_request),
    *_SELECTORS,
    click.option("--all-pending", is_flag=True, help="All undecided requests."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask before deciding requests that are not named."),
    _with_selection,
)
"""NAME… and the flags that select requests in its place; the command gets the argument `selection`."""


@dataclass(frozen=True, slots=True)
class RequestSelection:
    """Requests that the command line selects."""

    names: Sequence[str] = ()
    label_selector: str = ""
    field_selector: str = ""
    signer: str = ""
    all_pending: bool = False
    confirmed: bool = False

    def check(self) -> None:
        """Raise UsageError when nothing is selected, or names and selectors are mixed."""
        selects = bool(self.label_selector or self.field_selector or self.signer or self.all_pending)
        if self.names and selects:
            raise click.UsageError("NAME cannot be mixed with --selector, --field-selector, --signer or --all-pending")
        if not self.names and not selects:
            raise click.UsageError(
                "name the requests, or select them with --selector, --field-selector, --signer or --all-pending"
            )

    async def fetch(self, client: ClusterClient) -> Sequence[Obj]:
        """Return the undecided requests that the selectors select, in order of their creation."""
        by_signer = f"spec.signerName={self.signer}" if self.signer else ""
        listed = await client.list(
            PLURAL,
            label_selector=self.label_selector,
            field_selector=",".join(filter(None, (self.field_selector, by_signer))),
        )
        undecided = [obj for obj in listed.items if is_undecided(obj)]
        return sorted(undecided, key=lambda obj: str(obj["metadata"].get("creationTimestamp", "")))


def confirm(found: Sequence[Obj], verb: str, now: datetime) -> None:
    """List the requests and ask on the terminal. Raises ConfigError unless the user agrees."""
    rows = []
    for obj in found:
        details = csr_details(obj, now)
        request = details.get("request", {})
        subject = request.get("problem") or request.get("subject", {}).get("text", "")
        rows.append(
            (
                details["name"],
                details.get("requester", {}).get("username", ""),
                subject,
                request.get("key", {}).get("fingerprint", ""),
            )
        )
    echo(*table(("NAME", "REQUESTER", "SUBJECT", "KEY"), rows).split("\n"), err=True)
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was decided: give --yes to {verb} these {len(found)} requests without a terminal")
    if not click.confirm(f"{verb.capitalize()} these {len(found)} requests?", err=True):
        raise ConfigError("nothing was decided")
