"""`mooring csr approve`, `deny` and `review`: decisions on certificate signing requests."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, wraps
from typing import Any

import click

from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED, source_address_of
from mooring.api.certificates.requeststate import is_approved_and_unsigned, is_undecided, with_condition
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.cli import printing
from mooring.cli.cluster import ChosenCluster, changing_options
from mooring.cli.csr.show import (
    PLURAL,
    QUALIFIED,
    csr_details,
    key_of,
    print_request,
    refusals_by_signer,
    resolve,
    shown,
)
from mooring.cli.options.flags import REQUEST, SHOWN, Command, Option, not_empty, options_of, output_option
from mooring.cli.printing import ask, echo, table
from mooring.cli.valuecompletion import complete_waiting_request
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, rfc3339
from mooring.controllers.certificates.issuance import AUTOMATIC, WOULD_FAIL
from mooring.errors import ConfigError, ConflictError, InvalidError, NotFoundError
from mooring.trust.discovery.pins import PinError, parse_pin

# Selection of the certificate signing requests that approve, deny and review decide: by name, by selector, or all that wait.
#
# Rules kept here: names and selectors exclude each other. A selector selects undecided requests only. Requests that the user has
# not named are listed and confirmed first, unless `--yes`; without a terminal `--yes` is needed. The name of a node, and the
# beginning of a name, stand for one request that waits: a stranger may ask under the name of a machine, or call its request so.
# They are confirmed, too, unless `--fingerprint` says which key is meant. Of several only the one with that key is decided.


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
_NAMES = click.argument("name", nargs=-1, type=REQUEST, shell_complete=complete_waiting_request)
review_options = options_of(_NAMES, *_SELECTORS, _with_selection)
"""NAME… and selectors; the command gets the argument `selection`."""
selection_options = options_of(
    _NAMES,
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

    def check(self, *, may_be_empty: bool = False) -> None:
        """Raise UsageError when nothing is selected, unless that means all, or names and selectors are mixed."""
        selects = bool(self.label_selector or self.field_selector or self.signer or self.all_pending)
        if self.names and selects:
            raise click.UsageError("NAME cannot be mixed with --selector, --field-selector, --signer or --all-pending")
        if not (self.names or selects or may_be_empty):
            raise click.UsageError(
                "name the requests, or select them with --selector, --field-selector, --signer or --all-pending"
            )

    async def fetch(self, client: ClusterClient) -> Sequence[Obj]:
        """Return the undecided requests that names or selectors select, in order of their creation. Raises ConfigError."""
        if self.names:
            named = [(await resolve(client, name, waiting=True))[0] for name in self.names]
            return [obj for found in named for obj in found if is_undecided(obj)]
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
    # The list was printed: a script's log says what was not decided.
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was decided: give --yes to {verb} these {len(found)} requests without a terminal")
    if not click.confirm(f"{verb.capitalize()} these {len(found)} requests?", err=True):
        raise ConfigError("nothing was decided")


# Decision on certificate signing requests: the `approval` subresource, for approve and deny.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#kubectl-certificate): a request with the opposite decision is an
# error. One with the same decision is success without a write, unless `--force`. A request that the signer would fail is approved
# with `--force` only: one that breaks a rule of its signer, or of which the server says so (the condition WouldFail). A conflict
# is retried up to 10 times on the newest state. With `--fingerprint` only a request for that key is approved; requests are
# immutable, so the key cannot change meanwhile.

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


fingerprint_option = click.option(
    "--fingerprint",
    default="",
    callback=not_empty,
    metavar="sha256:HEX",
    help="Decide only a request for this key; needs exactly one NAME.",
)


def checked_fingerprint(text: str, selection: RequestSelection) -> str:
    """Return the fingerprint of a key, "" for none. Raises UsageError."""
    if text and len(selection.names) != 1:
        raise click.UsageError("--fingerprint needs exactly one NAME")
    try:
        return str(parse_pin(text)) if text else ""
    except PinError:
        raise click.UsageError(
            "--fingerprint must be sha256: and 64 hexadecimal digits, as `mooring csr show` prints it"
        ) from None


def decide_all(selection: RequestSelection, decision: CsrDecision, form: str, chosen: ChosenCluster) -> None:
    decided: list[Obj] = []
    # Before the first request.
    selection.check()

    async def selected(client: ClusterClient) -> Sequence[tuple[str, str]]:
        """Return name and uid of each request; the uid is "" where the command line gave the name."""
        if selection.names:
            found, asked = list[tuple[str, str]](), list[Obj]()
            for name in selection.names:
                objs, is_named = await chosen.retry(partial(resolve, client, name, waiting=True))
                obj = _only(objs, name, decision.fingerprint)
                asked += [obj] if not is_named and not decision.fingerprint else []
                found.append((obj["metadata"]["name"], "" if is_named else obj["metadata"].get("uid", "")))
            if asked and not selection.confirmed:
                confirm(asked, decision.verb, chosen.clock.now())
            return found
        selected = await chosen.retry(partial(selection.fetch, client))
        if not selected:
            echo("No undecided certificate signing requests found.", err=True)
        elif not selection.confirmed:
            confirm(selected, decision.verb, chosen.clock.now())
        return [(obj["metadata"]["name"], obj["metadata"].get("uid", "")) for obj in selected]

    async def work(client: ClusterClient) -> None:
        for one, uid in await selected(client):
            # By the uid, so that a request that was made again under the name while a person thinks is not decided.
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
        printing.print_document(document, form)


def _only(found: Sequence[Obj], given: str, wanted: str) -> Obj:
    """Return the only request, or of several the one for the key `wanted`. Raises ConfigError."""
    if len(found) == 1:
        return found[0]
    keys = [key_of(obj) or "unreadable" for obj in found]
    if keys.count(wanted) == 1:
        return found[keys.index(wanted)]
    told = "; ".join(
        f"{obj['metadata']['name']} ({obj['spec'].get('signerName')}, key {key}, from {source_address_of(obj) or 'unknown'})"
        for obj, key in zip(found, keys, strict=True)
    )
    raise ConfigError(
        f'"{given}" stands for {len(found)} requests: {told}; nothing was decided. Name one of them, or give the key that '
        "the machine prints with --fingerprint"
    )


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
    # First: a decision that is final is not changed, not even with --force.
    if opposite in types:
        raise ConfigError(f'the certificate signing request "{name}" is already {opposite.lower()}; that is final')
    if decision.uid and request["metadata"].get("uid") != decision.uid:
        raise ConfigError(
            f'the certificate signing request "{name}" was deleted and made again since it was shown; it was not decided'
        )
    # Before "it is approved already" counts as success: it may be for another key.
    _check_key(request, decision)
    if decision.condition in types and not decision.force:
        return None
    _check_preview(request, decision)
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


def _check_preview(request: Obj, decision: CsrDecision) -> None:
    """Raise ConfigError for an approval of a request that the signer would fail."""
    if decision.condition != APPROVED or decision.force:
        return
    conditions = (request.get("status") or {}).get("conditions") or ()
    preview = [one.get("message") or one.get("reason") for one in conditions if one.get("type") == WOULD_FAIL]
    reason = next(iter(preview), "") or "; ".join(refusals_by_signer(request))
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
    found = key_of(request)
    if found != decision.fingerprint:
        key = f"is for another key, {found}" if found else "cannot be read"
        raise ConfigError(f'the certificate signing request "{name}" {key}: it was not {decision.condition.lower()}')


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
        # Read again after each pass: a machine may have made another request meanwhile.
        waiting = [csr for csr in await find() if may_be_issued(csr)]
        if not waiting:
            return
        for csr in waiting:
            kind, subresource = (DENIED, "approval") if is_undecided(csr) else (FAILED, "status")
            refused = with_condition(csr, kind, reason, message)
            try:
                await chosen.retry(partial(client.update, PLURAL, refused, subresource=subresource))
            except (ConflictError, NotFoundError, InvalidError):
                # Decided or changed at the same moment: the next pass sees what it is now.
                continue
            report(f"{PLURAL}/{csr['metadata']['name']}", "denied" if kind == DENIED else "failed")
    raise ConfigError("requests change as fast as they are denied; run this again")


def may_be_issued(csr: Obj) -> bool:
    """Return whether a request may still get a certificate."""
    return is_undecided(csr) or is_approved_and_unsigned(csr)


# `mooring csr approve` and `mooring csr deny`: decide certificate signing requests.


def _decide(
    condition: str,
    *,
    selection: RequestSelection,
    fingerprint: str,
    reason: str,
    output: str,
    chosen: ChosenCluster,
    **flags: Any,
) -> None:
    decision = CsrDecision(
        condition=condition,
        reason=checked_reason(reason),
        fingerprint=checked_fingerprint(fingerprint, selection),
        **flags,
    )
    decide_all(selection, decision, output, chosen)


@click.command("approve")
@selection_options
@fingerprint_option
@decision_options(
    "Approved with mooring csr approve.", "Approve a request that would fail, and write one again that is approved."
)
def approve(**flags: Any) -> None:
    """Approve certificate signing requests, so that the signer issues the certificates.

    NAME is that of a request, its beginning, or the name of a node that has one request.
    Check a request first with mooring csr show NAME, or decide one after the other with mooring csr review.
    """
    _decide("Approved", **flags)


@click.command("deny")
@selection_options
@fingerprint_option
@decision_options("Denied with mooring csr deny.", "Write the request again when it is denied already.")
def deny(**flags: Any) -> None:
    """Deny certificate signing requests, for good. NAME is as for mooring csr approve."""
    _decide("Denied", **flags)


# `mooring csr review`: decide waiting certificate signing requests one after the other.
#
# Rules kept here:
# * Each request is shown with the difference to what the name of its node had before. The answer is a line of standard input, so
#   that a terminal and a script work alike. The end of the input ends the review.
# * A request that was decided meanwhile does not end the review.

APPROVE, DENY, SKIP, QUIT = ANSWERS = ("approve", "deny", "skip", "quit")
_CONDITIONS = {APPROVE: "Approved", DENY: "Denied"}
MAX_ANSWER = 4096
"""Characters of a line that are read."""


@click.command("review")
@review_options
@click.option(
    "--message",
    default="Decided with mooring csr review.",
    show_default=True,
    help="Message of the conditions, for people.",
)
@changing_options
def review(selection: RequestSelection, message: str, chosen: ChosenCluster) -> None:
    """Show each undecided request with what its node had before, and ask: approve, deny, skip or quit.

    NAME is that of a request or of a node; without one all undecided requests are shown.

    Answers are read from standard input, one a line; the first letter is enough.
    """
    selection.check(may_be_empty=True)
    clock = chosen.clock
    counts = dict.fromkeys(ANSWERS, 0)

    async def work(client: ClusterClient) -> None:
        found = await chosen.retry(partial(selection.fetch, client))
        if not found:
            echo("No undecided certificate signing requests found.", err=True)
        for place, obj in enumerate(found, 1):
            name = obj["metadata"]["name"]
            try:
                newest = await chosen.retry(partial(client.get, PLURAL, name))
            except NotFoundError:
                continue
            if not is_undecided(newest):
                continue
            print_request(await chosen.retry(partial(shown, client, newest, clock.now())), clock.now())
            answer = _ask(f"[{place}/{len(found)}] {name}: approve, deny, skip or quit? ")
            if answer == QUIT:
                break
            if answer in _CONDITIONS:
                uid = newest["metadata"].get("uid", "")
                decision = CsrDecision(condition=_CONDITIONS[answer], message=message, uid=uid)
                try:
                    await chosen.retry(partial(decide, client, name, decision, clock))
                except ConfigError as error:
                    echo(f"Warning: {error}", err=True)
                    answer = SKIP
                else:
                    echo(f"{QUALIFIED}/{name} {decision.condition.lower()}")
            counts[answer] += 1
            echo()

    chosen.run(work)
    echo(f"{counts[APPROVE]} approved, {counts[DENY]} denied, {counts[SKIP]} skipped", err=True)


def _ask(question: str) -> str:
    """Return the answer to a question; `quit` at the end of the input."""
    while True:
        ask(question)
        line = sys.stdin.readline(MAX_ANSWER)
        if not line:
            echo(err=True)
            return QUIT
        given = line.strip().lower()
        found = [one for one in ANSWERS if given and one.startswith(given)]
        if found:
            return found[0]
        echo("Answer with approve, deny, skip or quit, or with the first letter.", err=True)
