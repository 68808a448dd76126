"""Bound the size of one audit record, by cutting long strings, lists and maps.

Rules kept here:
* The bound is on the encoded record, because 60 kB of the byte 0xFF in a path would become 180 kB of JSON.
* A record is at most `MAX_RECORD` without its bodies. In a larger one every long string and list is cut, to shorter limits each
  round until it fits: names, groups, extra, URI, User-Agent, annotations, and any field added later.
* A record of a client that was not authenticated is at most `MAX_ANONYMOUS` without its bodies: everything in it is that client's.
* Each cut is marked in place with the amount that is missing, and the record has kube-apiserver's annotation
  `audit.k8s.io/truncated: "true"`.
* A body is at most `MAX_OBJECT` as encoded here. A larger one is left out, and an annotation says so.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

MAX_RECORD = 16 << 10
"""Bytes of a record without bodies: five hundred group names fit, a header of 60 kB does not."""
MAX_ANONYMOUS = 2 << 10
"""Bytes of a record of an unauthenticated client: 64 kB of headers must not buy eight times an ordinary record."""
MAX_OBJECT = 2 << 20
"""Bytes of a body in a record: every object fits that fits into the store, 1.5 MiB; long lists do not."""
TRUNCATED = "audit.k8s.io/truncated"
OMITTED = "audit.mooring.dev/omitted"
BODIES = ("requestObject", "responseObject")
_LIMITS = (4096, 1024, 256, 64, 16, 8)
"""Characters kept of a string, tried in turn. Lists and maps keep an eighth as many members."""
_WHOLE = frozenset(("kind", "apiVersion", "level", "auditID", "stage", "sourceIPs"))
"""Fields that are never cut: the server bounds them, the id finds the record, and the last address is the one that is proven."""
_FIELDS = 8
"""Members that a map always keeps: no part of a record has more fields."""

_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\u0085\u2028\u2029")
"""Characters that end a line for readers of Unicode text (Python's `splitlines`, some log shippers): a client chooses them."""
_encoder = msgspec.json.Encoder()


def _encode(value: Any) -> bytes:
    """Return JSON without a character that ends a line."""
    line = _encoder.encode(value)
    for end, escaped in _LINE_ENDS:
        line = line.replace(end, escaped)
    return line


def encode_record(event: dict[str, Any], limit: int = MAX_RECORD) -> bytes:
    """Return the record as one line of JSON of `limit` bytes and its bodies; `event` may be changed."""
    line = _encode(event)
    if len(line) <= limit:
        return line
    bodies = {name: msgspec.Raw(_encode(event.pop(name))) for name in BODIES if name in event}
    large = [name for name, body in bodies.items() if len(body) > MAX_OBJECT]
    if large:
        known = event["annotations"].get(OMITTED)
        omitted = [*([known] if known else []), *(f"{name} is too large" for name in large)]
        event["annotations"] = {**event["annotations"], OMITTED: ", ".join(omitted)}
    rest = _encode(event)
    if len(rest) > limit:
        event = _truncate(event, limit)
    kept = {name: body for name, body in bodies.items() if name not in large}
    return _encode({**event, **kept}) if kept else _encode(event)


def _truncate(event: dict[str, Any], limit: int) -> dict[str, Any]:
    for kept in _LIMITS:
        annotations = _cut(event["annotations"], kept)
        found = {name: value if name in _WHOLE else _cut(value, kept) for name, value in event.items()}
        found["annotations"] = {**annotations, TRUNCATED: "true"}
        if len(_encode(found)) <= limit:
            return found
    raise AssertionError("unreachable: the fields of a record are few, and the last limit is small")


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}...({len(value) - limit} more characters)"
    members = limit // 8
    if isinstance(value, list | tuple):
        found = [_cut(one, limit) for one in value[:members]]
        return found if len(value) <= members else [*found, f"...({len(value) - members} more)"]
    if isinstance(value, dict):
        members = max(members, _FIELDS)
        kept = {_cut(name, limit): _cut(one, limit) for name, one in islice(value.items(), members)}
        if len(value) > members:
            more = f"...({len(value) - members} more)"
            kept["..."] = more if isinstance(next(iter(value.values())), str) else [more]
        return kept
    return value
