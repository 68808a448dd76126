"""Watches as streaming replies, over HTTP chunks or a WebSocket, in the form that the client asked for."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from wsproto.utilities import generate_accept_token

from mooring.api.kind import Kind
from mooring.apimachinery.codec.json import deep_copy, encode_json
from mooring.apimachinery.codec.protobuf import encode_object, encode_watch_frame
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.metav1 import PARTIAL_OBJECT_METADATA, STATUS
from mooring.apimachinery.negotiation import STREAMED, TRANSFORMS, Representation
from mooring.apimachinery.options import ListOptions
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import check_field_labels
from mooring.apimachinery.status import status_of
from mooring.apimachinery.table import partial_metadata, table
from mooring.apimachinery.watchevent import ERROR, event_frame
from mooring.apimachinery.websocket import PROTOCOL, is_handshake, is_of_another_site, is_valid_origin, subprotocols
from mooring.authn.credentials import without_token
from mooring.clock import Clock
from mooring.errors import ApiError, BadRequestError, ExpiredError, ForbiddenError, TooManyRequestsError
from mooring.registry.cache.events import Event, Stored, encoded
from mooring.registry.cache.kindcache import Watch, slices
from mooring.registry.offload import caller_of
from mooring.registry.store import Registry
from mooring.server.response.render import accepted, content_type, error_response, included
from mooring.server.transport.http import Request, Response
from mooring.server.transport.httpgrammar import Header
from mooring.server.transport.responsewriter import (
    BinaryWebSocketWriter,
    ResponseWriter,
    Streamer,
    UpgradedWriter,
    WebSocketWriter,
)
from mooring.server.transport.tlsconnection import TlsTransport

# Convert between the form of a kind that clients see and the form in which the registry has its objects.
#
# Rules kept here (docs/adr/0016):
# * Only a kind with an alias has two forms. The objects and options of every other kind are returned as they are.
# * A selector is converted, and not each object that it is compared with.
# * A converted object has the bytes that `encoded` makes of it, so that every reply is made as for a stored one.


def stored_selectors(kind: Kind, options: ListOptions) -> ListOptions:
    """Return the options with the field labels of the stored kind. Raises BadRequestError for a label that `kind` does not have."""
    if options.field_selector.empty:
        return options
    check_field_labels(options.field_selector, kind.field_labels)
    if kind.alias is None:
        return options
    return replace(options, field_selector=options.field_selector.renamed(kind.alias.field_labels))


def served(kind: Kind, stored: Stored) -> Stored:
    """Return an object in the form of `kind`."""
    if kind.alias is None:
        return stored
    obj = kind.from_storage(deep_copy(stored.obj))
    complete(obj, kind.resource.schema)
    value = encoded(kind.resource, obj)
    return Stored.of(kind, stored.namespace, stored.name, stored.revision, value, is_whole=True, key=stored.key)


async def served_list(kind: Kind, items: Sequence[Stored]) -> Sequence[Stored]:
    """Return objects in the form of `kind`, giving way to other tasks between slices."""
    if kind.alias is None:
        return items
    converted: list[Stored] = []
    for run in slices(items):
        converted += [served(kind, item) for item in run]
        await asyncio.sleep(0)
    return converted


# Check the WebSocket handshake of a watch, and answer it (RFC 6455 4.2).
#
# Source: docs/protocol/watch.md#form.
#
# Rules kept here:
# * The handshake is checked as kube-apiserver checks it, after authentication and authorization: a key, version 13, an Origin.
# * The subprotocol that carries a token is removed from the list before one of the others is selected and returned.

VERSION = "13"


def is_websocket(request: Request) -> bool:
    """Return True when a request asks for a WebSocket. Only watches check: other requests ignore the Upgrade header."""
    return is_handshake(request.header(b"upgrade"), request.header(b"connection"))


def handshake_error(request: Request, *, needs_origin: bool = True) -> Response | None:
    """Return the error reply for a handshake that cannot be accepted, else None.

    `needs_origin`: refuse a handshake without an Origin, as kube-apiserver does for watches.
    """
    key = request.header(b"sec-websocket-key")
    if not key:
        return error_response(BadRequestError("the WebSocket handshake has no Sec-WebSocket-Key"), request)
    if not key.isascii():
        return error_response(BadRequestError("the Sec-WebSocket-Key of the handshake is not ASCII"), request)
    if request.header(b"sec-websocket-version") != VERSION:
        error = BadRequestError(f"the WebSocket version is not supported: this server speaks version {VERSION}")
        response = error_response(error, request)
        response.headers = (*response.headers, (b"sec-websocket-version", VERSION.encode()))  # RFC 6455 4.4
        return response
    if needs_origin and not is_valid_origin(request.header(b"origin")):
        return error_response(ForbiddenError("the WebSocket handshake has no Origin that is a URI"), request)
    # A browser sends certificates, passwords and tickets for requests of any page, but never a bearer token.
    if _is_of_another_site(request):
        message = (
            "the Origin of the WebSocket handshake is another site, and the request has no credential but a client certificate or "
            "one that browsers send by themselves: send a token"
        )
        return error_response(ForbiddenError(message), request)
    if not all(name.isascii() and name.isprintable() for name in _subprotocols(request)):
        message = "a subprotocol of the WebSocket handshake is not printable ASCII (RFC 6455 4.1)"
        return error_response(BadRequestError(message), request)
    return None


def _is_of_another_site(request: Request) -> bool:
    """Return whether a page of another site may have opened the WebSocket with a credential that it does not know.

    Browsers send the origin of the page. They present a certificate, a password or a Kerberos ticket to every site that asks, and
    never a bearer token. A page of `http:` may come from the network: the server has none.
    """
    scheme = request.header(b"authorization").partition(" ")[0].lower()
    if scheme == "bearer" or not (scheme or request.connection.chain):
        return False
    if len(_subprotocols(request)) < len(subprotocols(request.header_values(PROTOCOL.encode()))):
        return False  # one of them carries a token, and no other credential was judged (`mooring.authn.credentials`)
    return is_of_another_site(request.header_values(b"origin"), request.header(b"host"))


def _subprotocols(request: Request) -> tuple[str, ...]:
    """Return the offered subprotocols except the one that carries a token."""
    return without_token(subprotocols(request.header_values(PROTOCOL.encode())))


def accept_headers(request: Request) -> tuple[Header, ...]:
    """Return the headers of the 101 reply."""
    headers: list[Header] = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", generate_accept_token(request.header(b"sec-websocket-key").encode("ascii"))),
    ]
    if offered := _subprotocols(request):
        headers.append((PROTOCOL.encode(), offered[0].encode("ascii")))
    return tuple(headers)


# Watches as streaming replies.
#
# Source: docs/protocol/watch.md.
#
# Rules kept here:
# * Headers are sent at once. Errors known before the first event are plain HTTP errors. Only an expired revision is an ERROR
#   event, as real servers send it: client-go's RetryWatcher would repeat the request for ever after a plain 410.
# * Events are sent in the same pass of the event loop in which the watch cache receives them, as frames that all watchers share.
# * Every watch ends with a clean end of the body: when the client leaves, at `timeoutSeconds` (30 to 60 minutes by default), when
#   the server drains, or when an event cannot be encoded. A client too far behind is cut off.
# * A subscription belongs to its request, which closes it (`mooring.server.transport.http`): a reply that fails before, during or
#   after its headers leaves no subscription.
# * The initial state is sent in slices, as fast as the client takes it. Changes wait meanwhile, as many as the watch cache holds.
#   A slower client must list again.
# * Bookmarks, when requested, are sent about every minute and just before the end.
# * Each changed object is compared with the selectors of all watches in one turn of the event loop: the requirements that one
#   caller (`mooring.registry.offload`) may have open are bounded, and further watches are 429.
# * Over a WebSocket the same events are sent as messages (`mooring.server.transport.responsewriter`).

log = logging.getLogger("mooring.server")

BOOKMARK_SECONDS = 60.0
"""kube-apiserver's bookmark frequency."""
MIN_WATCH_SECONDS = 1800
"""kube-apiserver's --min-request-timeout: a watch lasts this long, up to twice, so that ends are spread."""

