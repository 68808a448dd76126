"""Watch events: JSON frames, one on each line, written and read.

Rules kept here:
* A frame is `{"type":"<TYPE>","object":<raw>}` and a newline; `raw` is the stored bytes of the object, inserted without
  decoding (law 5). They contain no newline, because they are encoded without indentation.
* A bookmark is an object with kind, apiVersion and metadata.resourceVersion only; the one that ends the initial events of a
  watch-list has the annotation `k8s.io/initial-events-end: "true"`.
* The object of an ERROR frame is a Status.
* The reader takes bytes in any split and returns each event once, when its line is complete. A line that is not an event is a
  PeerError. An incomplete line at the end of a broken stream is dropped.

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
"""Bytes of one event that a reader accepts: twice the largest stored object, for escapes."""

_HEADS = {kind: f'{{"type":"{kind}","object":'.encode() for kind in TYPES}


def event_frame(type: str, raw: bytes) -> bytes:  # noqa: A002 - the field's own name on the wire
    """Return the frame of one event; `raw` is the object as encoded JSON."""
    return b"%b%b}\n" % (_HEADS[type], raw)


def bookmark(resource: Resource, revision: int, initial_end: bool = False) -> Obj:
    """Return the object of a BOOKMARK event."""
    metadata: Obj = {"resourceVersion": str(revision)}
    if initial_end:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One received event. For ERROR, `object` is a Status: see `mooring.apimachinery.status.error_of`."""

    type: str
    object: Obj


class _Frame(msgspec.Struct):
    type: str
    object: Obj


_frame = msgspec.json.Decoder(_Frame)


class FrameReader:
    """Decodes the events of a stream of bytes in any split."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[WatchEvent]:
        """Return the events that `data` completes. After PeerError the stream cannot be read further."""
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
        # These bytes are not searched again: a long line in small pieces costs linear time.
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
        raise PeerError("the server sent a line that is not a watch event; list again") from None
    return WatchEvent(frame.type, frame.object)
