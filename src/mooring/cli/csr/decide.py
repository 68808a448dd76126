"""`mooring csr approve` and `mooring csr deny`.

Source: docs/protocol/certificate-signing-requests.md#kubectl-certificate.

Rules kept here: a request that was decided the other way is an error; one decided the same way is success without a write, unless
`--force`. A conflict is tried again up to 10 times on the newest state. With `--fingerprint` only the key that was looked at is
approved: the check and the write are about the same revision of an immutable request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import click

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.csr.details import decoded, fingerprint
from mooring.cli.csr.list import PLURAL, QUALIFIED
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.errors import ConfigError, ConflictError
from mooring.pki.errors import PkiError
from mooring.pki.x509.requests import parse_request
from mooring.trust.discovery.pins import PinError, parse_pin

MAX_CONFLICTS = 10
"""kubectl's."""
_OPPOSITE = {"Approved": "Denied", "Denied": "Approved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be written."""

    condition: str
    message: str
    force: bool = False
    dry_run: bool = False
    fingerprint: str = ""

    @property
    def reason(self) -> str:
        return "MooringApprove" if self.condition == "Approved" else "MooringDeny"


@click.command("approve")
@click.argument("name", nargs=-1, required=True)
@click.option(
    "--fingerprint",
    default="",
    metavar="sha256:HEX",
    help="Approve only if the request is for this key; needs one NAME.",
)
@click.option("--message", default="Approved with mooring csr approve.", show_default=True, help="Why, for people.")
@click.option("--force", is_flag=True, help="Write even if it is approved already.")
@click.option("--dry-run", is_flag=True, help="Have the server check everything, and change nothing.")
@output_option("text", "name", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def approve(
    name: Sequence[str],
    fingerprint: str,
    message: str,
    force: bool,
    dry_run: bool,
    output: str,
    kubeconfig: str,
    context_name: str,
    timeout: timedelta,
) -> None:
    """Approve certificate signing requests: the signer then issues what they ask for.

    Look first: mooring csr show NAME.
    """
    if fingerprint and len(name) != 1:
        raise click.UsageError("--fingerprint needs exactly one NAME")
    try:
        wanted = str(parse_pin(fingerprint)) if fingerprint else ""
    except PinError:
        raise click.UsageError(
            "--fingerprint must be sha256: and 64 hexadecimal digits, as `mooring csr show` prints it"
        ) from None
    decision = Decision(condition="Approved", message=message, force=force, dry_run=dry_run, fingerprint=wanted)
    _decide_all(name, decision, output, kubeconfig, context_name, timeout)


@click.command("deny")
@click.argument("name", nargs=-1, required=True)
@click.option("--message", default="Denied with mooring csr deny.", show_default=True, help="Why, for people.")
@click.option("--force", is_flag=True, help="Write even if it is denied already.")
@click.option("--dry-run", is_flag=True, help="Have the server check everything, and change nothing.")
@output_option("text", "name", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def deny(
    name: Sequence[str],
    message: str,
    force: bool,
    dry_run: bool,
    output: str,
    kubeconfig: str,
    context_name: str,
    timeout: timedelta,
) -> None:
    """Deny certificate signing requests: nothing is issued for them, ever."""
    decision = Decision(condition="Denied", message=message, force=force, dry_run=dry_run)
    _decide_all(name, decision, output, kubeconfig, context_name, timeout)


def _decide_all(
    names: Sequence[str], decision: Decision, form: str, kubeconfig: str, context_name: str, limit: timedelta
) -> None:
    clock = SystemClock()
    decided: list[Obj] = []

    async def work(client: ClusterClient) -> None:
        for one in names:
            found = await cluster.patiently(partial(decide, client, one, decision, clock), clock, limit)
            decided.append(found)
            if form == "text":
                suffix = " (server dry run)" if decision.dry_run else ""
                echo(f"{QUALIFIED}/{one} {decision.condition.lower()}{suffix}")
            elif form == "name":
                echo(f"{QUALIFIED}/{one}")

    cluster.run(cluster.selected(kubeconfig, context_name), clock, work)
    if form in ("json", "yaml"):
        document = (
            decided[0] if len(decided) == 1 else {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": decided}
        )
        output.print_document(document, form)


async def decide(client: ClusterClient, name: str, decision: Decision, clock: Clock) -> Obj:
    """Write the decision; returns the request as it is then. Raises ConfigError, ApiError, PeerError."""
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


def decided_request(request: Obj, decision: Decision, now: str) -> Obj | None:
    """The request with the decision; None when it has it already. Raises ConfigError when it may not be decided so."""
    name = request["metadata"]["name"]
    conditions = (request.get("status") or {}).get("conditions") or []
    types = {condition.get("type") for condition in conditions}
    opposite = _OPPOSITE[decision.condition]
    if opposite in types:
        raise ConfigError(f'the certificate signing request "{name}" is already {opposite.lower()}; that is final')
    _check_key(request, decision)
    if decision.condition in types and not decision.force:
        return None
    changed = deep_copy(request)
    if decision.condition not in types:
        added = {
            "type": decision.condition,
            "status": "True",
            "reason": decision.reason,
            "message": decision.message,
            "lastUpdateTime": now,
        }
        changed["status"] = {**(changed.get("status") or {}), "conditions": [*conditions, added]}
    return changed


def _check_key(request: Obj, decision: Decision) -> None:
    if not decision.fingerprint:
        return
    name = request["metadata"]["name"]
    try:
        found = fingerprint(parse_request(decoded(request["spec"].get("request"))))
    except PkiError as error:
        raise ConfigError(f'the certificate signing request "{name}" cannot be read: {error}') from None
    if found != decision.fingerprint:
        raise ConfigError(f'the certificate signing request "{name}" is for another key, {found}: it was not approved')
