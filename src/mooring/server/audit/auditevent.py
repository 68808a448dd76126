"""Audit records: `Event` of audit.k8s.io/v1, their size, and the policy that decides on them (docs/protocol/audit.md)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from mooring.apimachinery.auditpolicy import MAX_BYTES, AuditPolicy, parse_policy
from mooring.client.files import read_limited
from mooring.clock import rfc3339_micro
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.settings.addresses import parse_address

# Build audit records: `Event` of audit.k8s.io/v1 (docs/protocol/audit.md).
#
# A record holds the user, the request, the times, the addresses and the outcome, and never another header or a token. An audit
# policy may add bodies (`mooring.server.audit.auditor`). The query of the request URI is kept, because no credential of Mooring
# travels in one.

MAX_FORWARDED = 8
"""Addresses of X-Forwarded-For in a record: more proxies than are found before a server, and few enough that none is cut."""


def user_record(user: UserInfo) -> dict[str, Any]:
    """Return a user as UserInfo of authentication.k8s.io/v1."""
    record: dict[str, Any] = {"username": user.username}
    if user.uid:
        record["uid"] = user.uid
    if user.groups:
        record["groups"] = user.groups
    if user.extra:
        record["extra"] = dict(user.extra)
    return record


def _time(moment: datetime) -> datetime | str:
    """Return what is encoded like `rfc3339_micro(moment)`: the encoder writes times itself, but leaves out microseconds of zero."""
    return moment if moment.microsecond and moment.tzinfo is UTC else rfc3339_micro(moment)


def source_addresses(forwarded_for: str, real_ip: str, source: str) -> tuple[str, ...]:
    """Return `sourceIPs` of a request: the addresses of its headers X-Forwarded-For and X-Real-Ip, then that of the connection.

    The order of Kubernetes: the client may set all but the last one (docs/protocol/audit.md#events). Of a longer list the
    proxies nearest to this server are kept.
    """
    if not forwarded_for and not real_ip:
        return (source,) if source else ()
    named = [one.strip() for one in forwarded_for.rsplit(",", MAX_FORWARDED)[-MAX_FORWARDED:]]
    found = [str(address) for one in named if (address := parse_address(one)) is not None]
    real = parse_address(real_ip.strip())
    if real is not None and str(real) not in found:
        found.append(str(real))
    return (*found, source) if source and found[-1:] != [source] else tuple(found)


def audit_event(
    *,
    audit_id: str,
    uri: str,
    verb: str,
    user: UserInfo | None,
    sources: Sequence[str],
    user_agent: str,
    object_ref: dict[str, str] | None,
    code: int,
    reason: str,
    received: datetime,
    completed: datetime,
    annotations: dict[str, str],
    impersonated: UserInfo | None = None,
    constraint: str = "",
    level: str = "Metadata",
    stage: str = "ResponseComplete",
) -> dict[str, Any]:
    """Return one event. `code` is 0 before the reply, `sources` is empty for a write of the server itself."""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": level,
        "auditID": audit_id,
        "stage": stage,
        "requestURI": uri,
        "verb": verb,
        "user": user_record(user) if user is not None else {},
        "sourceIPs": sources,
        "userAgent": user_agent,
        "requestReceivedTimestamp": _time(received),
        "stageTimestamp": _time(completed),
        "annotations": annotations,
    }
    if code:
        failure = {"status": "Failure", "reason": reason} if reason else {}
        event["responseStatus"] = {"metadata": {}, "code": code, **failure}
    if object_ref:
        event["objectRef"] = object_ref
    if impersonated is not None:
        event["impersonatedUser"] = user_record(impersonated)
    if constraint:
        event["authenticationMetadata"] = {"impersonationConstraint": constraint}
    return event


# Bound the size of one audit record, by cutting long strings, lists and maps.
#
# Rules kept here:
# * The bound is on the encoded record, because 60 kB of the byte 0xFF in a path would become 180 kB of JSON.
# * A record is at most `MAX_RECORD` without its bodies. In a larger one every long string and list is cut, to shorter limits each
#   round until it fits: names, groups, extra, URI, User-Agent, annotations, and any field added later.
# * A record of a client that was not authenticated is at most `MAX_ANONYMOUS` without its bodies: everything in it is that
#   client's.
# * Each cut is marked in place with the amount that is missing, and the record has kube-apiserver's annotation
#   `audit.k8s.io/truncated: "true"`.
# * A body is at most `MAX_OBJECT` as encoded here. A larger one is left out, and an annotation says so.

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


# Read the audit policy from the file of `--audit-policy-file`.


def read_policy(path: str) -> AuditPolicy | None:
    """Return the audit policy in a file, or None for an empty path. Raises ConfigError."""
    if not path:
        return None
    try:
        data = read_limited(Path(path), MAX_BYTES)
    except ConfigError as error:
        raise ConfigError(f"audit-policy-file: {error}") from error
    return parse_policy(data, f"audit-policy-file: {path}")
