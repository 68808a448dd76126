"""The watermark of a server as text: what it keeps, and which texts are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.trust.issuancelog import Checkpoint
from mooring.trust.storewatermark import (
    MAX_CHECKPOINTS,
    MAX_REVISION,
    MAX_TOMBSTONES,
    Watermark,
    make_room,
    parse_watermark,
)

HEAD = Checkpoint(2, "sha256:" + "2" * 64)
FULL = Watermark(7, "uid", (HEAD,), {"node": {"n1": {"uid": "u1"}}}, "0a", 3)


def test_a_watermark_is_read_as_it_was_written() -> None:
    assert parse_watermark(FULL.encode()) == FULL
    assert parse_watermark(Watermark().encode()) == Watermark()


def test_the_head_of_a_watermark_is_the_newest_record() -> None:
    assert (Watermark().head, Watermark(issuance_log=(Checkpoint(1, HEAD.hash), HEAD)).head) == (None, HEAD)


def test_a_watermark_of_an_earlier_version_has_no_count() -> None:
    document = json.loads(FULL.encode())
    del document["server"], document["witness"]
    assert parse_watermark(json.dumps(document).encode()) == replace(FULL, server="", epoch=0)


def test_the_newest_tombstones_and_checkpoints_are_kept() -> None:
    many = {"node": {f"n{number}": {"uid": "u"} for number in range(MAX_TOMBSTONES + 1)}, "token": {}}
    heads = tuple(Checkpoint(number, HEAD.hash) for number in range(1, MAX_CHECKPOINTS + 2))
    kept = parse_watermark(Watermark(1, "", heads, many).encode())
    assert (len(kept.tombstones["node"]), "n0" in kept.tombstones["node"], "token" in kept.tombstones) == (
        MAX_TOMBSTONES,
        False,
        False,
    )
    assert kept.issuance_log == heads[1:]


@pytest.mark.parametrize(
    ("tombstones", "kept"),
    [
        pytest.param({"a": {}, "b": {}}, ["a", "b"], id="two have room"),
        pytest.param({"a": {}, "b": {}, "c": {}}, ["b", "c"], id="the oldest goes"),
        pytest.param({"a": {}, "b": {}, "c": {}, "d": {}}, ["c", "d"], id="so do two"),
        pytest.param(
            {"a": {"expiry": "2"}, "b": {"expiry": "0"}, "c": {}}, ["a", "c"], id="one that is over goes first"
        ),
        pytest.param(
            {"a": {"expiresAt": "2"}, "b": {"expiresAt": "0"}, "c": {}},
            ["a", "c"],
            id="so does the revocation of a certificate that has ended",
        ),
        pytest.param(
            {"a": {}, "b": {"expiry": "0"}, "c": {}, "d": {}}, ["c", "d"], id="one that is over, and the oldest"
        ),
    ],
)
def test_the_tombstones_of_a_kind_are_bounded(
    monkeypatch: pytest.MonkeyPatch, tombstones: dict[str, Any], kept: list[str]
) -> None:
    monkeypatch.setattr("mooring.trust.storewatermark.MAX_TOMBSTONES", 2)
    make_room(tombstones, "1")
    assert list(tombstones) == kept


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"revision": -1},
        {"revision": MAX_REVISION + 1},
        {"revision": True},
        {"revision": "7"},
        {"cluster": None},
        {"lineage": "x"},
        {"lineage": [1]},
        {"lineage": ["junk"]},
        {"ends": []},
        {"ends": {"node": []}},
        {"ends": {"node": {"n1": "u1"}}},
        {"server": 1},
        {"server": "../x"},
        {"witness": -1},
        {"witness": True},
        {"witness": MAX_REVISION + 1},
    ],
    ids=str,
)
def test_a_text_with_another_value_is_refused_whole(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_watermark(json.dumps({**json.loads(FULL.encode()), **change}).encode())


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[" * 100_000, b"[]", b"7"], ids=["empty", "bytes", "deep", "list", "number"]
)
def test_a_text_that_is_no_watermark_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_watermark(text)
