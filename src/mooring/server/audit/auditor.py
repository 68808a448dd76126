"""Record requests as the audit policy decides: levels, stages, and bodies that may be kept (docs/protocol/audit.md).

Rules kept here:
* Without a policy a request leaves one record, at level Metadata, when it has ended. A policy is evaluated once for each request,
  for the authenticated user and not the impersonated one.
* Stages: RequestReceived before any work, ResponseStarted when a watch begins, ResponseComplete at the end, or Panic for a bug of
  the server.
* Level Request keeps the request body, RequestResponse the response body too. The events of a watch are never kept.
* No body of Secrets, TokenReviews, TokenRequests and JoinTokens is ever kept, whatever the policy says, and their records have
  level Metadata (law 9). Parts of these bodies are not kept either, because `kubectl apply` writes whole Secrets into an
  annotation. Such an object that is sent to another path is left out there, too.
* A body that is too large or cannot be parsed is left out, and an annotation says so. `mooring.server.audit.auditevent` bounds the
  rest.
* Large bodies are parsed in the thread for long work, in the time of their caller. The reply waits for that, and the record is
  written when the server stops meanwhile.
* Each write of the server itself (controllers, first boot, background work) leaves one record, with the part of the server as user
  agent and no source address. The policy decides on it as on a request of system:apiserver. Without a policy the
  renewals of Leases are left out.
* With mode `blocking-strict` a request begins with a record, without a policy too, and is refused when that is not stored. Health
  checks are answered, because they say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from mooring.api.kinds import by_resource
from mooring.apimachinery.auditpolicy import (
    METADATA,
    NOTHING,
    PANIC,
    REQUEST_RECEIVED,
    RESPONSE_COMPLETE,
    RESPONSE_STARTED,
    AuditDecision,
    AuditPolicy,
    Level,
)
from mooring.apimachinery.codec.json import decode_json, work_size
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message
from mooring.apimachinery.codec.requestbody import body_media
from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.metav1 import DELETE_OPTIONS, STATUS, list_of
from mooring.apimachinery.names import uuid4
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.apimachinery.schema import Message, Obj
from mooring.apimachinery.status import status_of
from mooring.clock import Clock
from mooring.errors import BadRequestError, InternalServerError, MooringError
from mooring.identity import ANONYMOUS
from mooring.registry.offload import Offload
from mooring.registry.write.serversideapply import ServerWrite
from mooring.server.audit.auditevent import MAX_OBJECT, OMITTED, audit_event, source_addresses
from mooring.server.audit.logfile import AuditLog
from mooring.server.requestcontext import RequestContext
from mooring.server.transport.http import Body, Request, Response, in_pieces
from mooring.settings.serving import AuditMode

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_FROM_ARRIVAL = AuditDecision(Level.METADATA, frozenset((RESPONSE_STARTED,)))
"""Decision without a policy for mode `blocking-strict`: two records for each request."""
_REFUSAL_CODES = frozenset((401, 403, 429))
_ANONYMOUS = frozenset(("", ANONYMOUS))
_RESOURCES_WITH_SECRETS = frozenset(
    (
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("authentication.k8s.io", "tokenreviews", ""),
        ("mooring.dev", "jointokens", ""),
    )
)
_KINDS_WITH_SECRETS = frozenset(("Secret", "SecretList", "TokenReview", "TokenRequest", "JoinToken"))
_SECRETS_OMITTED = "bodies of this kind hold secrets"
_LEASES = "coordination.k8s.io", "leases"
_CODES = {"create": 201, "update": 200, "delete": 200}
"""Status of a write of the server itself, as a request for it would get."""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Bodies of a record by their field, encoded, and why others are left out."""

    kept: dict[str, msgspec.Raw] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()


_Source = tuple[str, bytes | Body, str]
"""Field of a body in the record, the body and its media type."""
_NO_BODIES = _Bodies()
_UNREAD = _Bodies(omitted=("the server stopped before the bodies were read",))


