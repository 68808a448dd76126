"""Reconciliation of the keys in a data directory with those in the store: what a server does when it starts.

Rules kept here:
* A CA in a data directory is replaced only by a later CA of the same cluster. A server with a CA of its own is refused, and the
  error names both. Files that are not those which agreed with the row are of the cluster only when one of their CAs is.
* The keys of a cluster are made once. Where the store has a cluster, a missing key is taken from the sealed row, or the start is
  refused.
* The first row wins. Of several servers that start at once on an empty store, one stores its keys, and the others take them.
* The store wins over a data directory that is behind it. A data directory wins over a store that was restored from an earlier
  backup.
* A file that an operator changed since this server last agreed with the store is stored, if the data directory still trusts the CA
  that issues. Otherwise an old backup of `pki/` would take the CA away from every other server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mooring.errors import ConfigError
from mooring.trust.sharedkeys.envelope import SharedKeysRow
from mooring.trust.sharedkeys.keyset import CA, CA_KEY, LINEAGE_KEY, TOKEN_KEY, are_related

MADE_ONCE = (CA, CA_KEY, TOKEN_KEY, LINEAGE_KEY)
"""Files that cannot be made again: machines, tokens and the issuance log need them. The `.pub` files are made from the keys."""
NEW_KEYS_FLAG = "--new-cluster-keys"


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
    authorities: tuple[str, ...] = ()
    """CAs of the row; empty when the data directory recorded it before they were kept."""


NEVER = Agreed()
"""A data directory that has not agreed with a row yet."""


@dataclass(frozen=True, slots=True)
class KeysOnDisk:
    """Keys of a data directory. `authorities` are empty without a CA, `fingerprint` without the key of the CA."""

    place: str
    """Directory of the files, for errors."""
    authorities: tuple[str, ...] = ()
    fingerprint: str = ""
    agreed: Agreed = NEVER
    missing: tuple[str, ...] = ()
    """Files of MADE_ONCE that are not there."""
    lost: tuple[str, ...] = ()
    """Those of them that were there when the data directory last agreed with a row."""


@dataclass(frozen=True, slots=True)
class StoredCluster:
    """Cluster in a store without a row: another program, or an earlier version, filled it."""

    authorities: tuple[str, ...] = ()
    """Pins of the CAs that its objects name; empty when none does."""


class MissingKeysError(ConfigError):
    """Keys of the cluster in the store are not in the data directory."""


def next_action(disk: KeysOnDisk, row: SharedKeysRow | None) -> Action:
    """Return the step of a server that shares its keys. Raises ConfigError for the CA of another cluster."""
    if row is None:
        return Action.SEAL
    # First: no other rule applies to the CA of another cluster.
    check_cluster(disk, row)
    if not row.is_sealed:
        if not disk.authorities:
            raise ConfigError(
                f"this store belongs to the cluster of the CA {row.authorities[0]}, whose keys are in the data directory of its "
                "first server alone: start that one with --server-token-file, which seals them in the store, then this one with "
                f"the same token. If this is the first server, copy its pki/ back to {disk.place} from a backup; "
                f"mooring init {NEW_KEYS_FLAG} makes new keys"
            )
        return Action.SEAL
    if not disk.authorities:
        return Action.TAKE
    if disk.fingerprint == row.fingerprint:
        return Action.KEEP
    is_same_cluster, agreed = disk.agreed.cluster == row.cluster, disk.agreed.generation
    if disk.lost and is_same_cluster and agreed > row.generation:
        raise MissingKeysError(
            f"{', '.join(disk.lost)} missing in {disk.place}, and the store has older keys, because it was restored from an "
            "earlier backup: copy pki/ from another server or a backup, or move pki/ away to take the older keys"
        )
    if disk.lost:
        return Action.TAKE
    # The row is newer than what the files agreed with.
    if not is_same_cluster or not disk.fingerprint or agreed < row.generation:
        return Action.TAKE
    # The files were changed since they agreed. A rollover keeps the CA that issues among the trusted ones, a person may
    # not have.
    if agreed == row.generation and row.authorities[0] not in disk.authorities:
        raise ConfigError(
            f"{disk.place} was changed by hand and does not trust {row.authorities[0]}, the CA that issues in this cluster: "
            "move ca.crt and ca.key away to take those of the cluster, or replace its CA with mooring ca rollover"
        )
    return Action.STORE


def check_cluster(disk: KeysOnDisk, row: SharedKeysRow) -> None:
    """Raise ConfigError when the CA of a data directory is of another cluster than the row."""
    if not disk.authorities or are_related(disk.authorities, row.authorities) or _has_agreed(disk, row.cluster):
        return
    raise ConfigError(
        f"the CA in {disk.place} is {disk.authorities[0]}, and the CA of the cluster in this store is {row.authorities[0]}: give "
        "the store of its own cluster, or, if this server is to join the other one, a new data directory (--data-dir)"
    )


def _has_agreed(disk: KeysOnDisk, cluster: str) -> bool:
    """Return whether the files are those with which the data directory agreed with a row of the cluster."""
    agreed = disk.agreed
    return agreed.cluster == cluster and (
        disk.fingerprint == agreed.fingerprint or are_related(disk.authorities, agreed.authorities)
    )


def missing_keys(
    disk: KeysOnDisk, row: SharedKeysRow | None, stored: StoredCluster | None, unused: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the files of MADE_ONCE that the cluster in the store has, and the data directory has not.

    `stored`: the cluster in a store without a row; None for an empty store. `unused`: files in place of which flags name others.
    """
    if row is not None:
        wanted = row.names or MADE_ONCE
    elif stored is not None:
        # Another program keeps no issuance log.
        wanted = (CA, CA_KEY, TOKEN_KEY)
    else:
        return ()
    return tuple(name for name in disk.missing if name in wanted and name not in unused)


def check_complete(
    disk: KeysOnDisk, row: SharedKeysRow | None, stored: StoredCluster | None, unused: Sequence[str] = ()
) -> None:
    """Raise MissingKeysError when keys of the cluster in the store are missing, which no start makes again."""
    if missing := missing_keys(disk, row, stored, unused):
        known = row.authorities if row is not None else stored.authorities if stored is not None else ()
        whose = f"the cluster of the CA {known[0]}, which the store holds," if known else "the cluster in the store"
        raise MissingKeysError(_missing(disk.place, missing, whose))


def check_adoptable(disk: KeysOnDisk, stored: StoredCluster, client_cas: Sequence[str] = ()) -> None:
    """Raise ConfigError when the objects of a store without a row name CAs, and none of them is known here.

    `client_cas`: further CAs that verify clients of this server.
    """
    if not stored.authorities or are_related((*disk.authorities, *client_cas), stored.authorities):
        return
    raise ConfigError(
        f"the CA in {disk.place} is {disk.authorities[0]}, and the objects in this store are of a cluster with the CA "
        f"{stored.authorities[0]}: copy the pki/ of that cluster there, or give the store of its own cluster. To go on with other "
        f"keys, run mooring init {NEW_KEYS_FLAG} once: every machine then joins again"
    )


def _missing(place: str, names: Sequence[str], whose: str) -> str:
    return (
        f"{', '.join(names)} of {whose} {'is' if len(names) == 1 else 'are'} missing in {place}, and no other key can replace "
        f"{'it' if len(names) == 1 else 'them'}: mount the volume that has pki/, or copy pki/ from a backup or another server. "
        f"To make new keys, run mooring init {NEW_KEYS_FLAG} once, which locks out what depends on the old ones"
    )
