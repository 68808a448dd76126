"""Which records one request leaves: the policy's decision, the stages, and the bodies that may be kept.

Rules kept here (docs/protocol/audit.md):
* Without a policy a request leaves one record, at level Metadata, when it is over. With one, it is asked once for each request,
  about who proved to send it and not whom they act as.
* Stages: RequestReceived before anything is done; ResponseStarted when a watch begins; ResponseComplete at the end, or Panic
  when the server ran into a bug of its own.
* Level Request keeps the body that was sent, RequestResponse the answer too; a watch's events are never kept.
* Law 9 comes before the policy: of Secrets, TokenReviews and TokenRequests no body is ever kept, whatever the policy says, and
  their records say level Metadata. Nothing is picked out of these bodies either: `kubectl apply` writes whole Secrets into an
  annotation. Where such an object is sent to the wrong path, it is left out there too.
* A body that is too large, or that cannot be read, is left out, and an annotation says so. `auditbounds` bounds all the rest.
* Records of requests that were refused, and of those without an identity, are marked for `AuditLog`, which keeps them from pushing
  out the others.
"""

from __future__ import annotations

from typing import Any

from mooring.api.kinds import by_resource
from mooring.apimachinery.auditpolicy import (
    METADATA,
    PANIC,
    REQUEST_RECEIVED,
    RESPONSE_COMPLETE,
    RESPONSE_STARTED,
    AuditPolicy,
    Decision,
    Level,
)
from mooring.apimachinery.codec.json import decode_json
from mooring.apimachinery.codec.protobuf.decode import decode_message
from mooring.apimachinery.codec.protobuf.envelope import decode_envelope
from mooring.apimachinery.codec.requestbody import body_media
from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.metav1 import DELETE_OPTIONS, STATUS, list_of
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.apimachinery.schema import Message, Obj
from mooring.clock import Clock
from mooring.errors import BadRequestError, MooringError
from mooring.identity import ANONYMOUS
from mooring.server.audit.event import audit_event
from mooring.server.audit.logfile import AuditLog
from mooring.server.audit.truncate import MAX_OBJECT, OMITTED
from mooring.server.requestcontext import Context
from mooring.server.transport.http import Body, Request, Response, in_pieces

_REFUSED = frozenset((401, 403, 429))
_NOBODY = frozenset(("", ANONYMOUS))
_SECRET = frozenset(
    (
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("authentication.k8s.io", "tokenreviews", ""),
    )
)
_SECRET_KINDS = frozenset(("Secret", "SecretList", "TokenReview", "TokenRequest"))


class Auditor:
    """One per server process."""

    def __init__(self, log: AuditLog, policy: AuditPolicy | None, clock: Clock) -> None:
        self._log = log
        self._policy = policy if log.enabled else None
        self._clock = clock
        self.on_arrival = self._policy is not None
        """Whether `received` has anything to do."""

    def received(self, context: Context) -> None:
        """The sender is known, and nothing is done yet."""
        decision = self._decide(context)
        if decision.keeps(REQUEST_RECEIVED):
            self._record(context, decision, REQUEST_RECEIVED, 0, "")

    def started(self, context: Context, status: int) -> None:
        """The first bytes of a watch go out."""
        decision = self._decide(context)
        if decision.keeps(RESPONSE_STARTED):
            self._record(context, decision, RESPONSE_STARTED, status, "")

    def finished(
        self, context: Context, status: int, reason: str, response: Response | None = None, panic: bool = False
    ) -> None:
        """The request is over; `response` is what was answered, unless it was a watch."""
        if not self._log.enabled:
            return
        stage = PANIC if panic else RESPONSE_COMPLETE
        decision = METADATA if self._policy is None else self._decide(context)
        if decision is METADATA or decision.keeps(stage):
            self._record(context, decision, stage, status, reason, response)

    def _decide(self, context: Context) -> Decision:
        if self._policy is None:
            return METADATA
        if context.audit is None:
            context.audit = self._policy.decide(context.impersonator or context.user, context.info)
        return context.audit

    def _record(
        self,
        context: Context,
        decision: Decision,
        stage: str,
        status: int,
        reason: str,
        response: Response | None = None,
    ) -> None:
        request, info = context.request, context.info
        level = decision.level
        annotations = context.annotations
        plain = decision is METADATA or level is Level.METADATA  # the common case pays for nothing else
        if not plain and (info.group, info.resource, info.subresource) in _SECRET:
            level, plain = Level.METADATA, True
            annotations = {**annotations, OMITTED: "bodies of this kind hold secrets"}
        event = audit_event(
            audit_id=context.audit_id,
            uri=request.uri,
            verb=info.verb,
            user=context.impersonator or (context.user if context.user.username else None),
            impersonated=context.user if context.impersonator is not None else None,
            constraint=context.constraint,
            source=request.connection.source,
            user_agent=request.header(b"user-agent"),
            object_ref=_reference(info, context.created) if info.is_resource else None,
            code=status,
            reason=reason,
            received=context.received,
            completed=self._clock.now(),
            annotations=annotations,
            level="Metadata" if plain else level.text,
            stage=stage,
        )
        if not plain and stage != REQUEST_RECEIVED:
            omitted = [_keep(event, "requestObject", decision, context.body, _sent_type(request), info)]
            if level is Level.REQUEST_RESPONSE and response is not None:
                answered = _answered_type(response)
                omitted.append(_keep(event, "responseObject", decision, response.body, answered, info))
            if any(omitted):
                event["annotations"] = {**annotations, OMITTED: ", ".join(filter(None, omitted))}
        user = context.impersonator or context.user
        self._log.record(event, refused=status in _REFUSED or user.username in _NOBODY)


