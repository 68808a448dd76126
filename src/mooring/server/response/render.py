"""Replies: their representation, objects, lists and errors, and the headers that each has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from email.utils import formatdate
from functools import lru_cache

from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.apimachinery.codec.protobuf import encode_object
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.metav1 import PARTIAL_OBJECT_METADATA, STATUS
from mooring.apimachinery.negotiation import (
    JSON,
    MAX_HEADER,
    MEDIA_TYPES,
    PROTOBUF,
    TRANSFORMS,
    Media,
    Representation,
    negotiate,
    wants_pretty,
)
from mooring.apimachinery.resource import Resource, internal_group
from mooring.apimachinery.schema import Message, Obj
from mooring.apimachinery.status import status_of
from mooring.apimachinery.table import Include, parse_include, partial_metadata, table
from mooring.errors import ApiError, MooringError, NotAcceptableError
from mooring.registry.cache.events import Stored
from mooring.server.response import lists
from mooring.server.transport.http import Request, Response
from mooring.server.transport.httpgrammar import Header

# Negotiate the representation of replies, and encode objects, lists and errors.
#
# Rules kept here (docs/protocol/negotiation.md):
# * Stored bytes are sent as they are (law 5): a JSON object or list is joined from stored bytes, never re-encoded.
# * JSON has precedence over protobuf in whatever order a client accepts them, because its bytes exist. Protobuf, YAML, Table and
#   PartialObjectMetadata are made for clients that accept nothing else, or that prefer them. PartialObjectMetadata has to be made
#   anyway, so it is sent in the preferred form: Go's metadata client compares items of lists with single objects, and only in
#   protobuf do both lack a kind.
# * An error that cannot be expressed in an accepted form is sent as JSON.

NOSNIFF: Header = (b"x-content-type-options", b"nosniff")
_OBJECT_TRANSFORMS = TRANSFORMS - {"PartialObjectMetadataList"}
_LIST_TRANSFORMS = TRANSFORMS - {"PartialObjectMetadata"}


def accepted(
    request: Request,
    transforms: frozenset[str] = frozenset(),
    medias: tuple[Media, ...] = tuple(MEDIA_TYPES),
    *,
    is_listing: bool = False,
) -> Representation:
    """Return the representation of the reply. Raises NotAcceptableError (406)."""
    return _accepted(request.header(b"accept")[:MAX_HEADER], transforms, medias, is_listing)


@lru_cache(maxsize=512)
def _accepted(header: str, transforms: frozenset[str], medias: tuple[Media, ...], is_listing: bool) -> Representation:
    best = negotiate(header, transforms, medias, is_listing=is_listing)
    if best.media != "protobuf" or best.as_kind:
        return best
    try:
        return negotiate(header, transforms, ("json",))
    except NotAcceptableError:
        return best


def content_type(value: str) -> Header:
    """Return a Content-Type header."""
    return (b"content-type", value.encode())


_JSON_HEADERS = (content_type(JSON),)


def is_pretty(request: Request) -> bool:
    """Return True when JSON is indented: by the parameter `pretty`, or by default for interactive clients."""
    return wants_pretty(
        request.query.get("pretty", [None])[0] if request.query_string else None, request.header(b"user-agent")
    )


def _accepted_as(request: Request, transforms: frozenset[str], shown: str) -> Representation:
    """Return the representation of a reply that is `shown`. Raises NotAcceptableError (406)."""
    try:
        return accepted(request, transforms)
    except NotAcceptableError:
        wanted = accepted(request, TRANSFORMS)
        raise NotAcceptableError(f"you requested {wanted.as_kind}, but the requested object is {shown}") from None


def _accepted_for_object(request: Request, resource: Resource) -> Representation:
    internal = f"*{internal_group(resource.group, resource.kind)}.{resource.kind}"
    return _accepted_as(request, _OBJECT_TRANSFORMS, f"not a list ({internal})")


def sends_stored_bytes(request: Request, resource: Resource) -> bool:
    """Return True when one object is sent as stored. Raises NotAcceptableError (406)."""
    answer = _accepted_for_object(request, resource)
    return answer.media == "json" and not answer.as_kind


def stored_response(request: Request, stored: Stored, now: datetime, status: int = 200) -> Response:
    """Return the reply with one stored object. Raises NotAcceptableError (406)."""
    resource = stored.kind.resource
    answer = _accepted_for_object(request, resource)
    if answer.as_kind == "Table":
        obj = table(resource, [stored.obj], now, included(request), api_version=answer.as_api_version)
        return _plain(request, answer, obj, status)
    if answer.as_kind:
        obj = partial_metadata(stored.obj, answer.as_api_version)
        return _plain(request, answer, obj, status, PARTIAL_OBJECT_METADATA)
    if answer.media == "json":
        return Response(status, indent_json(stored.raw) if is_pretty(request) else stored.raw, _JSON_HEADERS)
    if answer.media == "protobuf":
        body = encode_object(stored.obj, resource.schema)
        return Response(status, body, (content_type(PROTOBUF),))
    return Response(status, encode_yaml(stored.obj), (content_type(answer.content_type),))


def included(request: Request) -> Include:
    """Return which part of the object a Table row includes (docs/protocol/tables.md). Raises BadRequestError."""
    return parse_include(request.query.get("includeObject", [""])[0])


async def list_response(
    request: Request,
    resource: Resource,
    items: Sequence[Stored],
    metadata: Obj,
    now: datetime,
    compute: lists.Compute,
) -> Response:
    """Return the reply with a list. `compute` runs large computations beside the event loop. Raises NotAcceptableError (406)."""
    internal = f"*{internal_group(resource.group, resource.kind)}.{resource.kind}List"
    answer = _accepted_as(request, _LIST_TRANSFORMS, f"a list ({internal})")
    version, media = answer.as_api_version, answer.media
    if answer.as_kind == "Table":
        form = lists.as_table(resource, metadata, now, included(request), version, media)
    elif answer.as_kind:
        form = lists.as_partial_metadata(metadata, version, media)
    elif media != "json":
        form = lists.as_objects(resource, metadata, media)
    elif is_pretty(request):
        form = lists.as_json(resource, metadata)
    else:
        return Response(200, lists.json_body(resource, metadata, items), _JSON_HEADERS)
    if media == "json" and is_pretty(request):
        form = lists.indented(form)
    headers = _JSON_HEADERS if media == "json" else (content_type(answer.content_type),)
    return Response(200, await form.body(items, compute), headers)


def object_response(request: Request, obj: Obj, schema: Message, status: int = 200) -> Response:
    """Return the reply with an object that is not stored: reviews, TokenRequest, Status of success.

    A client that accepts a Table receives a Status as it is. Other objects have no Table: 406, unless the client also accepts the
    object itself.
    """
    answer = accepted(request, TRANSFORMS if schema is STATUS else TRANSFORMS - {"Table"})
    return _plain(request, answer, obj, status, schema)


def _plain(request: Request, answer: Representation, obj: Obj, status: int, schema: Message | None = None) -> Response:
    if answer.media == "protobuf" and schema is not None:
        return Response(status, encode_object(obj, schema), (content_type(PROTOBUF),))
    if answer.media == "yaml":
        return Response(status, encode_yaml(obj), (content_type(answer.content_type),))
    body = encode_json(obj)
    return Response(status, indent_json(body) if is_pretty(request) else body, _JSON_HEADERS)


def error_response(error: MooringError, request: Request) -> Response:
    """Return a Status in an accepted form, else in JSON, with Retry-After where the Status has seconds."""
    code, obj = status_of(error)
    headers: list[Header] = [NOSNIFF]
    seconds = error.details.retry_after if isinstance(error, ApiError) else 0
    if seconds:
        headers.append((b"retry-after", b"%d" % seconds))
    try:
        answer = accepted(request)
    except ApiError:
        answer = Representation()
    if answer.media == "protobuf":
        body = encode_object(obj, STATUS)
        return Response(code, body, (content_type(PROTOBUF), *headers))
    if answer.media == "yaml":
        return Response(code, encode_yaml(obj), (content_type(answer.content_type), *headers))
    body = encode_json(obj)
    if request.is_query_cheap and (request.query_string or request.header(b"user-agent")):
        with suppress(ApiError):  # the error may be about a query that cannot be parsed
            body = indent_json(body) if is_pretty(request) else body
    return Response(code, body, (content_type(JSON), *headers))


# Add the headers that every reply has: Date, Audit-Id, Cache-Control, challenges and warnings.
#
# Source: docs/protocol/authentication.md#connections, docs/protocol/requests.md#options.
#
# Rules kept here:
# * Audit-Id is the identifier under which the operator finds what the client is not told.
# * Date is the time of the server (RFC 9110 6.6.1). Machines that join compare their clocks with it.
# * Replies are not cacheable unless the handler sets Cache-Control.
# * Warnings are bounded to what clients accept as headers.

REALM = ' realm="kubernetes-master"'
"""Parameter of the Basic challenge, as kube-apiserver sent it while it supported passwords."""
MAX_WARNINGS = 4096
"""Characters of all Warning headers of one reply. Go and Python clients refuse replies with much more."""
MAX_CUT_WARNING = 256
"""Characters kept of each warning when all together are too long."""
_NO_CACHE: Header = (b"cache-control", b"no-cache, private")


def challenges(schemes: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the challenges of a 401 (RFC 9110 11.6.1), with Basic last.

    A 401 to a browser, which sends Sec-Fetch-Site, has none: browsers keep passwords and Kerberos tickets, and would send them for
    requests of any page.
    """
    names = sorted(schemes, key=lambda name: (name == "basic", name))
    return tuple((b"www-authenticate", f"{schemes[name]}{REALM if name == 'basic' else ''}".encode()) for name in names)


