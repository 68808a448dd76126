"""`mooring restore-check apply` where the object of one tombstone cannot be read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.apimachinery.schema import Obj
from mooring.cli.cluster import ChosenCluster
from mooring.cli.restorecheck import _apply_all
from mooring.clock import SystemClock
from mooring.errors import ConflictError, InternalServerError

LOST = 'Internal error occurred: unable to transform key "/registry/secrets/kube-system/bootstrap-token-lost00": no key'


class Restored:
    """A server whose store has two tokens that were deleted. One cannot be read; the other is the first of three of its id."""

    clock = SystemClock()

    def __init__(self) -> None:
        value = {"uid": "u3", tombstones.EARLIER: ["u2", "u1"]}
        keys = {f"token.{name}": tombstones.entry(name, value) for name in ("lost00", "other0")}
        self.config_map: Obj = {"metadata": {"name": tombstones.NAME}, "data": keys}
        self.deleted: list[str] = []

    async def get_path(self, path: str) -> Obj:
        assert path == "/version"
        return {"gitVersion": "v1.37.1+mooring-0.1.0"}

    async def get(self, plural: str, name: str, namespace: str = "") -> Obj:
        assert (plural, name) == (tombstones.CONFIG_MAPS, tombstones.NAME)
        return self.config_map

    async def update(self, plural: str, obj: Obj) -> Obj:
        self.config_map = obj
        return obj

    async def delete(self, plural: str, name: str, namespace: str, *, uid: str) -> None:
        if name.endswith("lost00"):
            raise InternalServerError(LOST)
        if uid != "u1":
            raise ConflictError("the uid is another")
        self.deleted.append(name)


def test_an_object_that_cannot_be_read_is_named_at_once_and_the_other_tombstones_are_applied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server: Any = Restored()
    left = asyncio.run(_apply_all(server, (), True, ChosenCluster("", "", timedelta(hours=1), SystemClock())))
    assert left == {"token.lost00": f"it waits until its object can be read, or is deleted: {LOST}"}
    assert server.deleted == ["bootstrap-token-other0"]
    assert set(server.config_map["data"]) == {"token.lost00"}
    assert "token.other0 applied" in capsys.readouterr().out
