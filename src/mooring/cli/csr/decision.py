"""Decision on certificate signing requests: the `approval` subresource, for approve and deny.

Rules kept here (docs/protocol/certificate-signing-requests.md#kubectl-certificate): a request with the opposite decision is an
error. One with the same decision is success without a write, unless `--force`. A request that the signer would fail is approved
with `--force` only: one that breaks a rule of its signer, or of which the server says so (the condition WouldFail). A conflict is
retried up to 10 times on the newest state. With `--fingerprint` only a request for that key is approved; requests are immutable, so
the key cannot change meanwhile. A request that was shown is decided by its uid: another one may get its name while a person thinks.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import click

from mooring.api.certificates.conditions import APPROVED, DENIED, FAILED
from mooring.apimachinery.codec.json import base64_field, deep_copy
from mooring.apimachinery.schema import Obj
from mooring.cli.cluster import ChosenCluster, changing_options
from mooring.cli.csr.details import PLURAL, QUALIFIED, fingerprint, refusals_by_signer
from mooring.cli.csr.selection import RequestSelection, confirm
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.options.flags import Option, options_of
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, rfc3339
from mooring.controllers.certificates.issuance import (
    AUTOMATIC,
    WOULD_FAIL,
    is_approved_and_unsigned,
    is_undecided,
    with_condition,
)
from mooring.errors import ConfigError, ConflictError, InvalidError, NotFoundError
from mooring.pki.errors import PkiError
from mooring.pki.x509.requests import parse_request

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}", re.ASCII)
MAX_CONFLICTS = 10
"""Attempts, as in kubectl."""
MAX_PASSES = 10
"""Readings of the requests while machines make others: two are enough unless the machine is slow."""
_OPPOSITE = {"Approved": "Denied", "Denied": "Approved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsrDecision:
    """A decision to write."""

    condition: str
    message: str
    reason: str = ""
    force: bool = False
    dry_run: bool = False
    fingerprint: str = ""
    uid: str = ""
    """That of the request that a person saw; "" where only its name was given."""

    @property
    def verb(self) -> str:
        return "approve" if self.condition == APPROVED else "deny"

    @property
    def written_reason(self) -> str:
        return self.reason or f"Mooring{self.verb.capitalize()}"


def decision_options(message: str, force_help: str) -> Option:
    """Return the options of a decision. `message` is the default of `--message`."""
    return options_of(
        click.option("--message", default=message, show_default=True, help="Message of the condition, for people."),
        click.option(
            "--reason",
            default="",
            metavar="WORD",
            help="Reason of the condition, for programs. [default: MooringApprove, MooringDeny]",
        ),
        click.option("--force", is_flag=True, help=force_help),
        click.option("--dry-run", is_flag=True, help="Let the server check the request without changing it."),
        output_option(*SHOWN),
        changing_options,
    )


def checked_reason(text: str) -> str:
    """Return the reason of a condition. Raises UsageError."""
    if text and (_REASON.fullmatch(text) is None or text.startswith(AUTOMATIC)):
        raise click.UsageError(
            "--reason must be a word such as KnownMachine, of letters and digits, and must not begin with "
            f"{AUTOMATIC}, which marks approvals without a person"
        )
    return text


def decide_all(selection: RequestSelection, decision: CsrDecision, form: str, chosen: ChosenCluster) -> None:
    decided: list[Obj] = []
    selection.check()

    async def selected(client: ClusterClient) -> Sequence[tuple[str, str]]:
        """Return name and uid of each request; the uid is "" where the command line gave the name."""
        if selection.names:
            return [(name, "") for name in selection.names]
        found = await chosen.retry(partial(selection.fetch, client))
        if not found:
            echo("No undecided certificate signing requests found.", err=True)
        elif not selection.confirmed:
            confirm(found, decision.verb, chosen.clock.now())
        return [(obj["metadata"]["name"], obj["metadata"].get("uid", "")) for obj in found]

    async def work(client: ClusterClient) -> None:
        for one, uid in await selected(client):
            about = replace(decision, uid=uid)
            found = await chosen.retry(partial(decide, client, one, about, chosen.clock))
            decided.append(found)
            if form == "text":
                suffix = " (server dry run)" if decision.dry_run else ""
                echo(f"{QUALIFIED}/{one} {decision.condition.lower()}{suffix}")
            elif form == "name":
                echo(f"{QUALIFIED}/{one}")

    chosen.run(work)
    if form in ("json", "yaml"):
        every = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": decided}
        document = decided[0] if len(decided) == 1 and selection.names else every
        output.print_document(document, form)


async def decide(client: ClusterClient, name: str, decision: CsrDecision, clock: Clock) -> Obj:
    """Write the decision and return the resulting request. Raises ConfigError, ApiError, PeerError."""
    for left in reversed(range(MAX_CONFLICTS)):
        request = await client.get(PLURAL, name)
        changed = decided_request(request, decision, rfc3339(clock.now()))
        if changed is None:
            return request
        try:
            return await client.update(PLURAL, changed, subresource="approval", dry_run=decision.dry_run)
        except ConflictError:
            if not left:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def decided_request(request: Obj, decision: CsrDecision, now: str) -> Obj | None:
    """Return the request with the decision; None when it has it already. Raises ConfigError for the opposite decision."""
    name = request["metadata"]["name"]
    conditions = (request.get("status") or {}).get("conditions") or []
    types = {condition.get("type") for condition in conditions}
    opposite = _OPPOSITE[decision.condition]
    if opposite in types:
        raise ConfigError(f'the certificate signing request "{name}" is already {opposite.lower()}; that is final')
    if decision.uid and request["metadata"].get("uid") != decision.uid:
        raise ConfigError(
            f'the certificate signing request "{name}" was deleted and made again since it was shown; it was not decided'
        )
    _check_key(request, decision)
    if decision.condition in types and not decision.force:
        return None
    _check_foretold(request, decision)
    changed = deep_copy(request)
    if decision.condition not in types:
        added = {
            "type": decision.condition,
            "status": "True",
            "reason": decision.written_reason,
            "message": decision.message,
            "lastUpdateTime": now,
        }
        changed["status"] = {**(changed.get("status") or {}), "conditions": [*conditions, added]}
    return changed


def _check_foretold(request: Obj, decision: CsrDecision) -> None:
    """Raise ConfigError for an approval of a request that the signer would fail."""
    if decision.condition != APPROVED or decision.force:
        return
    conditions = (request.get("status") or {}).get("conditions") or ()
    foretold = [one.get("message") or one.get("reason") for one in conditions if one.get("type") == WOULD_FAIL]
    reason = next(iter(foretold), "") or "; ".join(refusals_by_signer(request))
    if reason:
        name = request["metadata"]["name"]
        raise ConfigError(
            f'the certificate signing request "{name}" would fail after an approval: {reason}; it was not approved. '
            "`mooring csr approve --force` approves it all the same"
        )


def _check_key(request: Obj, decision: CsrDecision) -> None:
    if not decision.fingerprint:
        return
    name = request["metadata"]["name"]
    try:
        found = fingerprint(parse_request(base64_field(request["spec"].get("request"))))
    except PkiError as error:
        raise ConfigError(f'the certificate signing request "{name}" cannot be read: {error}') from None
    if found != decision.fingerprint:
        raise ConfigError(f'the certificate signing request "{name}" is for another key, {found}: it was not approved')


async def refuse_waiting(
    client: ClusterClient,
    chosen: ChosenCluster,
    find: Callable[[], Awaitable[Sequence[Obj]]],
    reason: str,
    message: str,
    report: Callable[[str, str], None],
) -> None:
    """Deny the requests that `find` returns, and mark those as failed that are approved and not signed.

    `report` gets the name of each, and what was done. One that is decided or changed at the same moment is looked at again.
    """
    for _ in range(MAX_PASSES):
        waiting = [csr for csr in await find() if may_be_issued(csr)]
        if not waiting:
            return
        for csr in waiting:
            kind, subresource = (DENIED, "approval") if is_undecided(csr) else (FAILED, "status")
            refused = with_condition(csr, kind, reason, message)
            try:
                await chosen.retry(partial(client.update, PLURAL, refused, subresource=subresource))
            except (ConflictError, NotFoundError, InvalidError):
                continue
            report(f"{PLURAL}/{csr['metadata']['name']}", "denied" if kind == DENIED else "failed")
    raise ConfigError("requests change as fast as they are denied; run this again")


def may_be_issued(csr: Obj) -> bool:
    """Return whether a request may still get a certificate."""
    return is_undecided(csr) or is_approved_and_unsigned(csr)
