"""`mooring token list` and `mooring token delete`, and the words about what a token allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import click

from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import age
from mooring.authn.lastuses import BOOTSTRAP_LAST_USED
from mooring.cli import cluster, printing
from mooring.cli.cluster import ChosenCluster, cluster_options, ending_options, printed_deletions
from mooring.cli.options.flags import LISTED, SHOWN, TOKEN, output_option, usage
from mooring.cli.printing import clean, echo, redacted
from mooring.cli.token.generate import K3S, format_option
from mooring.cli.valuecompletion import complete_token
from mooring.client.cluster import ClusterClient
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.duration import format_duration
from mooring.errors import ApiError, ConfigError, NotFoundError
from mooring.trust.bootstraptoken.restrictions import CREATED_BY, Restrictions, joined_keys
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION, TokenError
from mooring.trust.bootstraptoken.tokensecret import (
    NAMESPACE,
    NOT_ACCEPTED,
    SECRET_TYPE,
    TokenRecord,
    from_secret,
    groups,
    secret_name,
)
from mooring.trust.k3s.token import bootstrap_token_id

# Description of what a bootstrap token allows, for people who have just made one, and for lists.
#
# Rules kept here:
# * The sentence names the id and never the secret. It goes to stderr, because scripts read the token from stdout.
# * Against another API server no limit is promised. A warning says which limits it does not enforce, and where they count.

FLAGS = {
    "max_joins": "--max-joins",
    "networks": "--allow-cidr",
    "node_name": "--node-name",
    "ephemeral": "--ephemeral",
    "require_approval": "--require-approval",
}
"""Flags that set the restrictions of a token, by the field of `Restrictions`."""
NEVER_EXPIRES = (
    "Warning: token {id} never expires. Give tokens an end, or delete this one when the machines have joined: "
    "mooring token delete {id}"
)


def print_allowance(record: TokenRecord, now: datetime, unenforced_by: str = "", *, accepted: bool = True) -> None:
    """Say on stderr what a new token allows and until when, and warn about one without end.

    `unenforced_by` names the server when it does not enforce the token's limits. `accepted` is false when it accepts no token.
    """
    if not accepted:
        echo(f"Warning: token {record.token.id} lets no machine in: {NOT_ACCEPTED}", err=True)
    elif unenforced_by and record.restrictions:
        echo(allowance(replace(record, restrictions=Restrictions()), now), err=True)
        echo(f"Warning: {unenforced(record.restrictions, unenforced_by)}", err=True)
    else:
        echo(allowance(record, now), err=True)
    if record.expires is None:
        echo(NEVER_EXPIRES.format(id=record.token.id), err=True)


def allowance(record: TokenRecord, now: datetime) -> str:
    """Return one sentence about what a token allows and until when."""
    if record.expires is None:
        end = "until it is deleted"
    else:
        end = f"until {rfc3339(record.expires)} (in {human_duration(record.expires - now)})"
    if USAGE_AUTHENTICATION not in record.usages:
        return f"Token {record.token.id} signs cluster-info and lets no machine in, {end}."
    text = f"Token {record.token.id} lets in {machines(record.restrictions)}, {end}."
    if record.restrictions.require_approval:
        text += " Each request waits for a person: mooring csr approve."
    silence = record.restrictions.ephemeral
    if silence is None:
        return text
    return f"{text} The membership of a machine that is silent for {format_duration(silence)} ends."


def unenforced(restrictions: Restrictions, server: str) -> str:
    """Return which limits of a token the server does not enforce, and where they count."""
    names = [FLAGS[name] for name in FLAGS if getattr(restrictions, name)]
    flags = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    text = f"{server} does not enforce {flags}:"
    if restrictions.ephemeral is not None:
        text += " machines that fall silent stay members, until mooring node prune deletes their Nodes;"
    if not replace(restrictions, ephemeral=None):
        return f"{text[:-1]}."
    text += (
        " it accepts the token from every address, for everything that its groups may do. Only mooring controllers reads them, and "
        "another approver or signer issues certificates without them."
    )
    if restrictions.networks:
        return f"{text} Requests of a token with networks wait there for a person, because their address is not known."
    return text


def machines(restrictions: Restrictions) -> str:
    """Return the machines that a token lets in."""
    number = restrictions.max_joins
    who = "any number of machines" if number is None else "1 machine" if number == 1 else f"up to {number} machines"
    name = restrictions.node_name
    named = "under any name" if not name else f"named {name}" if "*" not in name else f"named like {name}"
    networks = ", ".join(map(str, restrictions.networks))
    return f"{who} {named}, from {networks or 'any network'}"


def joins_cell(record: TokenRecord, joined: int) -> str:
    """Return the joins used and allowed."""
    if USAGE_AUTHENTICATION not in record.usages:
        return "<none>"
    return "<unlimited>" if record.restrictions.max_joins is None else f"{joined}/{record.restrictions.max_joins}"


def limits_cell(restrictions: Restrictions) -> str:
    """Return the names and networks that a token allows, the silence that removes its machines, and whether a person approves."""
    names = [f"nodes {restrictions.node_name}"] if restrictions.node_name else []
    networks = [f"from {','.join(map(str, restrictions.networks))}"] if restrictions.networks else []
    silences = [] if restrictions.ephemeral is None else [f"ephemeral {human_duration(restrictions.ephemeral)}"]
    approvals = ["requires approval"] if restrictions.require_approval else []
    return clean("; ".join(names + networks + silences + approvals)) or "<none>"


# `mooring token list`: list bootstrap tokens.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands):
# * `-o table` fits 80 columns, and has the expiry to the minute. `-o wide` has every column.
# * `-o text` is kubeadm's table with three columns more at its end. Header and first row share their widths (at least 10, with 3
#   blanks). Every later row has widths of its own; blanks inside the cells keep the columns aligned.
# * `-o json|yaml` is one document: a List of kubeadm's BootstrapToken with the token's id, remaining seconds, restrictions, joins
#   and last use added.
# * `--format k3s` prints the columns of `k3s token list`, and the same documents as an array
#   (docs/protocol/k3s.md#token-commands). It prints no secrets, and ids in every output.
# * The last use is the time in an annotation that the server writes once an hour at most.
# * A Secret that cannot be read as a token is reported on stderr and skipped. Secrets are left out of every form, `-o text` too,
#   unless `--show-secrets` is given: lists end up in tickets and logs. kubeadm prints them.

HEADERS = ("TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS", "JOINS", "LAST USE", "LIMITS")
OUTPUT_VERSION = "output.kubeadm.k8s.io/v1alpha3"
NARROW = tuple(map(HEADERS.index, ("TOKEN", "EXPIRES", "JOINS", "LAST USE", "DESCRIPTION")))
"""Columns of the table."""
_SECONDS = re.compile(r":\d\dZ$")
"""End of a time. The table has no room for it."""
_K3S_COLUMNS = 6
"""The columns that k3s has: the first of HEADERS."""
_PADDED = (0, 9, 0, 22, 56, 0, 0, 0, 0)
"""Widths of the cells before alignment, by column."""
_MIN_WIDTH = 10
_PADDING = 3


@click.command("list")
@output_option(*LISTED, "text")
@click.option("--show-secrets", is_flag=True, help="Print whole tokens, as kubeadm does.")
@click.option("--dry-run", is_flag=True, help="Accepted as in kubeadm, without effect.")
@format_option
@cluster_options
def list_tokens(output: str, show_secrets: bool, dry_run: bool, token_format: str, chosen: ChosenCluster) -> None:
    """List bootstrap tokens. With --show-secrets whole tokens are printed: keep the output private then."""
    listed = chosen.run_with_retries(
        lambda client: client.list("secrets", NAMESPACE, field_selector=f"type={SECRET_TYPE}")
    )
    found = []
    for secret in listed.items:
        try:
            joined_keys(secret)
            record = from_secret(secret)
            found.append((record, secret))
        except TokenError as error:
            echo(f"Warning: {redacted(str(error))}", err=True)
            continue
        try:
            groups(secret)
        except TokenError as error:
            echo(f"Warning: token {record.token.id} cannot be used to join: {redacted(str(error))}", err=True)
    if token_format == K3S:
        _print_as_k3s(found, output, chosen.clock.now())
    else:
        _print(found, output, not show_secrets, chosen.clock.now())


def _print(found: Sequence[tuple[TokenRecord, Obj]], form: str, redact: bool, now: datetime) -> None:
    if form in ("json", "yaml"):
        items = [document(record, secret, redact, now) for record, secret in found]
        printing.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}, form)
    elif form == "name":
        for record, _ in found:
            echo(record.token.id)
    elif form == "wide":
        rows = [
            (
                *cells(record, secret, redact, now),
                age(secret["metadata"].get("creationTimestamp"), now),
                secret_name(record.token.id),
            )
            for record, secret in found
        ]
        printing.print_table((*HEADERS, "AGE", "SECRET"), rows)
    elif form == "table":
        rows = [cells(record, secret, redact, now) for record, secret in found]
        print_narrow(rows)
    else:
        for line in text_lines([cells(record, secret, redact, now) for record, secret in found]):
            echo(line)


def print_narrow(rows: Sequence[Sequence[str]]) -> None:
    """Print the table of rows that `cells` returned."""
    printing.print_table(
        [HEADERS[at] for at in NARROW], [[_SECONDS.sub("Z", row[at]) for at in NARROW] for row in rows]
    )


def _print_as_k3s(found: Sequence[tuple[TokenRecord, Obj]], form: str, now: datetime) -> None:
    if form in ("json", "yaml"):
        items = [document(record, secret, True, now) for record, secret in found]
        for item in items:
            del item["token"]
        printing.print_document(items, form)
    elif form in ("table", "text"):
        rows = [(record.token.id, *cells(record, secret, True, now)[1:_K3S_COLUMNS]) for record, secret in found]
        for line in _align([HEADERS[:_K3S_COLUMNS], *rows]):
            echo(line)
    else:
        _print(found, form, True, now)


def document(record: TokenRecord, secret: Obj, redact: bool, now: datetime) -> dict[str, Any]:
    """Return one token as a document."""
    fields: dict[str, Any] = {
        "kind": "BootstrapToken",
        "apiVersion": OUTPUT_VERSION,
        "id": record.token.id,
        "token": str(record.token) if redact else record.token.reveal(),
    }
    if record.description:
        fields["description"] = record.description
    if record.expires is not None:
        fields["ttlSeconds"] = int((record.expires - now).total_seconds())
        fields["expires"] = rfc3339(record.expires)
    fields["usages"] = list(record.usages)
    fields["groups"] = list(record.groups)
    if created := secret["metadata"].get("creationTimestamp"):
        fields["creationTimestamp"] = created
    fields |= record.restrictions.fields()
    if record.restrictions.max_joins is not None:
        fields["joins"] = len(joined_keys(secret))
    if used := _annotation(secret, BOOTSTRAP_LAST_USED):
        fields["lastUsed"] = used
    if creator := _annotation(secret, CREATED_BY):
        fields["createdBy"] = creator
    return fields


def _annotation(secret: Obj, key: str) -> str:
    found: str = (secret["metadata"].get("annotations") or {}).get(key, "")
    return found


def _last_use(secret: Obj, now: datetime) -> str:
    """Return the time since the last recorded use."""
    try:
        return f"{human_duration(now - parse_rfc3339(_annotation(secret, BOOTSTRAP_LAST_USED)))} ago"
    except ValueError:
        return "<never>"


def cells(record: TokenRecord, secret: Obj, redact: bool, now: datetime) -> tuple[str, ...]:
    """Return the cells of one token, without padding."""
    return (
        str(record.token) if redact else record.token.reveal(),
        short_duration(record.expires - now) if record.expires else "<forever>",
        rfc3339(record.expires) if record.expires else "<never>",
        printing.clean(",".join(record.usages)) or "<none>",
        printing.clean(record.description) or "<none>",
        printing.clean(",".join(record.groups)) or "<none>",
        joins_cell(record, len(joined_keys(secret))),
        _last_use(secret, now),
        limits_cell(record.restrictions),
    )


def short_duration(span: timedelta) -> str:
    """Return a duration in one unit, like `duration.ShortHumanDuration` of k8s.io/apimachinery."""
    total = int(span.total_seconds())
    if total < -1:
        return "<invalid>"
    seconds = max(total, 0)
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 60:
        return f"{seconds}s"
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h"
    return f"{hours // 24}d" if hours < 24 * 365 else f"{hours // 24 // 365}y"


def text_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of kubeadm's table; none without a row."""
    padded = [[cell.ljust(width) for cell, width in zip(row, _PADDED, strict=True)] for row in rows]
    blocks = [[list(HEADERS), padded[0]], *([row] for row in padded[1:])] if padded else []
    return [line for block in blocks for line in _align(block)]