MAX_REQUIREMENTS = 20_000
"""Requirements in the selectors of the open watches of one caller, in one process: 8 ms of the event loop for a changed object."""
FREE_REQUIREMENTS = 4
"""Requirements of each watch that do not count: clients have few, and the number of watches is bounded anyway."""

_TRANSFORMS = TRANSFORMS - {"PartialObjectMetadataList"}
Encode = Callable[[Event], bytes]


class Watches:
    """Running watches of one server process."""

    def __init__(self, registry: Registry, clock: Clock, entropy: Callable[[int], bytes]) -> None:
        self._registry = registry
        self._clock = clock
        self._entropy = entropy
        self._running: set[ResponseWriter] = set()
        self._requirements: Counter[str] = Counter()
        """Requirements in the selectors of open watches, by caller."""
        self._draining = False

    @property
    def count(self) -> int:
        """Number of running watches."""
        return len(self._running)

    def drain(self) -> None:
        """End every watch cleanly. New watches end at once."""
        self._draining = True
        for writer in tuple(self._running):
            writer.end()

    def _reserve(self, caller: str, options: ListOptions) -> Callable[[], None]:
        """Count the requirements of a new watch. Return what counts them no more, idempotent. Raises TooManyRequestsError."""
        number = len(options.label_selector.requirements) + len(options.field_selector.terms) - FREE_REQUIREMENTS
        if number <= 0:
            return lambda: None
        if self._requirements[caller] + number > MAX_REQUIREMENTS:
            raise TooManyRequestsError(
                f"the selectors of your open watches have {MAX_REQUIREMENTS} requirements: close some, or use shorter selectors"
            )
        self._requirements[caller] += number

        def release() -> None:
            nonlocal number
            self._requirements[caller] -= number
            number = 0
            if not self._requirements[caller]:
                del self._requirements[caller]

        return release

    async def response(
        self, request: Request, kind: Kind, namespace: str, options: ListOptions, username: str
    ) -> Response:
        """Return the reply to a watch of a user. Raises ApiError for errors known before the first event."""
        options = stored_selectors(kind, options)
        answer = accepted(request, _TRANSFORMS, STREAMED)
        encode = _encoder(answer, kind, request, self._clock.now)
        if is_websocket(request) and (refused := handshake_error(request)) is not None:
            return refused
        reply = partial(_streaming, *_head(request, answer))
        initial: list[bytes] = []
        sink: Callable[[bytes], None] = initial.append
        writer: ResponseWriter | None = None
        broken = False

        def deliver(event: Event) -> None:
            nonlocal broken
            try:
                sink(encode(event))
            except Exception:  # the registry logs it and closes this watch; the client must not wait for more
                broken = True
                if writer is not None:
                    writer.end()
                raise

        # Reserved before the first `await`: otherwise watches that start together would all pass the check.
        release = self._reserve(caller_of(username), options)
        try:
            watch = await self._registry.reader.watch(kind, namespace, options, deliver)
        except BaseException as error:
            release()
            # kube-apiserver reports an expired start as an event of the watch (docs/protocol/watch.md).
            if isinstance(error, ExpiredError):
                return reply(_single_frame(_error_frame(error, answer)))
            raise

        def close() -> None:
            watch.close()
            release()

        # A client may leave before the stream begins. The watch must not stay subscribed then.
        request.closing = close

        async def stream(out: ResponseWriter) -> None:
            nonlocal writer, sink
            writer = out
            self._running.add(out)
            try:
                # The server may have begun to stop while this request waited for the state.
                if not self._draining:
                    try:
                        await _replay(out, watch, initial)
                    except ExpiredError as error:
                        out.write(_error_frame(error, answer))
                        return
                # Live events go to the client only after the replay, so that they arrive in order of revision.
                sink = out.write
                if broken or self._draining:
                    return
                # Watches that began together must not expire together: all clients would start again at one moment.
                spread = int.from_bytes(self._entropy(2)) % MIN_WATCH_SECONDS
                lifetime = float(options.timeout_seconds or MIN_WATCH_SECONDS + spread)
                bookmark = (lambda: out.write(encode(watch.bookmark()))) if options.allow_bookmarks else None
                timer = _Timer(out, lifetime, bookmark)
                try:
                    await out.ended
                finally:
                    timer.cancel()
            finally:
                self._running.discard(out)
                close()

        return reply(stream)