class Auditor:
    """Recorder of the requests of one server process, and of what it writes itself."""

    def __init__(
        self, log: AuditLog, policy: AuditPolicy | None, clock: Clock, entropy: Callable[[int], bytes]
    ) -> None:
        """`entropy`: from which the ids of records without a request are made."""
        self._entropy = entropy
        self._log = log
        self._policy = policy if log.enabled else None
        self._clock = clock
        self.blocks = log.enabled and log.mode is not AuditMode.BATCH
        """True when a response waits for its records."""
        self._is_strict = log.enabled and log.mode is AuditMode.BLOCKING_STRICT
        self._unruled = _FROM_ARRIVAL if self._is_strict else METADATA
        """Decision without a policy."""
        self.on_arrival = self._policy is not None or self._is_strict
        """True when `received` and `started` must be called."""
        self.keeps_bodies = self._policy is not None
        """True when the body of a request may be kept."""
        self.rejected = 0
        """Requests that were refused because they could not be recorded."""

    @property
    def is_on(self) -> bool:
        """True when some request is recorded."""
        return self._log.enabled and (self._policy is None or self._policy.keeps_any)

    def received(self, context: RequestContext) -> None:
        """Record stage RequestReceived, if the policy keeps it."""
        decision = self._decide(context)
        if decision.keeps(REQUEST_RECEIVED):
            self._record(context, decision, REQUEST_RECEIVED, 0, "")

    async def stored(self) -> None:
        """Wait until the records so far are in the file, or could not be written."""
        await self._log.stored()

    async def confirm(self, context: RequestContext) -> None:
        """Wait until the record that `received` made is in the file, if it made one.

        Raises InternalServerError in mode `blocking-strict` when it cannot be, as kube-apiserver refuses the request then.
        """
        if not self._decide(context).keeps(REQUEST_RECEIVED):
            return
        if not await self._log.stored() and self._is_strict and context.info.path not in HEALTH_PATHS:
            self.rejected += 1
            raise InternalServerError("failed to store audit event")

    def started(self, context: RequestContext, status: int) -> None:
        """Record stage ResponseStarted of a watch, if the policy keeps it."""
        decision = self._decide(context)
        if decision.keeps(RESPONSE_STARTED):
            self._record(context, decision, RESPONSE_STARTED, status, "")

    def ended(self, context: RequestContext, status: int) -> None:
        """Record the end of a watch."""
        if not self._log.enabled:
            return
        decision = self._decide(context)
        if decision.keeps(RESPONSE_COMPLETE):
            self._record(context, decision, RESPONSE_COMPLETE, status, "")

    async def finished(
        self, context: RequestContext, response: Response, reason: str, long_work: Offload, *, panic: bool = False
    ) -> None:
        """Record the end of a request. Waits only for large bodies."""
        if not self._log.enabled:
            return
        stage = PANIC if panic else RESPONSE_COMPLETE
        decision = self._decide(context)
        if not decision.keeps(stage):
            return
        bodies = _NO_BODIES if decision.level is Level.METADATA else _UNREAD
        try:
            if bodies is _UNREAD:
                bodies = await _bodies(context, response, decision, long_work)
        finally:
            # Also when the server stops while the bodies are parsed: the request has had its effect.
            self._record(context, decision, stage, response.status, reason, bodies)

    def written(self, write: ServerWrite) -> None:
        """Record a write of the server itself. The pipeline records those of clients."""
        if not self._log.enabled:
            return
        resource = write.kind.resource
        info = RequestInfo(
            verb=write.verb,
            is_resource=True,
            path=resource.path(write.namespace, "" if write.verb == "create" else write.name, write.subresource),
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            subresource=write.subresource,
            namespace=write.namespace,
            name=write.name,
        )
        decision = self._decide_server(write, info)
        if not decision.keeps(RESPONSE_COMPLETE):
            return
        code, reason = _CODES[write.verb], ""
        if write.failure is not None:
            code, status = status_of(write.failure)
            reason = status["reason"]
        level, annotations = decision.level, {}
        # Whatever the policy says: bodies of these kinds hold secrets (law 9).
        if level > Level.METADATA and (info.group, info.resource, info.subresource) in _RESOURCES_WITH_SECRETS:
            level, annotations = Level.METADATA, {OMITTED: _SECRETS_OMITTED}
        event = audit_event(
            audit_id=uuid4(self._entropy),
            uri=info.path,
            verb=info.verb,
            user=write.change.user,
            sources=source_addresses("", "", write.change.source),
            user_agent=f"mooring/{write.change.writer}",
            object_ref=_reference(info, ""),
            code=code,
            reason=reason,
            received=write.change.now,
            completed=self._clock.now(),
            annotations=annotations,
            level=level.text,
        )
        if level > Level.METADATA and write.raw:
            _add_stored(event, write, decision)
        self._log.record(event)

    def _decide_server(self, write: ServerWrite, info: RequestInfo) -> AuditDecision:
        if self._policy is not None:
            return self._policy.decide(write.change.user, info)
        # Leases are renewed every few seconds. These records would displace those of clients.
        is_renewal = write.verb == "update" and (info.group, info.resource) == _LEASES
        return NOTHING if is_renewal else METADATA

    def _decide(self, context: RequestContext) -> AuditDecision:
        if self._policy is None:
            return self._unruled
        if context.audit is None:
            context.audit = self._policy.decide(context.impersonator or context.user, context.info)
        return context.audit

    def _record(
        self,
        context: RequestContext,
        decision: AuditDecision,
        stage: str,
        status: int,
        reason: str,
        bodies: _Bodies = _NO_BODIES,
    ) -> None:
        request, info = context.request, context.info
        level = decision.level
        annotations = context.annotations
        plain = level is Level.METADATA  # the common case, without bodies
        # Whatever the policy says: bodies of these kinds hold secrets (law 9).
        if not plain and _holds_secrets(context):
            level, plain = Level.METADATA, True
            annotations = {**annotations, OMITTED: _SECRETS_OMITTED}
        elif bodies.omitted:
            annotations = {**annotations, OMITTED: ", ".join(bodies.omitted)}
        event = audit_event(
            audit_id=context.audit_id,
            uri=request.uri,
            verb=info.verb,
            # The policy and the record are about the authenticated user. The impersonated one has a field of its own.
            user=context.impersonator or (context.user if context.user.username else None),
            impersonated=context.user if context.impersonator is not None else None,
            constraint=context.constraint,
            sources=source_addresses(
                # a proxy such as HAProxy adds a line of its own, of which kube-apiserver reads the first alone
                request.header_list(b"x-forwarded-for"),
                request.header(b"x-real-ip"),
                request.connection.source,
            ),
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
        event.update(bodies.kept)
        # Marked for `AuditLog`, so that refused and anonymous requests do not displace the records of others.
        anonymous = (context.impersonator or context.user).username in _ANONYMOUS
        self._log.record(event, refused=anonymous or status in _REFUSAL_CODES, anonymous=anonymous)


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


def _add_stored(event: Obj, write: ServerWrite, decision: AuditDecision) -> None:
    """Add the object of a server's write: what was sent, and what the store has now. A delete sent no object."""
    if len(write.raw) > MAX_OBJECT:
        event["annotations"] = {**event["annotations"], OMITTED: "the object is too large"}
        return
    stored = _decode(write.raw)
    if decision.omit_managed_fields:
        _drop_managed_fields(stored)
    if write.verb != "delete":
        event["requestObject"] = stored
    if decision.level is Level.REQUEST_RESPONSE and write.failure is None:
        metadata = {**stored["metadata"], "resourceVersion": str(write.revision)}
        event["responseObject"] = {**stored, "metadata": metadata}


def _request_type(request: Request) -> str:
    return request.header(b"content-type")


def _response_type(response: Response) -> str:
    return next((value.decode("latin-1") for name, value in response.headers if name == b"content-type"), "")


def _holds_secrets(context: RequestContext) -> bool:
    info = context.info
    return context.supervised or (info.group, info.resource, info.subresource) in _RESOURCES_WITH_SECRETS


async def _bodies(context: RequestContext, response: Response, decision: AuditDecision, long_work: Offload) -> _Bodies:
    """Return the bodies that the record of a request has."""
    if not context.info.is_resource or _holds_secrets(context):
        return _NO_BODIES
    sources: list[_Source] = [("requestObject", context.body, _request_type(context.request))]
    if decision.level is Level.REQUEST_RESPONSE:
        sources.append(("responseObject", response.body, _response_type(response)))
    size = sum(_work_size(body, media) for _, body, media in sources)
    read = partial(_read_bodies, sources, context.info, decision)
    return await long_work.run(size, context.user.username, read, always=True)


def _work_size(body: bytes | Body, media: str) -> int:
    """Return the bytes about which the work of a body may be: none for one that is left out."""
    size = in_pieces(body)[1]
    if size > MAX_OBJECT:
        return 0
    return work_size(body, media) if isinstance(body, bytes) else size


def _read_bodies(sources: list[_Source], info: RequestInfo, decision: AuditDecision) -> _Bodies:
    """Return the bodies as JSON."""
    kept: dict[str, msgspec.Raw] = {}
    omitted: list[str] = []
    for key, body, media in sources:
        pieces, size = in_pieces(body)
        if not size:
            continue
        if size > MAX_OBJECT:
            omitted.append(f"{key} is too large")
            continue
        try:
            found = _parse(b"".join(pieces), media, info)
        except (MooringError, UnicodeDecodeError):
            omitted.append(f"{key} cannot be read")
            continue
        if isinstance(found, dict) and found.get("kind") in _KINDS_WITH_SECRETS:
            omitted.append(f"{key} holds secrets")
            continue
        if decision.omit_managed_fields:
            _drop_managed_fields(found)
        kept[key] = msgspec.Raw(_encode(found))
    return _Bodies(kept, tuple(omitted))


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
