"""Reconciliation of the keys in a data directory with those in the store: what a server does when it starts.

Rules kept here:
* A CA in a data directory is replaced only by a later CA of the same cluster. A server with a CA of its own is refused, and the
  error names both.
* The first row wins. Of several servers that start at once on an empty store, one stores its keys, and the others take them.
* The store wins over a data directory that is behind it. A data directory wins over a store that was restored from an earlier
  backup.
* A file that an operator changed since this server last agreed with the store is stored, if the data directory still trusts the CA
  that issues. Otherwise an old backup of `pki/` would take the CA away from every other server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mooring.errors import ConfigError
from mooring.trust.sharedkeys.envelope import Row
from mooring.trust.sharedkeys.keyset import are_related


class Action(Enum):
    """One step towards the same keys on both sides."""

    SEAL = "make the missing keys, and store all of them under a new data key"
    TAKE = "write the keys of the store into the data directory"
    STORE = "store the keys of the data directory"
    KEEP = "both sides have the same keys"


@dataclass(frozen=True, slots=True)
class Agreed:
    """The row with which a data directory last agreed. Generation 0: with none yet."""

    cluster: str = ""
    generation: int = 0
    fingerprint: str = ""


NEVER = Agreed()
"""A data directory that has not agreed with a row yet."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Keys of a data directory. `authorities` are empty without a CA, `fingerprint` without the key of the CA."""

    place: str
    """Directory of the files, for errors."""
    authorities: tuple[str, ...] = ()
    fingerprint: str = ""
    agreed: Agreed = NEVER


def next_action(disk: OnDisk, row: Row | None) -> Action:
    """Return the step of a server that shares its keys. Raises ConfigError for the CA of another cluster."""
    if row is None:
        return Action.SEAL
    check_cluster(disk, row)
    if not row.is_sealed:
        if not disk.authorities:
            raise ConfigError(
                f"this store belongs to the cluster of the CA {row.authorities[0]}, whose keys are in the data directory of its "
                "first server alone: start that one with --server-token-file, which seals them in the store, then this one with "
                "the same token"
            )
        return Action.SEAL
    if not disk.authorities:
        return Action.TAKE
    if disk.fingerprint == row.fingerprint:
        return Action.KEEP
    is_same_cluster, agreed = disk.agreed.cluster == row.cluster, disk.agreed.generation
    if not is_same_cluster or not disk.fingerprint or agreed < row.generation:
        return Action.TAKE
    if agreed == row.generation and row.authorities[0] not in disk.authorities:
        raise ConfigError(
            f"{disk.place} was changed by hand and does not trust {row.authorities[0]}, the CA that issues in this cluster: "
            "move ca.crt and ca.key away to take those of the cluster, or replace its CA with mooring ca rollover"
        )
    return Action.STORE


def check_cluster(disk: OnDisk, row: Row) -> None:
    """Raise ConfigError when the CA of a data directory is of another cluster than the row."""
    if not disk.authorities or disk.agreed.cluster == row.cluster or are_related(disk.authorities, row.authorities):
        return
    raise ConfigError(
        f"the CA in {disk.place} is {disk.authorities[0]}, and the CA of the cluster in this store is {row.authorities[0]}: give "
        "the store of its own cluster, or, if this server is to join the other one, a new data directory (--data-dir)"
    )
