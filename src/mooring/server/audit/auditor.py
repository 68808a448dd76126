"""Record requests as the audit policy decides: levels, stages, and bodies that may be kept (docs/protocol/audit.md).

Rules kept here:
* Without a policy a request leaves one record, at level Metadata, when it has ended. A policy is evaluated once for each request,
  for the authenticated user and not the impersonated one.
* Stages: RequestReceived before any work, ResponseStarted when a watch begins, ResponseComplete at the end, or Panic for a bug of
  the server.
* Level Request keeps the request body, RequestResponse the response body too. The events of a watch are never kept.
* No body of Secrets, TokenReviews and TokenRequests is ever kept, whatever the policy says, and their records have level Metadata
  (law 9). Parts of these bodies are not kept either, because `kubectl apply` writes whole Secrets into an annotation. Such an
  object that is sent to another path is left out there, too.
* A body that is too large or cannot be parsed is left out, and an annotation says so. `mooring.server.audit.truncate` bounds the
  rest.
* Records of refused and of anonymous requests are marked for `AuditLog`, so that they do not displace others.
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

_REFUSAL_CODES = frozenset((401, 403, 429))
_ANONYMOUS = frozenset(("", ANONYMOUS))
_RESOURCES_WITH_SECRETS = frozenset(
    (
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("authentication.k8s.io", "tokenreviews", ""),
    )
)
_KINDS_WITH_SECRETS = frozenset(("Secret", "SecretList", "TokenReview", "TokenRequest"))


class Auditor:
    """Recorder of the requests of one server process."""

    def __init__(self, log: AuditLog, policy: AuditPolicy | None, clock: Clock) -> None:
        self._log = log
        self._policy = policy if log.enabled else None
        self._clock = clock
        self.on_arrival = self._policy is not None
        """True when `received` must be called."""

    def received(self, context: Context) -> None:
        """Record stage RequestReceived, if the policy keeps it."""
        decision = self._decide(context)
        if decision.keeps(REQUEST_RECEIVED):
            self._record(context, decision, REQUEST_RECEIVED, 0, "")

    def started(self, context: Context, status: int) -> None:
        """Record stage ResponseStarted of a watch, if the policy keeps it."""
        decision = self._decide(context)
        if decision.keeps(RESPONSE_STARTED):
            self._record(context, decision, RESPONSE_STARTED, status, "")

    def finished(
        self, context: Context, status: int, reason: str, response: Response | None = None, panic: bool = False
    ) -> None:
        """Record the end of a request. `response` is the reply, None for a watch."""
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
        plain = decision is METADATA or level is Level.METADATA  # the common case, without bodies
        if not plain and (
            context.confidential or (info.group, info.resource, info.subresource) in _RESOURCES_WITH_SECRETS
        ):
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
            omitted = [_add_body(event, "requestObject", decision, context.body, _request_type(request), info)]
            if level is Level.REQUEST_RESPONSE and response is not None:
                media = _response_type(response)
                omitted.append(_add_body(event, "responseObject", decision, response.body, media, info))
            if any(omitted):
                event["annotations"] = {**annotations, OMITTED: ", ".join(filter(None, omitted))}
        user = context.impersonator or context.user
        self._log.record(event, refused=status in _REFUSAL_CODES or user.username in _ANONYMOUS)


def _reference(info: RequestInfo, created: str) -> dict[str, str]:
    """Return the objectRef of a request, without empty fields."""
    reference = {"resource": info.resource}
    if info.namespace:
        reference["namespace"] = info.namespace
    if info.name or created:
        reference["name"] = info.name or created
    if info.group:
        reference["apiGroup"] = info.group
    reference["apiVersion"] = info.version
    if info.subresource:
        reference["subresource"] = info.subresource
    return reference


def _request_type(request: Request) -> str:
    return request.header(b"content-type")


def _response_type(response: Response) -> str:
    return next((value.decode("latin-1") for name, value in response.headers if name == b"content-type"), "")


def _add_body(
    event: Obj, key: str, decision: Decision, body: bytes | Body, content_type: str, info: RequestInfo
) -> str:
    """Add a body to the record, or return why it is left out."""
    pieces, size = in_pieces(body)
    if not size or not info.is_resource:
        return ""
    if size > MAX_OBJECT:
        return f"{key} is too large"
    try:
        found = _parse(b"".join(pieces), content_type, info)
    except (MooringError, UnicodeDecodeError):
        return f"{key} cannot be read"
    if isinstance(found, dict) and found.get("kind") in _KINDS_WITH_SECRETS:
        return f"{key} holds secrets"
    if decision.omit_managed_fields:
        _drop_managed_fields(found)
    event[key] = found
    return ""


def _parse(body: bytes, content_type: str, info: RequestInfo) -> Any:
    kept = content_type.partition(";")[0].strip().lower()
    if kept.endswith("-patch+yaml"):
        try:
            return decode_json(body)  # kubectl sends JSON, which parses a hundred times as fast
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
    """Return the schema of the protobuf body of a request or reply."""
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