@lru_cache(1)  # one text a second for all replies
def _date(second: int) -> Header:
    return b"date", formatdate(second, usegmt=True).encode()


def reply_headers(
    headers: Sequence[Header], audit_id: str, warnings: Sequence[str], offered: Sequence[Header], now: datetime
) -> tuple[Header, ...]:
    """Return the headers of a reply at `now` (UTC) with those that every reply has. `offered` are the challenges."""
    every = [*headers, _date(int(now.timestamp())), (b"audit-id", audit_id.encode())]
    for name, _ in headers:
        if name == b"cache-control":
            break
    else:
        every.append(_NO_CACHE)
    every += offered
    if warnings:
        every += [(b"warning", b'299 - "%b"' % _quoted(warning)) for warning in _bounded(warnings)]
    return tuple(every)


def _bounded(warnings: Sequence[str]) -> Iterator[str]:
    """Yield warnings up to the limit. When all together are too long each is cut, as kube-apiserver does."""
    warnings = tuple(dict.fromkeys(warnings))  # a repeated write repeats its warnings
    cut = sum(map(len, warnings)) > MAX_WARNINGS
    left = MAX_WARNINGS
    for warning in warnings:
        text = warning[:MAX_CUT_WARNING] if cut else warning
        left -= len(text)
        if left < 0:
            return
        yield text


def _quoted(text: str) -> bytes:
    """Escape a warning as quoted-string (RFC 7234 5.5): control characters are dropped, UTF-8 is kept."""
    kept = "".join(character for character in text if character.isprintable())
    return kept.replace("\\", "\\\\").replace('"', '\\"').encode()
