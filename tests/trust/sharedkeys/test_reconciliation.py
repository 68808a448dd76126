"""Reconciliation of a data directory with the keys in the store, as a table of sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mooring.errors import ConfigError
from mooring.trust.sharedkeys.envelope import SharedKeysRow
from mooring.trust.sharedkeys.keyset import NAMES
from mooring.trust.sharedkeys.reconciliation import (
    MADE_ONCE,
    Action,
    Agreed,
    KeysOnDisk,
    MissingKeysError,
    StoredCluster,
    check_adoptable,
    check_complete,
    missing_keys,
    next_action,
)

OLD, NEW, FOREIGN = "sha256:old", "sha256:new", "sha256:foreign"
EMPTY = KeysOnDisk("/data/pki")
HERE = KeysOnDisk("/data/pki", (OLD,), "one", Agreed("c", 3, "one"))
SEALED = SharedKeysRow("c", 3, "one", (OLD,), b"nonce", b"data")
CLAIM = SharedKeysRow("c", 1, "one", (OLD,))
ROLLED_OVER = replace(SEALED, generation=7, fingerprint="two", authorities=(NEW, OLD))
COMPROMISED = replace(ROLLED_OVER, authorities=(NEW,))
CHANGED = replace(HERE, fingerprint="two")

ACTIONS: dict[str, tuple[KeysOnDisk, SharedKeysRow | None, Action]] = {
    "the first server of a cluster seals its keys": (EMPTY, None, Action.SEAL),
    "a server with keys from before there was a row seals them": (replace(HERE, agreed=Agreed()), None, Action.SEAL),
    "a server whose store is new seals its keys": (HERE, None, Action.SEAL),
    "the server whose CA claimed the store seals its keys": (replace(HERE, agreed=Agreed()), CLAIM, Action.SEAL),
    "a further server takes the keys": (EMPTY, SEALED, Action.TAKE),
    "a server that starts again keeps its keys": (HERE, SEALED, Action.KEEP),
    "a server that was given the keys as files keeps them": (replace(HERE, agreed=Agreed()), SEALED, Action.KEEP),
    "a server that was off takes what changed": (HERE, ROLLED_OVER, Action.TAKE),
    "a server that missed a rollover of a stolen CA follows": (HERE, COMPROMISED, Action.TAKE),
    "a server whose CA is known, and that never agreed, follows": (
        replace(HERE, agreed=Agreed()),
        ROLLED_OVER,
        Action.TAKE,
    ),
    "a server that lost the key of the CA takes it": (replace(HERE, fingerprint=""), SEALED, Action.TAKE),
    "a server that was killed while it took keys takes them again": (
        replace(HERE, fingerprint="half"),
        ROLLED_OVER,
        Action.TAKE,
    ),
    "a server that lost a key which the store has takes it": (
        replace(CHANGED, missing=("sa.key",), lost=("sa.key",)),
        SEALED,
        Action.TAKE,
    ),
    "a file that was changed by hand is stored": (CHANGED, SEALED, Action.STORE),
    "a store from an earlier backup gets the present keys": (CHANGED, replace(SEALED, generation=2), Action.STORE),
}


@pytest.mark.parametrize(("disk", "row", "action"), ACTIONS.values(), ids=ACTIONS)
def test_actions(disk: KeysOnDisk, row: SharedKeysRow | None, action: Action) -> None:
    assert next_action(disk, row) is action


REFUSED: dict[str, tuple[KeysOnDisk, SharedKeysRow, str]] = {
    "a server with a CA of its own": (
        KeysOnDisk("/data/pki", (FOREIGN,), "x"),
        SEALED,
        f"the CA in /data/pki is {FOREIGN}, and the CA of the cluster in this store is {OLD}: ",
    ),
    "a server of another cluster": (
        KeysOnDisk("/data/pki", (FOREIGN,), "x", Agreed("other", 9, "x")),
        CLAIM,
        f"the CA in /data/pki is {FOREIGN}, and the CA of the cluster in this store is {OLD}: ",
    ),
    "a server that has another CA beside the record of its cluster": (
        KeysOnDisk("/data/pki", (FOREIGN,), "x", Agreed("c", 3, "one", (OLD,))),
        CLAIM,
        f"the CA in /data/pki is {FOREIGN}, and the CA of the cluster in this store is {OLD}: ",
    ),
    "a server that lost a key which is newer than the store": (
        replace(HERE, agreed=Agreed("c", 4, "new"), missing=("sa.key",), lost=("sa.key",)),
        replace(SEALED, fingerprint="older"),
        "sa.key missing in /data/pki, and the store has older keys",
    ),
    "a further server before the keys are sealed": (EMPTY, CLAIM, "start that one with --server-token-file"),
    "a server on which an old backup of pki/ was restored": (
        replace(HERE, agreed=Agreed("c", 7, "two")),
        ROLLED_OVER,
        f"does not trust {NEW}, the CA that issues",
    ),
}


@pytest.mark.parametrize(("disk", "row", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(disk: KeysOnDisk, row: SharedKeysRow, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        next_action(disk, row)


def test_a_server_that_was_killed_while_it_took_unrelated_keys_goes_on() -> None:
    disk = replace(HERE, fingerprint="half", agreed=Agreed("c", 3, "one", (OLD,)))
    assert next_action(disk, COMPROMISED) is Action.TAKE


# ── keys are made once ────────────────────────────────────────────────────────────────────────────────────────────

NAMED = replace(CLAIM, names=NAMES)
KNOWN, UNKNOWN = StoredCluster((OLD,)), StoredCluster()
ALL = replace(EMPTY, missing=MADE_ONCE)

MISSING: dict[str, tuple[KeysOnDisk, SharedKeysRow | None, StoredCluster | None, tuple[str, ...], tuple[str, ...]]] = {
    "an empty store has no cluster: its keys are made": (ALL, None, None, (), ()),
    "the directory of another volume has no keys": (ALL, NAMED, None, (), MADE_ONCE),
    "a claim from before files were recorded is of all keys": (ALL, CLAIM, None, (), MADE_ONCE),
    "nothing is missing": (HERE, NAMED, None, (), ()),
    "one key is missing": (replace(HERE, missing=("lineage.key",)), NAMED, None, (), ("lineage.key",)),
    "a key that the cluster never had is made": (
        replace(HERE, missing=("sa.key",)),
        replace(CLAIM, names=("ca.crt", "ca.key", "lineage.key")),
        None,
        (),
        (),
    ),
    "a key in place of which a flag names another is not needed": (
        replace(HERE, missing=("sa.key",)),
        NAMED,
        None,
        ("sa.key",),
        (),
    ),
    "the cluster of a kube-apiserver has no issuance log": (ALL, None, KNOWN, (), ("ca.crt", "ca.key", "sa.key")),
}


@pytest.mark.parametrize(("disk", "row", "stored", "unused", "names"), MISSING.values(), ids=MISSING)
def test_missing_keys_of_a_cluster(
    disk: KeysOnDisk,
    row: SharedKeysRow | None,
    stored: StoredCluster | None,
    unused: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    assert missing_keys(disk, row, stored, unused) == names
    if not names:
        check_complete(disk, row, stored, unused)
        return
    with pytest.raises(MissingKeysError) as raised:
        check_complete(disk, row, stored, unused)
    assert str(raised.value).startswith(f"{', '.join(names)} of the cluster of the CA {OLD}, which the store holds, ")
    assert "mooring init --new-cluster-keys" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_keys_of_a_cluster_whose_ca_is_not_known() -> None:
    with pytest.raises(MissingKeysError, match=r"^ca\.key of the cluster in the store is missing in /data/pki, "):
        check_complete(replace(HERE, missing=("ca.key",)), None, UNKNOWN)


def test_a_cluster_without_a_record_is_adopted_by_a_server_that_knows_one_of_its_cas() -> None:
    check_adoptable(HERE, UNKNOWN)
    check_adoptable(HERE, StoredCluster((FOREIGN, OLD)))
    check_adoptable(HERE, StoredCluster((FOREIGN,)), client_cas=(FOREIGN,))
    with pytest.raises(ConfigError, match=f"the CA in /data/pki is {OLD}, and the objects .* the CA {FOREIGN}: "):
        check_adoptable(HERE, StoredCluster((FOREIGN,)), client_cas=(NEW,))
