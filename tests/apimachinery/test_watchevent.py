"""Watch frames.

Source: docs/protocol/watch.md.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message
from mooring.apimachinery.watchevent import (
    ADDED,
    DELETED,
    MODIFIED,
    TYPES,
    FrameReader,
    WatchEvent,
    bookmark,
    event_frame,
)
from mooring.errors import PeerError

LEASES = Resource(
    group="coordination.k8s.io",
    version="v1",
    kind="Lease",
    plural="leases",
    namespaced=True,
    schema=Message("Lease", ()),
)


@pytest.mark.parametrize("kind", TYPES)
def test_a_frame_is_one_line_with_the_object_as_it_was(kind: str) -> None:
    assert event_frame(kind, b'{"a": 1.50}') == b'{"type":"' + kind.encode() + b'","object":{"a": 1.50}}\n'


def test_an_unknown_type_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        event_frame("CHANGED", b"{}")


def test_a_bookmark_carries_the_version_and_nothing_else() -> None:
    assert bookmark(LEASES, 12) == {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"resourceVersion": "12"},
    }


def test_the_bookmark_after_the_initial_events_is_annotated() -> None:
    last = bookmark(LEASES, 12, initial_end=True)
    assert last["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


EVENTS = [WatchEvent(ADDED, {"a": "é\n"}), WatchEvent(MODIFIED, {"b": [1]}), WatchEvent(DELETED, {})]
STREAM = b"".join(event_frame(event.type, json.dumps(event.object).encode()) for event in EVENTS)


def test_events_are_read_whole_and_byte_by_byte_and_with_a_tail() -> None:
    assert FrameReader().feed(STREAM) == EVENTS
    reader = FrameReader()
    assert [event for byte in STREAM for event in reader.feed(bytes([byte]))] == EVENTS
    assert reader.feed(STREAM + b'{"type"') == EVENTS
    assert reader.feed(b':"ADDED","object":{}}\n') == [WatchEvent(ADDED, {})]


@given(st.lists(st.integers(0, len(STREAM)), max_size=6).map(sorted))
def test_events_are_read_however_the_stream_is_cut(cuts: list[int]) -> None:
    reader = FrameReader()
    pieces = [STREAM[start:end] for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_empty_lines_and_carriage_returns_are_nothing() -> None:
    assert FrameReader().feed(b"\n\r\n" + STREAM.replace(b"\n", b"\r\n")) == EVENTS


@pytest.mark.parametrize(
    "line",
    [
        b"junk",
        b"[]",
        b'{"type":1,"object":{}}',
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":[]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_not_an_event_is_a_peer_error(line: bytes) -> None:
    with pytest.raises(PeerError, match="not a watch event"):
        FrameReader().feed(line + b"\n")


@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n", b"\n" + b"x" * 11 + b"\n"])
def test_an_event_above_the_limit_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(PeerError, match="more than 10 bytes"):
        FrameReader(limit=10).feed(data)


def test_many_events_above_the_limit_together_are_none() -> None:
    assert FrameReader(limit=len(STREAM) // 2).feed(STREAM) == EVENTS


@given(st.binary(max_size=60))
def test_junk_is_never_more_than_a_peer_error(data: bytes) -> None:
    try:
        FrameReader().feed(data + b"\n")
    except PeerError:
        return