def _align(block: Sequence[Sequence[str]]) -> list[str]:
    """Return lines as Go's tabwriter aligns them when flushed together: each column but the last as wide as its widest cell."""
    widths = [max(_MIN_WIDTH, _PADDING + max(map(len, column))) for column in zip(*block, strict=True)][:-1]
    return [
        "".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in block
    ]


# `mooring token delete`: delete bootstrap tokens.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands, docs/protocol/k3s.md#token-commands): a token is
# given as its id, as a whole, or as a whole in k3s's form. Messages contain the id only. All arguments are checked before the
# first token is deleted. The first failure stops.


@click.command("delete")
@click.argument("token", nargs=-1, type=TOKEN, required=True, shell_complete=complete_token)
@click.option(
    "--dry-run", is_flag=True, help="Check that each token exists, and print the output without deleting one."
)
@format_option
@output_option(*SHOWN)
@ending_options
def delete(token: Sequence[str], dry_run: bool, token_format: str, output: str, chosen: ChosenCluster) -> None:
    """Delete bootstrap tokens, each given as its id, as a whole, or as a whole K10 token.

    The form of the arguments decides, whatever --format says. Machines that have joined with a token stay members.
    """
    with usage():
        ids = [bootstrap_token_id(text) for text in token]
    with printed_deletions(output, dry_run=dry_run) as report:
        chosen.run(lambda client: _delete_all(client, ids, report, dry_run, chosen))


async def _delete_all(
    client: ClusterClient, ids: Sequence[str], report: Callable[[str, str], None], dry_run: bool, chosen: ChosenCluster
) -> None:
    for token_id in ids:

        async def delete_one(token_id: str = token_id) -> None:
            try:
                if dry_run:
                    await client.get("secrets", secret_name(token_id), NAMESPACE)
                else:
                    await client.delete("secrets", secret_name(token_id), NAMESPACE)
            except NotFoundError:
                raise ConfigError(f'there is no bootstrap token "{token_id}"; see mooring token list') from None
            except ApiError as error:
                if cluster.is_transient(error):
                    raise
                doing = "could not be read" if dry_run else "was not deleted"
                raise ConfigError(f'the bootstrap token "{token_id}" {doing}: {error}') from error

        await chosen.retry(delete_one)
        report(token_id, f'bootstrap token "{token_id}" deleted{" (dry run)" if dry_run else ""}')
