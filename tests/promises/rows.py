"""All rows of the table of promises."""

from __future__ import annotations

from tests.promises import (
    allowance,
    authentication,
    credentials,
    disclosure,
    discovery,
    ends,
    issuance,
    limits,
    membership,
    names,
    ownership,
    publication,
    records,
    rights,
    storing,
)
from tests.promises.columns import Promise

GROUPS: dict[str, tuple[Promise, ...]] = {
    "Authentication": authentication.ROWS,
    "Credentials at their effect": credentials.ROWS,
    "Membership": membership.ROWS,
    "Ownership of node names": ownership.ROWS,
    "Names in certificates": names.ROWS,
    "Issue of certificates": issuance.ROWS,
    "Allowances of tokens and rules": allowance.ROWS,
    "Rights": rights.ROWS,
    "Discovery and trust": discovery.ROWS,
    "What the cluster publishes": publication.ROWS,
    "Ends": ends.ROWS,
    "Secrets": disclosure.ROWS,
    "Records": records.ROWS,
    "Store and keys of the cluster": storing.ROWS,
    "Limits": limits.ROWS,
}
"""Rows by the heading of their group, which is one gate each."""
