"""Build audit records: `Event` of audit.k8s.io/v1 (docs/protocol/audit.md).

A record holds the user, the request, the times, the addresses and the outcome, and never another header or a token. An audit
policy may add bodies (`mooring.server.audit.auditor`). The query of the request URI is kept, because no credential of Mooring
travels in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mooring.clock import rfc3339_micro
from mooring.identity import UserInfo
from mooring.settings.addresses import parse_address

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
