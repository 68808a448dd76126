"""`mooring token impact`: list what a token obtained, and withdraw it.

Rules kept here:
* Certificates descend from a token through renewals (`mooring.trust.issuancelog`). The chain of records is verified first:
  a list from changed records would miss certificates.
* `--revoke` deletes the token first, so that it makes no further request. Requests that wait are denied for good, or marked as
  failed when a person has approved them: a token that is merely deleted lets them wait. Then it revokes every public key, and reads
  the requests and the records again until no new key appears.
* A token that does not exist, and left no trace either, is an error without `--force`.
* The key of an expired certificate is revoked, too: with it a machine could come back (`mooring.authn.recovery`).
* Against another API server, which does not read the denylist, `--revoke` warns before it begins, and does the rest.
* Entries of the denylist are named after the key, so that a run that was killed half-way is repeated as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial

import click

from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.certificaterevocation import key_entry
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.paths import API_VERSION
from mooring.apimachinery.schema import Obj
from mooring.cli import printing
from mooring.cli.certs import inventory
from mooring.cli.cluster import ChosenCluster, Effect, ending_options
from mooring.cli.csr.decision import may_be_issued, refuse_waiting
from mooring.cli.issuance import REQUESTS, fetch_identities, fetch_records, require_whole
from mooring.cli.options.flags import LISTED, TOKEN, output_option, usage
from mooring.cli.printing import echo
from mooring.cli.valuecompletion import complete_token
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import other_program
from mooring.clock import parse_rfc3339
from mooring.duration import format_duration
from mooring.errors import AlreadyExistsError, ApiError, ConfigError, NotFoundError
from mooring.identity import BOOTSTRAP_USER_PREFIX, NODE_PREFIX
from mooring.trust.bootstraptoken.restrictions import read_restrictions
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAME_PREFIX, NAMESPACE, secret_name
from mooring.trust.issuancelog import descendants, verify
from mooring.trust.k3s.token import bootstrap_token_id

HEADERS = ("NODE", "ISSUED", "EXPIRES")
WIDE = ("SUBJECT", "SERIAL", "KEY", "FROM")
MAX_PASSES = 10
"""Readings of the records while renewals go on. A revoked key cannot renew, so that two are enough unless the machine is slow."""
REVOKED = "TokenRevoked"
_SHOWN_KEY = len("sha256:") + 16


@click.command("impact")
@click.argument("token", type=TOKEN, shell_complete=complete_token)
@click.option("--revoke", is_flag=True, help="Delete the token, and revoke every certificate that descends from it.")
@click.option("--dry-run", is_flag=True, help="With --revoke: print what would be done.")
@click.option("--force", is_flag=True, help="With --revoke: do not fail for a token that left no trace.")
@output_option(*LISTED)
@ending_options
def impact(token: str, revoke: bool, dry_run: bool, force: bool, output: str, chosen: ChosenCluster) -> None:
    """List the nodes and certificates that a token obtained, with their renewals.

    The token is given as its id or as a whole, and may be deleted already.
    """
    with usage():
        token_id = bootstrap_token_id(token)
    if (dry_run or force) and not revoke:
        raise click.UsageError(f"{'--dry-run' if dry_run else '--force'} is only of use with --revoke")
    chosen = chosen.with_effect(Effect.ENDS if revoke and not dry_run else Effect.READS)
    work = partial(_work, token_id=token_id, revoke=revoke, dry_run=dry_run, force=force, chosen=chosen)
    entries, waiting = chosen.run(work)
    print_impact(entries, token_id, output, chosen.clock.now())
    if waiting:
        what = "would be denied" if revoke else "may be approved"
        echo(f"{waiting} requests of the token have no certificate yet; each {what}: mooring csr list", err=True)
    if not revoke and (silence := chosen.run(lambda client: _silence(client, token_id))) is not None:
        echo(f"The membership of a machine of this token that is silent for {format_duration(silence)} ends.", err=True)
    if revoke:
        echo(
            "Not reached: certificates from before the records began, those of machines that have left and whose records were "
            "trimmed, certificates made with mooring certs or by another CA, and what the machines have read: Secrets of their "
            "Pods, tokens of ServiceAccounts.",
            err=True,
        )


async def _work(
    client: ClusterClient, *, token_id: str, revoke: bool, dry_run: bool, force: bool, chosen: ChosenCluster
) -> tuple[list[Obj], int]:
    """Return the entries that descend from the token, and the number of its requests that may still get a certificate."""
    if revoke and (unenforced := await inventory.unenforced(client)):
        echo(
            f"warning: {unenforced}. Only mooring controllers reads the entries, for the requests that it decides.",
            err=True,
        )
    if revoke and not await _delete_token(client, token_id, dry_run, chosen) and not force:
        await _refuse_unknown(client, token_id, chosen)
    revoked: set[str] = set()
    for _ in range(MAX_PASSES):
        if revoke and not dry_run:
            await _refuse_requests(client, token_id, chosen)
        entries = await _descendants(client, token_id, chosen)
        ends = _ends_by_key(entries)
        if not revoke or not set(ends) - revoked:
            break
        for key in sorted(set(ends) - revoked):
            await _revoke_key(client, key, ends[key], token_id, dry_run, chosen)
        revoked |= set(ends)
    else:
        raise ConfigError(
            "new certificates appear as fast as they are revoked; see mooring issuance list, and run this again"
        )
    return entries, sum(map(may_be_issued, await _requests(client, token_id, chosen)))


async def _descendants(client: ClusterClient, token_id: str, chosen: ChosenCluster) -> list[Obj]:
    """Return the entries of the certificates that descend from the token, and those of its members that a trimmed log lacks."""
    verified = verify(await fetch_records(client, chosen.clock, chosen.timeout))
    require_whole(verified)
    if not verified.trimmed_until:
        return descendants(verified.entries, token_id)
    identities = await fetch_identities(client, chosen.clock, chosen.timeout)
    members = [one for one in identities if spec_of(one).get("token") == token_id]
    names = {one["metadata"]["name"] for one in members}
    found = descendants(verified.entries, token_id, names)
    recorded = {entry.get("serialNumber") for entry in found}
    return [
        *(_of_member(one, key) for one in members for key in keys_of(one) if key.get("serialNumber") not in recorded),
        *found,
    ]


def _of_member(identity: Obj, key: Obj) -> Obj:
    """Return what the record of a certificate would say, by the NodeIdentity of the machine."""
    name = identity["metadata"]["name"]
    fields: Obj = {field: key[field] for field in ("publicKey", "serialNumber", "notAfter") if field in key}
    return {"time": key.get("recordedAt", ""), "node": name, "subject": NODE_PREFIX + name, **fields}


async def _silence(client: ClusterClient, token_id: str) -> timedelta | None:
    """Return the silence after which the server removes machines of the token; None where it removes none, or that is not known."""
    try:
        silence = read_restrictions(await client.get("secrets", secret_name(token_id), NAMESPACE)).ephemeral
    except (ApiError, TokenError):
        return None
    return None if silence is not None and await other_program(client) else silence


def _ends_by_key(entries: Sequence[Obj]) -> dict[str, str]:
    """Return the last end of the certificates of each key."""
    ends: dict[str, str] = {}
    for entry in entries:
        key, end = entry.get("publicKey", ""), entry.get("notAfter", "")
        if key and end:
            ends[key] = max(end, ends.get(key, ""))
    return ends


async def _delete_token(client: ClusterClient, token_id: str, dry_run: bool, chosen: ChosenCluster) -> bool:
    """Delete the token. Return False when there is none."""
    try:
        if dry_run:
            await chosen.retry(lambda: client.get("secrets", secret_name(token_id), NAMESPACE))
            echo(f'bootstrap token "{token_id}" would be deleted', err=True)
        else:
            await chosen.retry(lambda: client.delete("secrets", secret_name(token_id), NAMESPACE))
            echo(f'bootstrap token "{token_id}" deleted', err=True)
    except NotFoundError:
        return False
    return True


async def _refuse_unknown(client: ClusterClient, token_id: str, chosen: ChosenCluster) -> None:
    """Raise ConfigError when a token that does not exist has left no trace either: it may be an error of typing."""
    if await _descendants(client, token_id, chosen) or await _requests(client, token_id, chosen):
        echo(f'bootstrap token "{token_id}" is deleted already', err=True)
        return
    secrets = await inventory.readable_objects(client, "secrets", NAMESPACE) or ()
    ids = [
        name.removeprefix(NAME_PREFIX) for one in secrets if (name := one["metadata"]["name"]).startswith(NAME_PREFIX)
    ]
    near = get_close_matches(token_id, ids, n=3)
    raise ConfigError(
        f'there is no bootstrap token "{token_id}", and no certificate or request descends from it'
        + (f"; near are {', '.join(near)}" if near else "")
        + ". See mooring token list; add --force when the records of the token were lost"
    )


async def _revoke_key(
    client: ClusterClient, key: str, end: str, token_id: str, dry_run: bool, chosen: ChosenCluster
) -> None:
    """Put a key on the denylist for as long as its last certificate lives, and may come back."""
    if dry_run:
        echo(f"{REVOCATIONS}/{key_entry(key)} would be created", err=True)
        return
    wanted: Obj = {
        "kind": "CertificateRevocation",
        "apiVersion": API_VERSION,
        "metadata": {"name": key_entry(key)},
        "spec": {
            "publicKey": key,
            "reason": "keyCompromise",
            "message": f"descends from the bootstrap token {token_id}",
            "expiresAt": end,
        },
    }

    async def put() -> None:
        try:
            await client.create(REVOCATIONS, wanted)
        except AlreadyExistsError:
            present = await client.get(REVOCATIONS, key_entry(key))
            until = present["spec"].get("expiresAt")
            if until and parse_rfc3339(until) < parse_rfc3339(end):
                await client.update(REVOCATIONS, {**present, "spec": {**present["spec"], "expiresAt": end}})

    await chosen.retry(put)
    echo(f"{REVOCATIONS}/{key_entry(key)} created", err=True)


async def _requests(client: ClusterClient, token_id: str, chosen: ChosenCluster) -> Sequence[Obj]:
    """Return the requests of the token, in every state."""

    async def ask() -> Sequence[Obj]:
        return (await client.list(REQUESTS)).items

    user = BOOTSTRAP_USER_PREFIX + token_id
    return [csr for csr in await chosen.retry(ask) if (csr.get("spec") or {}).get("username") == user]


async def _refuse_requests(client: ClusterClient, token_id: str, chosen: ChosenCluster) -> None:
    message = f"the bootstrap token {token_id} was revoked: let the machine join again with another token"
    await refuse_waiting(
        client,
        chosen,
        lambda: _requests(client, token_id, chosen),
        REVOKED,
        message,
        lambda name, done: echo(f"{name} {done}", err=True),
    )


def print_impact(entries: Sequence[Obj], token_id: str, form: str, now: datetime) -> None:
    """Print what descends from a token in one of the forms of a list."""
    nodes = sorted({entry["node"] for entry in entries if entry.get("node")})
    if form in ("json", "yaml"):
        printing.print_document(
            {"kind": "TokenImpact", "token": token_id, "nodes": nodes, "certificates": list(entries)}, form
        )
    elif form == "name":
        for node in nodes:
            echo(f"node/{node}")
    elif not entries:
        echo(f"No certificate descends from the token {token_id}.", err=True)
    else:
        is_wide = form == "wide"
        rows = [(*_cells(entry, now), *(_wide_cells(entry) if is_wide else ())) for entry in entries]
        printing.print_table((*HEADERS, *(WIDE if is_wide else ())), rows)


def _cells(entry: Obj, now: datetime) -> tuple[str, ...]:
    end = entry.get("notAfter", "")
    expired = " (expired)" if end and parse_rfc3339(end) <= now else ""
    return entry.get("node") or entry.get("subject") or "<none>", entry.get("time") or "<unknown>", end + expired


def _origin(entry: Obj) -> str:
    return f"renewal by {entry['requester']}" if "requester" in entry else "its NodeIdentity"


def _wide_cells(entry: Obj) -> tuple[str, ...]:
    return (
        entry.get("subject") or "<none>",
        entry.get("serialNumber") or "<none>",
        entry.get("publicKey", "")[:_SHOWN_KEY],
        f"token {entry['token']}" if entry.get("token") else _origin(entry),
    )