def _reference(info: RequestInfo, created: str) -> dict[str, str]:
    """What the request is about; nothing is said of what it does not name."""
    told = {"resource": info.resource}
    if info.namespace:
        told["namespace"] = info.namespace
    if info.name or created:
        told["name"] = info.name or created
    if info.group:
        told["apiGroup"] = info.group
    told["apiVersion"] = info.version
    if info.subresource:
        told["subresource"] = info.subresource
    return told


def _sent_type(request: Request) -> str:
    return request.header(b"content-type")


def _answered_type(response: Response) -> str:
    return next((value.decode("latin-1") for name, value in response.headers if name == b"content-type"), "")


def _keep(event: Obj, key: str, decision: Decision, body: bytes | Body, content_type: str, info: RequestInfo) -> str:
    """Put a body into the record; otherwise say why not."""
    pieces, size = in_pieces(body)
    if not size or not info.is_resource:
        return ""
    if size > MAX_OBJECT:
        return f"{key} is too large"
    try:
        found = _object(b"".join(pieces), content_type, info)
    except (MooringError, UnicodeDecodeError):
        return f"{key} cannot be read"
    if isinstance(found, dict) and found.get("kind") in _SECRET_KINDS:
        return f"{key} holds secrets"
    if decision.omit_managed_fields:
        _drop_managed_fields(found)
    event[key] = found
    return ""


def _object(body: bytes, content_type: str, info: RequestInfo) -> Any:
    kept = content_type.partition(";")[0].strip().lower()
    if kept.endswith("-patch+yaml"):
        try:
            return decode_json(body)  # kubectl sends JSON, which is read a hundred times as fast
        except BadRequestError:
            return decode_yaml(body.decode())[0]
    media = "json" if kept.endswith("-patch+json") else body_media(content_type)
    if media == "json":
        return decode_json(body)
    if media == "yaml":
        return decode_yaml(body.decode())[0]
    api_version, kind, raw = decode_envelope(body)
    return {"kind": kind, "apiVersion": api_version, **decode_message(raw, _schema(kind, info))}


def _schema(kind: str, info: RequestInfo) -> Message:
    """The schema of a protobuf body that a request of this kind carries or gets."""
    served = by_resource(info.group, info.version, info.resource)
    if kind == "DeleteOptions":
        return DELETE_OPTIONS
    if kind == "Status" or served is None:
        return STATUS
    return list_of(served.resource.schema) if kind.endswith("List") else served.resource.schema


def _drop_managed_fields(found: Any) -> None:
    if not isinstance(found, dict):
        return
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    items = found.get("items")
    for item in items if isinstance(items, list) else ():
        _drop_managed_fields(item)
