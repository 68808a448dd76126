"""The high-water mark of one server: how far its store had come, and what had ended by then, as text.

Rules kept here:
* Tombstones only grow: a watermark is compared with a store to see what a store that was restored would bring back.
* A tombstone has a kind, a name and a value. Kinds and what their values mean stand in `mooring.api.mooring.tombstones`.
* Of each kind MAX_TOMBSTONES are kept: those that are over make room first, then the oldest.
* A text that is not a watermark is refused whole: what cannot be read is not an empty watermark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeGuard

import msgspec

from mooring.errors import ConfigError
from mooring.trust.issuancelog import Checkpoint, parse_checkpoint

VERSION = 1
MAX_REVISION = 2**60
"""Revisions are below 2**63; a greater number is damage."""
MAX_TOMBSTONES = 10_000
"""Tombstones of each kind: a cluster of 5 000 nodes replaced twice. 10 000 take about 2 MB."""
MAX_CHECKPOINTS = 1000
"""Ends of the issuance log: one for each time that records were found to be missing."""

_SERVER = re.compile("[0-9a-f]{0,32}")

Value = Mapping[str, Any]
Tombstones = Mapping[str, Mapping[str, Value]]
"""Tombstones by kind and name, the oldest first."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Memory that one server has of its store."""

    revision: int = 0
    """Newest revision that was seen."""
    cluster: str = ""
    """uid of the Namespace kube-system, which identifies the cluster; "" before it was seen."""
    issuance_log: tuple[Checkpoint, ...] = ()
    """End of the issuance log, the newest last; the others are evidence of records that went missing."""
    tombstones: Tombstones = field(default_factory=dict)
    server: str = ""
    """Name of this server's count in the store; "" before the first one."""
    epoch: int = 0
    """Count that the store has, or had: a store with a lower one is older than this watermark."""

    @property
    def head(self) -> Checkpoint | None:
        """The newest record of the issuance log; None without any."""
        return self.issuance_log[-1] if self.issuance_log else None

    def encode(self) -> bytes:
        """Return the watermark as text."""
        document = {
            "version": VERSION,
            "revision": self.revision,
            "cluster": self.cluster,
            "lineage": [str(one) for one in self.issuance_log[-MAX_CHECKPOINTS:]],
            "ends": {
                kind: dict(list(tombstones.items())[-MAX_TOMBSTONES:])
                for kind, tombstones in self.tombstones.items()
                if tombstones
            },
            "server": self.server,
            "witness": self.epoch,
        }
        return msgspec.json.encode(document) + b"\n"  # 2 ms for 40 000 tombstones, where json takes 24


def make_room(tombstones: dict[str, Value], now: str) -> None:
    """Drop the tombstones of a kind that are too many: those that are over at `now`, then the oldest."""
    surplus = len(tombstones) - MAX_TOMBSTONES
    if surplus > 0:
        over = dict.fromkeys(islice((name for name, one in tombstones.items() if _end_of(one, now) < now), surplus))
        oldest = islice((name for name in tombstones if name not in over), surplus - len(over))
        for name in (*over, *oldest):
            del tombstones[name]


def _end_of(tombstone: Value, now: str) -> str:
    """Return the expiration of a token, or the end of a revoked certificate; `now` without one."""
    return str(tombstone.get("expiry") or tombstone.get("expiresAt") or now)


def parse_watermark(text: bytes) -> Watermark:
    """Return the watermark in a text. Raises ConfigError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ConfigError(f"it is not a watermark of version {VERSION}")
    revision, cluster = document.get("revision"), document.get("cluster")
    issuance_log, tombstones = document.get("lineage"), document.get("ends")
    if type(revision) is not int or not 0 <= revision <= MAX_REVISION or not isinstance(cluster, str):
        raise ConfigError("its revision or its cluster is damaged")
    if (
        not isinstance(issuance_log, list)
        or not all(isinstance(one, str) for one in issuance_log)
        or not _are_tombstones(tombstones)
    ):
        raise ConfigError("its issuance log or its tombstones are damaged")
    server, epoch = document.get("server", ""), document.get("witness", 0)  # a watermark of an earlier version has none
    if (
        not isinstance(server, str)
        or not _SERVER.fullmatch(server)
        or type(epoch) is not int
        or not 0 <= epoch <= MAX_REVISION
    ):
        raise ConfigError("its count of the store is damaged")
    return Watermark(revision, cluster, tuple(map(parse_checkpoint, issuance_log)), tombstones, server, epoch)


def _are_tombstones(found: Any) -> TypeGuard[Tombstones]:
    return isinstance(found, dict) and all(
        isinstance(names, dict) and all(isinstance(value, dict) for value in names.values()) for names in found.values()
    )
