"""Description of what a bootstrap token allows, for people who have just made one, and for lists.

Rules kept here: the sentence names the id and never the secret. It goes to stderr, because scripts read the token from stdout.
"""

from __future__ import annotations

from datetime import datetime

from mooring.cli.printing.output import clean, echo
from mooring.clock import human_duration, rfc3339
from mooring.trust.bootstraptoken.restrictions import Restrictions
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION
from mooring.trust.bootstraptoken.tokensecret import TokenRecord

NEVER_EXPIRES = (
    "Warning: token {id} never expires. Give tokens an end, or delete this one when the machines have joined: "
    "mooring token delete {id}"
)


def print_allowance(record: TokenRecord, now: datetime) -> None:
    """Say on stderr what a new token allows and until when, and warn about one without end."""
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
