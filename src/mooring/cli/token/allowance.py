"""Words about a token: what it allows, and the command line that joins with it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from mooring.cli.printing.output import clean, echo
from mooring.clock import human_duration, rfc3339
from mooring.trust.bootstraptoken.restrictions import Restrictions
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION
from mooring.trust.bootstraptoken.tokensecret import TokenRecord

# Join command: the command line that `init`, `up` and `token create` print for a joining machine.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands, docs/protocol/k3s.md#token-commands): one hash
# flag for each CA, or the hash in the token; `<value withheld>` in place of a withheld token. The brackets of an IPv6 address are
# a pattern in a shell, and are quoted; nothing else needs it.

WITHHELD = "<value withheld>"


def join_line(program: str, endpoints: Sequence[str], token: str, pins: Sequence[str]) -> str:
    """Return `<program> join HOST:PORT… --token T --discovery-token-ca-cert-hash sha256:…`."""
    hashes = "".join(f" --discovery-token-ca-cert-hash {pin}" for pin in pins)
    return f"{program} join {shlex.join(endpoints)} --token {token}{hashes}"


def agent_line(program: str, endpoints: Sequence[str], token: str) -> str:
    """Return `<program> agent --server https://HOST:PORT… --token T`, for a token of k3s's format."""
    servers = "".join(f" --server {shlex.quote(f'https://{endpoint}')}" for endpoint in endpoints)
    return f"{program} agent{servers} --token {token}"


# Description of what a bootstrap token allows, for people who have just made one, and for lists.
#
# Rules kept here:
# * The sentence names the id and never the secret. It goes to stderr, because scripts read the token from stdout.
# * Against another API server no limit is promised. A warning says which limits it does not enforce, and where they count.

FLAGS = {"max_joins": "--max-joins", "networks": "--allow-cidr", "node_name": "--node-name"}
"""Flags that set the restrictions of a token, by the field of `Restrictions`."""
NEVER_EXPIRES = (
    "Warning: token {id} never expires. Give tokens an end, or delete this one when the machines have joined: "
    "mooring token delete {id}"
)


def print_allowance(record: TokenRecord, now: datetime, unenforced_by: str = "") -> None:
    """Say on stderr what a new token allows and until when, and warn about one without end.

    `unenforced_by` names the server when it does not enforce the token's limits.
    """
    if unenforced_by and record.restrictions:
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
    return f"Token {record.token.id} lets in {machines(record.restrictions)}, {end}."


def unenforced(restrictions: Restrictions, server: str) -> str:
    """Return which limits of a token the server does not enforce, and where they count."""
    names = [FLAGS[name] for name in FLAGS if getattr(restrictions, name)]
    flags = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    text = (
        f"{server} does not enforce {flags}: it accepts the token from every address, for everything that its groups may do. Only "
        "mooring controllers reads them, and another approver or signer issues certificates without them."
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


def joins_cell(restrictions: Restrictions, joined: int) -> str:
    """Return the joins used and allowed."""
    return "<unlimited>" if restrictions.max_joins is None else f"{joined}/{restrictions.max_joins}"


def limits_cell(restrictions: Restrictions) -> str:
    """Return the names and networks that a token allows."""
    names = [f"nodes {restrictions.node_name}"] if restrictions.node_name else []
    networks = [f"from {','.join(map(str, restrictions.networks))}"] if restrictions.networks else []
    return clean("; ".join(names + networks)) or "<none>"
