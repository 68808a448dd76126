"""Serve one HTTP/2 connection, negotiated by ALPN, over h2 (RFC 9113, docs/adr/0022).

Rules kept here:
* The contract is that of HTTP/1.1 (`mooring.server.transport.http`): a `Request` in, a `Response` out, a `ResponseWriter` for a
  streaming reply.
* A client that resets a stream, or disconnects, ends its watch. A running handler comes to its end and keeps the stream's place
  until then, so that resetting streams gives a client no more work at a time than keeping them (CVE-2023-44487).
* A slow stream delays no other: replies are sent in turns of one frame, as far as the client's windows and the kernel accept
  them. Waiting bytes count as held memory together with those that wait in TCP (`mooring.server.transport.memorybudget`).
* A watch too far behind is reset alone, and so is a stream whose window the client keeps shut for too long.
* One turn of the event loop handles a bounded number of frames and headers of a client and sends it a bounded number of bytes.
* A body is received as its handler reads it; an unread one fills its window and no more, after the reply too. A stream whose
  reply came first is reset a moment later.
* After a reply to an anonymous client the connection accepts no more requests, as kube-apiserver's
  UnauthenticatedHTTP2DOSMitigation has it (docs/protocol/authentication.md#connections): GOAWAY, and the connection is closed
  once every stream has ended.
* When the server stops, a GOAWAY without a last stream comes first, with a PING (RFC 9113 6.8). The client has read both when
  it acknowledges the PING. Streams that it opened before are served, and the GOAWAY that follows names the last of them.

h2 implements frames, headers and windows; it receives and returns bytes only. `mooring.server.transport.http2` bounds
the work that h2 leaves unbounded.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    Application,
    Request,
    Response,
    weight,
)
from mooring.server.transport.http2floodguard import (
    DATA,
    HEADERS,
    MAX_FRAME,
    ClientProtocolError,
    FloodGuard,
)
from mooring.server.transport.http2stream import (
    H2,
    MAX_STREAMS,
    Http2ResponseWriter,
    Http2Stream,
    reply_headers,
    request_of,
)
from mooring.server.transport.listener import MAX_CONNECTIONS
from mooring.server.transport.tlsconnection import ApplicationProtocol, ReaderProgress, TlsTransport

log = logging.getLogger("mooring.server")

MAX_TOTAL_STREAMS = MAX_CONNECTIONS
"""Streams of all HTTP/2 clients of a host, half of them of one source: as many watches as HTTP/1.1 connections can carry. Each
worker may have its part of them."""
CONNECTION_WINDOW = 1 << 20
"""Bytes of request bodies that all streams of a connection together may have unread."""
FRAMES_PER_TURN = 32
"""Frames of one client in one turn of the event loop: 8 ms when each is a request of 250 µs."""
HEADERS_PER_TURN = 1000
"""Headers of one client after which a turn ends: 32 usual requests have half as many. One that HPACK's table holds is an octet on
the wire, and costs 3 µs to decode and check, so that a frame of 3 KiB may take 8 ms."""
BYTES_PER_TURN = 256 << 10
"""Body bytes sent to one client in one turn of the event loop."""
CHECK_SECONDS = 10.0
"""Time between two checks of a connection for idleness and incomplete headers."""
SMALL_FRAMES = 4096
"""Bytes of incomplete frames and header blocks that do not count as held memory."""
_EVERY_STREAM = 2**31 - 1
_LEAVING = b"leaving."
"""Content of the PING behind the first GOAWAY."""
RESET_SECONDS = 0.2
"""Time from a reply that came before the end of its request to the reset of the stream: a client reads the reply first."""
CLOSE_SECONDS = 5.0
"""Time that a client has to read GOAWAY before the connection is cut."""


class Http2Server:
    """Limits and application that all HTTP/2 connections of a listener share."""

    def __init__(self, application: Application, workers: int = 1) -> None:
        """`workers`: number of processes that share the limits."""
        self.application = application
        self._workers = workers
        self._streams = 0
        self._by_source: dict[str, int] = {}

    @property
    def open_streams(self) -> dict[str, int]:
        """Number of open streams by source."""
        assert self._streams == sum(self._by_source.values())
        return dict(self._by_source)

    def protocol(self) -> Http2Connection:
        """Return a protocol for one new connection."""
        return Http2Connection(self)

    def admit(self, source: str) -> bool:
        """Count one more stream. Return False when there are too many, in all or of its source, which may have half of them."""
        held = self._by_source.get(source, 0)
        most = MAX_TOTAL_STREAMS // self._workers
        if self._streams >= most or held >= most // 2:
            return False
        self._by_source[source] = held + 1
        self._streams += 1
        return True

    def dismiss(self, source: str) -> None:
        """Count one stream less."""
        self._streams -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


class Http2Connection(ApplicationProtocol):
    """One HTTP/2 connection, from the TLS handshake to its end."""

    __slots__ = (
        "_buffered", "_counted", "_ends_after_reset", "_guard", "_held", "_is_asking", "_is_choked", "_is_leaving", "_is_over",
        "_is_scheduled", "_is_sending", "_is_turning", "_loop", "_progress", "_quiet_since", "_ready", "_shared", "_streams",
        "_taken", "_timer", "h2", "transport",
    )  # fmt: skip

    def __init__(self, shared: Http2Server) -> None:
        self._shared = shared
        self._streams: dict[int, Http2Stream] = {}
        self._ready: dict[int, Http2Stream] = {}  # streams that may send, in the order of their turns
        self._held = 0
        self._counted = 0
        self._taken = 0  # body bytes that were sent after they had waited
        self._progress: ReaderProgress | None = None
        self._buffered = 0
        self._is_choked = False
        self._is_asking = False
        self._is_leaving = False
        self._is_over = False
        self._is_scheduled = False
        self._is_sending = False  # a request was answered before it was whole: more of it may be on its way
        self._is_turning = False
        self._ends_after_reset = False
        """True when the connection ends once the stream of its last reply is reset."""

    @property
    def open_streams(self) -> int:
        """Number of open streams of this connection."""
        return len(self._streams)

    def connection_made(self, transport: TlsTransport) -> None:  # type: ignore[override]  # what the listener gives
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._quiet_since = now + HEADER_SECONDS - IDLE_SECONDS  # the first request is due as soon as over HTTP/1.1
        self._guard = FloodGuard(now)
        self.h2 = H2()
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)
        self._shared.application.connections.add(self)
        self._push()
        if not transport.connection.allows_http2:
            self._refuse(ErrorCodes.INADEQUATE_SECURITY)
        elif self._shared.application.is_leaving:
            self.leave()

    # Receiving

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            self._guard.take(data)
            if not self._is_turning:
                self._turn()

    def _turn(self) -> None:
        """Handle up to `FRAMES_PER_TURN` frames, and no more after `HEADERS_PER_TURN` headers; leave the others to the next turn of
        the event loop."""
        self._is_turning = False
        if self._is_over:
            return
        now = self._loop.time()
        try:
            frames, enough = 0, self.h2.decoded + HEADERS_PER_TURN
            while frames < FRAMES_PER_TURN and self.h2.decoded < enough:
                frames += 1
                frame = self._guard.frame(now)
                if frame is None:
                    self.transport.resume_reading()
                    break
                self._handle(frame, now)
            else:
                # Other connections get their turn. Reading pauses, so that the client cannot fill the memory meanwhile.
                self._is_turning = True
                self.transport.pause_reading()
                self._loop.call_soon(self._turn)
            held = self._guard.held
            if self._counted or held > SMALL_FRAMES:
                counted, self._counted = self._counted, held
                self.transport.hold(held - counted)
            self._schedule()
        except ClientProtocolError as misbehaviour:
            self.h2.close_connection(misbehaviour.code)
            self._end()
        except ProtocolError:  # h2 has queued a GOAWAY with the reason
            self._end()
        except Exception:  # h2 does not document which other exceptions it raises
            log.exception("an HTTP/2 connection failed unexpectedly")
            self.transport.abort()
        if self._guard.leaving:
            self._leave()

    def _handle(self, frame: bytes, now: float) -> None:
        events = self.h2.receive_data(frame)
        if not events and frame[3] in (DATA, HEADERS):  # for a stream that has ended
            self._guard.useless(now)
        for event in events:
            match event:
                case RequestReceived():
                    self._request_received(event, now)
                case DataReceived():
                    self._data_received(event, now)
                case StreamEnded():
                    if (stream := self._streams.get(event.stream_id)) is None:
                        pass
                    elif stream.missing > 0:  # it ended with trailers: h2 compares the length at the last DATA frame
                        self.cut(stream, ErrorCodes.PROTOCOL_ERROR)
                    else:
                        stream.ended()
                        self._settle(stream)
                case StreamReset():
                    if (stream := self._streams.get(event.stream_id)) is not None:
                        self._lose(stream)
                case WindowUpdated():
                    if (stream := self._streams.get(event.stream_id)) is not None and stream.waiting:
                        self._ready[event.stream_id] = stream
                case PingAckReceived():
                    if self._is_asking and event.ping_data == _LEAVING:
                        self._leave()
                case RemoteSettingsChanged():
                    self.h2.bound_tables()
                    self._ready |= {number: stream for number, stream in self._streams.items() if stream.waiting}
                case _:
                    pass

    def _request_received(self, event: RequestReceived, now: float) -> None:
        number, source = event.stream_id, self.transport.connection.network
        assert number is not None
        assert event.headers is not None
        if (
            self._is_leaving
            or self._ends_after_reset
            or len(self._streams) >= MAX_STREAMS
            or not self._shared.admit(source)
        ):
            self.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            # A refused stream is charged like one that the client resets (CVE-2023-44487).
            self._guard.reset(now)
            return
        stream = self._streams[number] = Http2Stream(self, number)
        is_empty = event.stream_ended is not None
        request, refusal = request_of(event.headers, self.transport.connection, stream, is_empty=is_empty)
        if not is_empty:
            stream.missing = int(request.header(b"content-length") or 0)  # h2 has checked that it is a number
        task = self._loop.create_task(self._serve(stream, request, refusal))
        tasks = self._shared.application.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _data_received(self, event: DataReceived, now: float) -> None:
        assert event.stream_id is not None
        assert event.data is not None
        size = event.flow_controlled_length or 0
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.missing -= len(event.data)
        if stream is not None and event.data and not stream.is_over:
            self.transport.hold(size)
            stream.arrived(event.data, size)
        else:
            if size and not self._is_over:
                # The window of the stream stays shut, because the rest of the body is not wanted.
                self.h2.increment_flow_control_window(size)
            if event.data:
                self._guard.useless(now)

    # Replying

    async def _serve(self, stream: Http2Stream, request: Request, refusal: int) -> None:
        is_last = False
        try:
            response = Response(refusal, headers=()) if refusal else await self._shared.application.answer(request)
            if response.stream is None:
                await self._reply(stream, request, response)
            else:
                self._begin(stream, request, response, None)
                # An anonymous client may not open more requests while this stream runs, as in kube-apiserver.
                if response.closes_http2:
                    self._leave()
                # A watch may last an hour: only the header that the audit record needs stays in memory.
                request.headers = [one for one in request.headers if one[0] == b"user-agent"]
                writer = stream.writer = Http2ResponseWriter(stream)
                try:
                    await response.stream(writer)
                finally:
                    writer.end()
                    stream.writer = None
                stream.finish()
            is_last = response.closes_http2
        except Exception:  # handlers turn their errors into replies, so this is a bug; other requests must go on
            log.exception("a request could not be answered")
            self.cut(stream, ErrorCodes.INTERNAL_ERROR)
        finally:
            request.close()
            stream.is_served = True
            self._settle(stream)
            if is_last and self._waits_for_reset(stream):  # some clients take no reset after a GOAWAY
                self._ends_after_reset = True
            elif is_last:
                self._leave()

    async def _reply(self, stream: Http2Stream, request: Request, response: Response) -> None:
        body = response.body
        if isinstance(body, bytes):
            if self._begin(stream, request, response, len(body)):
                stream.finish(body)
        elif self._begin(stream, request, response, body.size):
            stream.held += weight(body)
            self.transport.hold(weight(body))
            for piece in body:
                stream.write(piece)
                await stream.drained()
            stream.finish()
        if response.at_once:
            self._push()

    def _begin(self, stream: Http2Stream, request: Request, response: Response, length: int | None) -> bool:
        """Send the headers. Return True when a body follows."""
        if stream.is_mute:
            return False
        follows = length != 0 and request.method != "HEAD" and response.status != 304
        self.h2.send_headers(stream.number, reply_headers(response, length), end_stream=not follows)
        self._schedule()
        if not follows:
            stream.finish(sent_end=True)
            stream.is_mute = True
        return follows

    def _settle(self, stream: Http2Stream) -> None:
        """Free the place of a stream whose handler has ended and whose reply is sent; later, if its request is not whole."""
        if not (stream.is_served and stream.is_sent):
            return
        # curl drops a reply that it reads together with the reset, so the reset comes a moment later.
        if self._waits_for_reset(stream) and not (self._is_leaving or self._is_over):
            self._loop.call_later(RESET_SECONDS, self._remove, stream)
        else:
            self._remove(stream)

    def _waits_for_reset(self, stream: Http2Stream) -> bool:
        """Return True while the reply to a request that is not whole is sent, and the stream is not reset yet."""
        return stream.is_served and stream.is_sent and not stream.is_whole and stream.number in self._streams

    def _remove(self, stream: Http2Stream) -> None:
        """Free the place of a stream, and reset it if its request is not whole. Idempotent."""
        if self._streams.pop(stream.number, None) is None:
            return
        self._shared.dismiss(self.transport.connection.network)
        if self._is_over:
            return
        self.transport.hold(-stream.held)
        if stream.unread:
            self.acknowledge(stream.number, stream.unread)
        if not stream.is_whole:  # the rest of the body is not wanted (RFC 9113 8.1)
            self.h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
            self._is_sending = True
        if not self._streams:
            self._quiet_since = self._loop.time()
            if self._is_leaving:
                self._linger()
        self._schedule()
        if self._ends_after_reset:
            self._leave()

    def acknowledge(self, number: int, size: int) -> None:
        """Let the client send as many bytes as were read or discarded of a body."""
        if size and not self._is_over:
            self.h2.acknowledge_received_data(size, number)
            self._schedule()

    def _lose(self, stream: Http2Stream) -> None:
        """End a stream that the client reset, or that was reset by the server."""
        self.hold(-stream.waiting)
        self._ready.pop(stream.number, None)
        if stream.unread:
            self.acknowledge(stream.number, stream.unread)
        stream.lost()
        self._settle(stream)

    def cut(self, stream: Http2Stream, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        """Reset one stream."""
        if not self._is_over and not stream.is_mute:
            with suppress(ProtocolError):  # the stream has ended already
                self.h2.reset_stream(stream.number, code)
            self._lose(stream)
            self._schedule()

    # Sending

    def send_now(self, stream: Http2Stream, data: bytes) -> bool:
        """Send `data`, and the end of the reply if it is complete. Return False, having sent nothing, when it must wait."""
        if self._is_choked or self._buffered > BYTES_PER_TURN:
            return False
        size = len(data)
        if size > min(self.h2.local_flow_control_window(stream.number), MAX_FRAME):
            return False
        self._sent(stream, data, size)
        self._schedule()
        return True

    def _sent(self, stream: Http2Stream, data: bytes | memoryview, size: int) -> None:
        if size:
            self.h2.send_data(stream.number, data, end_stream=stream.is_over and not stream.waiting)
            self._buffered += size
            self._guard.sent(size)
        elif stream.is_over:
            self.h2.end_stream(stream.number)

    def hold(self, size: int) -> bool:
        """Count bytes that wait for this client. Return False when they are too many and the client is cut off."""
        if size and not self._is_over:
            self._held += size
            self._is_over = not self.transport.hold(size)
        return not self._is_over

    def wants_to_send(self, stream: Http2Stream) -> None:
        """Give a stream a turn to send."""
        self._ready[stream.number] = stream
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the data of this turn of the event loop, and of the waiting data as much as one turn may send."""
        self._is_scheduled = False
        if self._is_over:
            return
        while self._ready and self._buffered < BYTES_PER_TURN and not self._is_choked:
            number, stream = next(iter(self._ready.items()))
            del self._ready[number]
            if stream.is_mute:
                continue
            window = self.h2.local_flow_control_window(number)
            if stream.waiting and window <= 0:
                # The window of the connection is shut, so no other stream can send either.
                if self.h2.outbound_flow_control_window <= 0:
                    self._ready[number] = stream
                    break
                continue  # it gets a turn again when the client opens its window
            piece = stream.next_piece(min(max(window, 0), MAX_FRAME))
            self._sent(stream, piece, len(piece))
            self.hold(-len(piece))
            self._taken += len(piece)
            if stream.waiting:
                self._ready[number] = stream
            elif stream.is_over:
                self._settle(stream)
        is_more = bool(self._ready) and self._buffered >= BYTES_PER_TURN
        self._push()
        if is_more:
            self._schedule()

    def _push(self) -> None:
        data = self.h2.data_to_send()
        self._buffered = 0
        if data:
            self.transport.write(data)
            self.transport.flush()

    def pause_writing(self) -> None:
        self._is_choked = True

    def resume_writing(self) -> None:
        self._is_choked = False
        self._schedule()

    # Closing

    def expects_request(self) -> bool:
        """Return True while the client may not know that it is to use another connection."""
        return self._is_asking and not (self._is_leaving or self._is_over)

    def leave(self) -> None:
        """Ask the client to open no more streams. Those that it opens before it knows are served."""
        if self._is_asking or self._is_leaving or self._is_over:
            return
        self._is_asking = True
        self._push()
        self.transport.write(GoAwayFrame(0, last_stream_id=_EVERY_STREAM).serialize())
        # The client has read the GOAWAY when it acknowledges this PING. Streams that it opened before are served.
        self.h2.ping(_LEAVING)
        self._push()

    def shutdown(self) -> None:
        """Accept no more requests; close once the accepted ones are answered."""
        self._leave()

    def _leave(self) -> None:
        if self._is_leaving or self._is_over:
            return
        self._ends_after_reset = False
        for stream in tuple(filter(self._waits_for_reset, self._streams.values())):
            self._remove(stream)
        self._is_leaving = True
        self._push()
        # Built here, because h2 refuses to send on open streams after a GOAWAY of its own.
        goaway = GoAwayFrame(0, last_stream_id=self.h2.highest_inbound_stream_id)
        self.transport.write(goaway.serialize())
        self.transport.flush()
        if not self._streams:
            self._linger()

    def _linger(self) -> None:
        """Close soon. The client closes when it has read the GOAWAY; closing before it could lose the last reply."""
        if self._is_sending:
            self._end()
            return
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._close_when_sent)

    def _close_when_sent(self) -> None:
        if not self.transport.waiting:  # the listener cuts off a client that reads nothing
            self._end()
        else:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._close_when_sent)

    def _refuse(self, code: ErrorCodes) -> None:
        """Take nothing of the client. It has time to read the reason."""
        self.h2.close_connection(code)
        self._end()

    def _end(self) -> None:
        """Close now."""
        if self._is_over:
            return
        self._push()
        self._is_over = True
        self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self.transport.abort)
        for stream in tuple(self._streams.values()):
            stream.lost()
        self.transport.close(linger=True)

    def _check(self) -> None:
        """Close the connection when a header block takes too long, or when it was idle for too long."""
        now = self._loop.time()
        since = self._guard.block_since
        if since and now - since > HEADER_SECONDS:
            self.transport.abort()
            return
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)
        if not self._streams and now - self._quiet_since > IDLE_SECONDS:
            self._leave()

    def has_stalled_readers(self, now: float) -> bool:
        """Return True when the client keeps the connection's window shut. Streams whose own window stays shut are reset."""
        if self._is_over or self._is_choked or not self._held:
            self._progress = None  # nothing waits for a window
            return False
        if self.h2.outbound_flow_control_window <= 0:
            if self._progress is None:
                self._progress = ReaderProgress(self._taken, self._held, now)
            return self._progress.is_stalled(self._taken, self._held, now)
        self._progress = None
        for stream in tuple(self._streams.values()):
            if not stream.waiting or self.h2.local_flow_control_window(stream.number) > 0:
                stream.progress = None
            elif stream.is_stalled(now):
                self.cut(stream)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._timer.cancel()
        self._shared.application.connections.discard(self)
        for stream in tuple(self._streams.values()):
            stream.lost()
            self._settle(stream)
