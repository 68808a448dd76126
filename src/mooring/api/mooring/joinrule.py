"""JoinRule: which identity tokens let a machine join. Validation, print columns, and the record of keys that joined.

Rules kept here:
* `mooring.trust.joinrule` reads and validates the spec; the admission plugin JoinRuleExpressions compiles its expressions.
* The status is written by the servers alone: the update that lets a key in is a compare-and-swap on the rule.
* An entry stays until `KEPT` after the end of its token, so that no other key uses the token. Requests are approved without a
  person for half of that time (`JUDGED`): while they are, the entries show each use, even where clocks differ a little.
* Where `maxJoins` counts, one entry of each machine stays for as long as the rule. A second key that a person lets in with the same
  token has an entry of its own.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from mooring.api.kind import Kind, SubresourceStrategy
from mooring.api.objectmeta import NAME, NONE, reset_fields, spec_of
from mooring.api.paths import GROUP, STORAGE_PREFIX, VERSION
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.clock import moment_of, rfc3339
from mooring.errors import FieldError, invalid
from mooring.trust.bootstraptoken.restrictions import MOST_JOINS
from mooring.trust.joinrule import JoinIdentity, errors_of

PLURAL = "joinrules"
MAX_JOINS = MOST_JOINS
"""Entries of one rule, as many as a token counts: they take 200 kB."""
KEPT = timedelta(minutes=10)
JUDGED = KEPT / 2
_USE = re.compile("sha256:[0-9a-f]{64}", re.ASCII)
_MACHINE = re.compile("[0-9a-f]{64}", re.ASCII)


def joins_of(rule: Obj) -> list[Obj]:
    """Return the keys that joined, the oldest first."""
    joins: list[Obj] = (rule.get("status") or {}).get("joins") or []
    return joins


def machines_of_use(rule: Obj, use: str) -> tuple[str, ...]:
    """Return the machines that a value of a token has let in: one, and those that a person let in as well."""
    return tuple(str(one.get("machine")) for one in joins_of(rule) if one.get("use") == use)


def machines_of(rule: Obj) -> tuple[str, ...]:
    """Return the machines that have joined, as far as the rule keeps them."""
    return tuple(dict.fromkeys(str(one.get("machine")) for one in joins_of(rule)))


def with_join(rule: Obj, identity: JoinIdentity, machine: str, now: datetime) -> Obj | None:
    """Return a copy of the rule with one more join; None while it has no room."""
    counts = spec_of(rule).get("maxJoins") is not None
    joins = joins_of(rule)
    newest = {one.get("machine"): place for place, one in enumerate(joins)}
    kept = [
        one
        for place, one in enumerate(joins)
        if not _has_ended(one, now)
        or (counts and newest[one.get("machine")] == place and one.get("machine") != machine)
    ]
    if len(kept) >= MAX_JOINS:
        return None
    added = {"use": identity.use, "machine": machine, "expires": rfc3339(identity.expires)}
    return {**rule, "status": {**(rule.get("status") or {}), "joins": [*kept, added]}}


def _has_ended(join: Obj, now: datetime) -> bool:
    """Return whether the token of an entry can let in no other key any more; False for an end that cannot be read."""
    expires = moment_of(join.get("expires"))
    return expires is not None and now - expires > KEPT


def _validate(obj: Obj) -> list[FieldError]:
    joins, errors = joins_of(obj), errors_of(obj)
    if len(joins) > MAX_JOINS:
        errors.append(invalid("status.joins", len(joins), f"must have at most {MAX_JOINS} items"))
    for index, one in enumerate(joins[:MAX_JOINS]):
        if _USE.fullmatch(one.get("use", "")) is None or _MACHINE.fullmatch(one.get("machine", "")) is None:
            errors.append(
                invalid(f"status.joins[{index}]", "", "must have a use and a machine as the server writes them")
            )
    return errors


def _joins_cell(obj: Obj, now: datetime) -> str:
    most = spec_of(obj).get("maxJoins")
    return f"{len(machines_of(obj))}/{most}" if most is not None else "unlimited"


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version=VERSION,
        kind="JoinRule",
        plural=PLURAL,
        namespaced=False,
        schema=message("dev.mooring.api.v1alpha1.JoinRule"),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=(
            NAME,
            Column(
                "Issuer",
                lambda obj, now: (spec_of(obj).get("issuer") or {}).get("url", ""),
                description="Issuer of the tokens.",
            ),
            Column(
                "Node",
                lambda obj, now: spec_of(obj).get("nodeName") or spec_of(obj).get("nodeNameExpression") or "*",
                description="Name that a machine has.",
            ),
            Column("Joins", _joins_cell, description="Machines that have joined, and how many may."),
            Column(
                "Ends", lambda obj, now: spec_of(obj).get("expirationTimestamp") or NONE, description="End of the rule."
            ),
            AGE,
        ),
    ),
    garbage_collected=False,
    is_exact=True,
    storage=f"{STORAGE_PREFIX}{PLURAL}",
    name_errors=dns1123_subdomain_errors,
    prepare_for_create=lambda new, change: reset_fields(new, {}, "status"),
    prepare_for_update=lambda new, old, change: reset_fields(new, old, "status"),
    validate=_validate,
    allow_unconditional_update=False,
    subresources={
        "status": SubresourceStrategy(prepare_for_update=lambda new, old, change: reset_fields(new, old, "spec"))
    },
)
