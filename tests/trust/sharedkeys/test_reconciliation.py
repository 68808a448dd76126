"""Reconciliation of a data directory with the keys in the store, as a table of sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mooring.errors import ConfigError
from mooring.trust.sharedkeys.envelope import Row
from mooring.trust.sharedkeys.reconciliation import Action, Agreed, OnDisk, next_action

OLD, NEW, FOREIGN = "sha256:old", "sha256:new", "sha256:foreign"
EMPTY = OnDisk("/data/pki")
HERE = OnDisk("/data/pki", (OLD,), "one", Agreed("c", 3, "one"))
SEALED = Row("c", 3, "one", (OLD,), b"nonce", b"data")
CLAIM = Row("c", 1, "one", (OLD,))
ROLLED_OVER = replace(SEALED, generation=7, fingerprint="two", authorities=(NEW, OLD))
COMPROMISED = replace(ROLLED_OVER, authorities=(NEW,))
CHANGED = replace(HERE, fingerprint="two")

ACTIONS: dict[str, tuple[OnDisk, Row | None, Action]] = {
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
    "a file that was changed by hand is stored": (CHANGED, SEALED, Action.STORE),
    "a store from an earlier backup gets the present keys": (CHANGED, replace(SEALED, generation=2), Action.STORE),
}


@pytest.mark.parametrize(("disk", "row", "action"), ACTIONS.values(), ids=ACTIONS)
def test_actions(disk: OnDisk, row: Row | None, action: Action) -> None:
    assert next_action(disk, row) is action


REFUSED: dict[str, tuple[OnDisk, Row, str]] = {
    "a server with a CA of its own": (
        OnDisk("/data/pki", (FOREIGN,), "x"),
        SEALED,
        f"the CA in /data/pki is {FOREIGN}, and the CA of the cluster in this store is {OLD}: ",
    ),
    "a server of another cluster": (
        OnDisk("/data/pki", (FOREIGN,), "x", Agreed("other", 9, "x")),
        CLAIM,
        f"the CA in /data/pki is {FOREIGN}, and the CA of the cluster in this store is {OLD}: ",
    ),
    "a further server before the keys are sealed": (EMPTY, CLAIM, "start that one with --server-token-file"),
    "a server on which an old backup of pki/ was restored": (
        replace(HERE, agreed=Agreed("c", 7, "two")),
        ROLLED_OVER,
        f"does not trust {NEW}, the CA that issues",
    ),
}


@pytest.mark.parametrize(("disk", "row", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(disk: OnDisk, row: Row, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        next_action(disk, row)