Upgrade = Callable[[TlsTransport], UpgradedWriter]


def _head(request: Request, answer: Representation) -> tuple[int, tuple[Header, ...], Upgrade | None]:
    """Return status and headers of the reply, and the writer of the protocol to which the connection is upgraded."""
    if is_websocket(request):
        return 101, accept_headers(request), BinaryWebSocketWriter if answer.media == "protobuf" else WebSocketWriter
    return 200, (content_type(answer.stream_content_type),), None


def _streaming(status: int, headers: tuple[Header, ...], upgrade: Upgrade | None, stream: Streamer) -> Response:
    return Response(status, headers=headers, stream=stream, upgrade=upgrade)


def _single_frame(frame: bytes) -> Streamer:
    async def stream(out: ResponseWriter) -> None:
        out.write(frame)

    return stream


def _error_frame(error: ApiError, answer: Representation) -> bytes:
    _, obj = status_of(error)
    if answer.media == "protobuf":
        return encode_watch_frame(ERROR, encode_object(obj, STATUS))
    return event_frame(ERROR, encode_json(obj))


async def _replay(out: ResponseWriter, watch: Watch, initial: list[bytes]) -> None:
    """Send the events before live ones, as fast as the client takes them. Raises ExpiredError."""

    def send() -> None:
        if initial:
            out.write_all(initial)
            initial.clear()

    async def pause() -> None:
        send()
        await out.drained()
        if out.ended.done():
            watch.close()

    try:
        await watch.replay(pause)
    finally:
        send()


