"""Watch events on the wire: one JSON object a line.

Rules kept here:
* A frame is `{"type":"<TYPE>","object":<raw>}` and a newline; `raw` is the object's kept bytes, put in whole and never decoded
  (law 5). They hold no newline, because they were encoded without indentation.
* A bookmark is an object with kind, apiVersion and metadata.resourceVersion only; the one that ends the initial events of a
  watch-list carries the annotation `k8s.io/initial-events-end: "true"`.
* An ERROR frame carries a Status.
* The reader takes bytes in any split and gives each event once, when its line is complete. What is not an event is a
  PeerError; what is left at the end of a stream is half an event and is dropped, as the stream broke there.

Source: docs/protocol/watch.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.errors import PeerError

ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

MAX_FRAME = 8 * 1024 * 1024
"""Bytes of one event that a reader takes: twice what any server stores in one object, with room for escapes."""

_HEADS = {kind: f'{{"type":"{kind}","object":'.encode() for kind in TYPES}


def event_frame(type: str, raw: bytes) -> bytes:  # noqa: A002 - the field's own name on the wire
    """One line for one event; `raw` is the object as encoded JSON."""
    return b"%b%b}\n" % (_HEADS[type], raw)


def bookmark(resource: Resource, revision: int, initial_end: bool = False) -> Obj:
    """The object of a BOOKMARK event."""
    metadata: Obj = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event as received. For ERROR, `object` is a Status: see `mooring.apimachinery.status.error_of`."""

    type: str
    object: Obj


class _Frame(msgspec.Struct):
    type: str
    object: Obj


_frame = msgspec.json.Decoder(_Frame)


class FrameReader:
    """Events out of a stream of bytes, however it is cut."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[WatchEvent]:
        """The events that `data` completes. Raises PeerError; the stream is of no use after that."""
        buffer = self._buffer
        buffer += data
        events = []
        start = 0
        while (end := buffer.find(b"\n", max(start, self._searched))) >= 0:
            if end - start > self._limit:
                raise self._too_long()
            line = bytes(buffer[start:end]).strip()
            if line:
                events.append(_event(line))
            start = end + 1
        del buffer[:start]
        self._searched = len(buffer)
        if len(buffer) > self._limit:
            raise self._too_long()
        return events

    def _too_long(self) -> PeerError:
        return PeerError(f"the server sent a watch event of more than {self._limit} bytes; list again")


def _event(line: bytes) -> WatchEvent:
    try:
        frame = _frame.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise PeerError("the server sent something that is not a watch event; list again") from None
    return WatchEvent(frame.type, frame.object)