class _Timer:
    """Timer that ends one watch, and sends bookmarks until then. It is small, because thousands of watches are idle."""

    __slots__ = ("_bookmark", "_handle", "_left", "_out")

    def __init__(self, out: ResponseWriter, lifetime: float, bookmark: Callable[[], None] | None) -> None:
        self._out = out
        self._left = lifetime
        self._bookmark = bookmark
        self._wait()

    def cancel(self) -> None:
        self._handle.cancel()

    def _wait(self) -> None:
        step = min(self._left, BOOKMARK_SECONDS if self._bookmark else self._left)
        self._handle = asyncio.get_running_loop().call_later(step, self._tick, step)

    def _tick(self, step: float) -> None:
        self._left -= step
        try:
            if self._bookmark:
                self._bookmark()
        except Exception:  # as for any other event: the client must not wait for more
            log.exception("a bookmark could not be sent; its watch ends")
            self._left = 0
        if self._left > 0:
            self._wait()
        else:
            self._out.end()


def _encoder(answer: Representation, kind: Kind, request: Request, now: Callable[[], datetime]) -> Encode:
    resource = kind.resource

    def shown(event: Event) -> Obj:
        return event.obj if event.stored is None else served(kind, event.stored).obj

    if answer.as_kind == "Table":
        include = included(request)
        first = True

        def as_table(event: Event) -> bytes:
            nonlocal first
            metadata: Obj = {"resourceVersion": str(event.revision)}
            version = answer.as_api_version
            # A bookmark is a row, too: its object has the annotation that ends the initial events.
            obj = table(resource, [shown(event)], now(), include, metadata, api_version=version, with_columns=first)
            first = False
            return event_frame(event.type, encode_json(obj))

        return as_table
    schema = PARTIAL_OBJECT_METADATA if answer.as_kind else resource.schema

    def converted(event: Event) -> Obj:
        return partial_metadata(shown(event), answer.as_api_version) if answer.as_kind else shown(event)

    def as_protobuf(event: Event) -> bytes:
        return encode_watch_frame(event.type, encode_object(converted(event), schema))

    def as_json(event: Event) -> bytes:
        return event_frame(event.type, encode_json(converted(event)))

    form = f"{resource.api_version} {answer.media} {answer.as_kind} {answer.as_version}"
    if answer.media == "protobuf":
        return lambda event: event.framed(form, as_protobuf)
    if answer.as_kind or kind.alias:
        return lambda event: event.framed(form, as_json)
    return Event.frame
