"""HTTP/2 for who asks for it by ALPN (RFC 9113, docs/adr/0022): one connection carries all requests and watches of a process.

Rules kept here:
* The contract is that of HTTP/1.1 (`mooring.server.transport.http`): a `Request` in, a `Response` out, `Frames` for a reply that
  goes on.
  A client that resets a stream, or goes, ends its watch; a handler that runs comes to its end, and holds the stream's place until
  then, so that resetting streams buys nobody more work than keeping them (CVE-2023-44487).
* Nobody waits for a slow stream: replies are sent in turns of one frame, as far as the client's windows and the kernel take
  them. What waits is counted with what waits in TCP, for the client, its source and all of them
  (`mooring.server.transport.holdings`); a
  watch too far behind is reset alone, and so is a stream whose window the client has shut for too long.
* One turn of the loop takes a few frames from one client and sends it a bounded piece.
* Bodies are taken as handlers read them: an unread one fills its window and no more. What comes after the reply is refused.
* After a reply to nobody in particular the connection takes no more requests, as kube-apiserver's
  UnauthenticatedHTTP2DOSMitigation has it (docs/protocol/authentication.md#connections). So it is when the server stops: GOAWAY,
  and the end when every stream has come to its own.

h2 knows frames, headers and windows, and gets and gives bytes only; what it leaves open is bounded by `http2guard`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from mooring.server.transport.holdings import Progress
from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    Application,
    Request,
    Response,
    weight,
)
from mooring.server.transport.http2.guard import DATA, HEADERS, MAX_FRAME, Guard, Misbehaviour
from mooring.server.transport.http2.stream import H2, MAX_STREAMS, DataFrames, Stream, reply_headers, request_of
from mooring.server.transport.listener import MAX_CONNECTIONS, Inner, TlsTransport

log = logging.getLogger("mooring.server")

MAX_STREAMS_IN_ALL = MAX_CONNECTIONS
"""Of all HTTP/2 clients, half of them of one source: as many watches as HTTP/1.1 connections can hold."""
CONNECTION_WINDOW = 1 << 20
"""The same for all streams of a connection: what a stranger can make us hold."""
FRAMES_A_TURN = 32
"""Frames of one client in one turn of the loop: 250 µs each when it is a request, so 8 ms."""
OCTETS_A_TURN = 256 << 10
"""Body bytes sent to one client in one turn."""
LOOK_SECONDS = 10.0
"""How often a connection is looked at for what takes too long."""
SMALL_FRAMES = 4096
"""Bytes of frames and header blocks that are not whole yet and are not counted."""
CLOSE_SECONDS = 5.0
"""A client that was told to go may take so long to read it."""


class Http2:
    """What all HTTP/2 connections of an application share."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self._streams = 0
        self._by_source: dict[str, int] = {}

    def protocol(self) -> Protocol:
        """A protocol for one new connection."""
        return Protocol(self)

    def admit(self, source: str) -> bool:
        """Whether one more stream fits: in all, and of its source, which may hold half of them."""
        held = self._by_source.get(source, 0)
        if self._streams >= MAX_STREAMS_IN_ALL or held >= MAX_STREAMS_IN_ALL // 2:
            return False
        self._by_source[source] = held + 1
        self._streams += 1
        return True

    def dismiss(self, source: str) -> None:
        """A stream has come to its end."""
        self._streams -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


class Protocol(Inner):
    """One connection."""

    __slots__ = (
        "_buffered", "_counted", "_guard", "_h2", "_held", "_is_choked", "_is_leaving", "_is_over", "_is_scheduled",
        "_is_turning", "_loop", "_progress", "_quiet_since", "_ready", "_shared", "_streams", "_taken", "_timer", "transport",
    )  # fmt: skip

    def __init__(self, shared: Http2) -> None:
        self._shared = shared
        self._streams: dict[int, Stream] = {}
        self._ready: dict[int, Stream] = {}  # those that may send something, in the order of their turns
        self._held = 0
        self._counted = 0
        self._taken = 0  # octets of bodies that went out when they had waited
        self._progress: Progress | None = None
        self._buffered = 0
        self._is_choked = False
        self._is_leaving = False
        self._is_over = False
        self._is_scheduled = False
        self._is_turning = False

    def connection_made(self, transport: TlsTransport) -> None:  # type: ignore[override]  # what the listener gives
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._quiet_since = now + HEADER_SECONDS - IDLE_SECONDS  # the first request must come as soon as over HTTP/1.1
        self._guard = Guard(now)
        self._h2 = H2()
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        self._shared.application.connections.add(self)
        self._push()

    # What comes

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            self._guard.take(data)
            if not self._is_turning:
                self._turn()

    def _turn(self) -> None:
        """React to some frames; to more of them in the next turn of the loop."""
        self._is_turning = False
        if self._is_over:
            return
        now = self._loop.time()
        try:
            for _ in range(FRAMES_A_TURN):
                frame = self._guard.frame(now)
                if frame is None:
                    self.transport.resume_reading()
                    break
                self._react(frame, now)
            else:
                self._is_turning = True
                self.transport.pause_reading()
                self._loop.call_soon(self._turn)
            held = self._guard.held
            if self._counted or held > SMALL_FRAMES:
                counted, self._counted = self._counted, held
                self.transport.hold(held - counted)
            self._schedule()
        except Misbehaviour as misbehaviour:
            self._h2.close_connection(misbehaviour.code)
            self._end()
        except ProtocolError:  # h2 has said why
            self._end()
        except Exception:  # h2 promises nothing about what else it raises
            log.exception("an HTTP/2 connection could not be understood")
            self.transport.abort()
        if self._guard.leaving:
            self._leave()

    def _react(self, frame: bytes, now: float) -> None:
        events = self._h2.receive_data(frame)
        if not events and frame[3] in (DATA, HEADERS):  # of a stream that has ended
            self._guard.in_vain(now)
        for event in events:
            match event:
                case RequestReceived():
                    self._asked(event, now)
                case DataReceived():
                    self._arrived(event, now)
                case StreamEnded():
                    if (stream := self._streams.get(event.stream_id)) is not None:
                        stream.ended()
                case StreamReset():
                    if (stream := self._streams.get(event.stream_id)) is not None:
                        self._lose(stream)
                case WindowUpdated():
                    if (stream := self._streams.get(event.stream_id)) is not None and stream.waiting:
                        self._ready[event.stream_id] = stream
                case RemoteSettingsChanged():
                    self._h2.bound_tables()
                    self._ready |= {number: stream for number, stream in self._streams.items() if stream.waiting}
                case _:
                    pass

    def _asked(self, event: RequestReceived, now: float) -> None:
        number, source = event.stream_id, self.transport.connection.network
        assert number is not None
        assert event.headers is not None
        if self._is_leaving or len(self._streams) >= MAX_STREAMS or not self._shared.admit(source):
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            self._guard.reset(now)
            return
        stream = self._streams[number] = Stream(self, number)
        request, refusal = request_of(event.headers, self.transport.connection, stream)
        task = self._loop.create_task(self._serve(stream, request, refusal))
        tasks = self._shared.application.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _arrived(self, event: DataReceived, now: float) -> None:
        assert event.stream_id is not None
        assert event.data is not None
        octets = event.flow_controlled_length or 0
        stream = self._streams.get(event.stream_id)
        if stream is not None and event.data and not stream.is_over:
            self.transport.hold(octets)
            stream.arrived(event.data, octets)
        else:
            self.read(event.stream_id, octets)
            if event.data:
                self._guard.in_vain(now)

    # What is answered

    async def _serve(self, stream: Stream, request: Request, refusal: int) -> None:
        try:
            response = Response(refusal, headers=()) if refusal else await self._shared.application.answer(request)
            if response.stream is None:
                await self._reply(stream, request, response)
            else:
                self._begin(stream, request, response, None)
                if response.farewell:
                    self._leave()
                request.headers = [one for one in request.headers if one[0] == b"user-agent"]  # for the audit record
                frames = stream.frames = DataFrames(stream)
                try:
                    await response.stream(frames)
                finally:
                    frames.end()
                    stream.frames = None
                stream.finish()
            if response.farewell:
                self._leave()
        except Exception:  # a handler answers for its own errors; this is a bug, and must not stop the others
            log.exception("a request could not be answered")
            self.cut(stream, ErrorCodes.INTERNAL_ERROR)
        finally:
            request.close()
            stream.is_served = True
            self._settle(stream)

    async def _reply(self, stream: Stream, request: Request, response: Response) -> None:
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

    def _begin(self, stream: Stream, request: Request, response: Response, length: int | None) -> bool:
        """Send the headers; whether a body follows."""
        if stream.is_mute:
            return False
        follows = length != 0 and request.method != "HEAD" and response.status != 304
        self._h2.send_headers(stream.number, reply_headers(response, length), end_stream=not follows)
        self._schedule()
        if not follows:
            stream.finish(said=True)
            stream.is_mute = True
        return follows

    def _settle(self, stream: Stream) -> None:
        """Free the place of a stream that has been served and has nothing left to send."""
        if not (stream.is_served and stream.is_sent) or self._streams.pop(stream.number, None) is None:
            return
        self._shared.dismiss(self.transport.connection.network)
        if self._is_over:
            return
        self.transport.hold(-stream.held)
        if stream.unread:
            self.read(stream.number, stream.unread)
        if not stream.is_whole:  # the rest of the body is not wanted (RFC 9113 8.1)
            self._h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
        if not self._streams:
            self._quiet_since = self._loop.time()
            if self._is_leaving:
                self._linger()
        self._schedule()

    def read(self, number: int, octets: int) -> None:
        """So much of a body was taken, or thrown away: the client may send as much again."""
        if octets and not self._is_over:
            self._h2.acknowledge_received_data(octets, number)
            self._schedule()

    def _lose(self, stream: Stream) -> None:
        """The client does not want it any more."""
        self.hold(-stream.waiting)
        self._ready.pop(stream.number, None)
        if stream.unread:
            self.read(stream.number, stream.unread)
        stream.lost()
        self._settle(stream)

    def cut(self, stream: Stream, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        """End one stream before its time."""
        if not self._is_over and not stream.is_mute:
            with suppress(ProtocolError):  # it has ended already
                self._h2.reset_stream(stream.number, code)
            self._lose(stream)
            self._schedule()

    # What goes out

    def send_now(self, stream: Stream, data: bytes) -> bool:
        """Send `data`, and the end of the reply when it is over; False, and nothing happens, when it must wait."""
        if self._is_choked or self._buffered > OCTETS_A_TURN:
            return False
        size = len(data)
        if size > min(self._h2.local_flow_control_window(stream.number), MAX_FRAME):
            return False
        self._sent(stream, data, size)
        self._schedule()
        return True

    def _sent(self, stream: Stream, data: bytes | memoryview, size: int) -> None:
        if size:
            self._h2.send_data(stream.number, data, end_stream=stream.is_over and not stream.waiting)
            self._buffered += size
            self._guard.sent(size)
        elif stream.is_over:
            self._h2.end_stream(stream.number)

    def hold(self, octets: int) -> bool:
        """Count what waits for this client; False when that is too much, and the client is cut off."""
        if octets and not self._is_over:
            self._held += octets
            self._is_over = not self.transport.hold(octets)
        return not self._is_over

    def wants_to_send(self, stream: Stream) -> None:
        self._ready[stream.number] = stream
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what this turn of the loop brought, and of what waits as much as one turn may send."""
        self._is_scheduled = False
        if self._is_over:
            return
        while self._ready and self._buffered < OCTETS_A_TURN and not self._is_choked:
            number, stream = next(iter(self._ready.items()))
            del self._ready[number]
            if stream.is_mute:
                continue
            window = self._h2.local_flow_control_window(number)
            if stream.waiting and window <= 0:
                if self._h2.outbound_flow_control_window <= 0:
                    self._ready[number] = stream
                    break
                continue  # it comes back when the client opens its window
            piece = stream.next_piece(min(max(window, 0), MAX_FRAME))
            self._sent(stream, piece, len(piece))
            self.hold(-len(piece))
            self._taken += len(piece)
            if stream.waiting:
                self._ready[number] = stream
            elif stream.is_over:
                self._settle(stream)
        is_more = bool(self._ready) and self._buffered >= OCTETS_A_TURN
        self._push()
        if is_more:
            self._schedule()

    def _push(self) -> None:
        data = self._h2.data_to_send()
        self._buffered = 0
        if data:
            self.transport.write(data)
            self.transport.flush()

    def pause_writing(self) -> None:
        self._is_choked = True

    def resume_writing(self) -> None:
        self._is_choked = False
        self._schedule()

    # How it ends

    def shutdown(self) -> None:
        """Take no more requests; close when those there are have been answered."""
        self._leave()

    def _leave(self) -> None:
        if self._is_leaving or self._is_over:
            return
        self._is_leaving = True
        self._push()
        # By hand: after h2's own it would not let us finish the streams.
        farewell = GoAwayFrame(0, last_stream_id=self._h2.highest_inbound_stream_id)
        self.transport.write(farewell.serialize())
        self.transport.flush()
        if not self._streams:
            self._linger()

    def _linger(self) -> None:
        """Close soon: the client does it itself when it has read the GOAWAY; closing first could lose it the last reply."""
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._depart)

    def _depart(self) -> None:
        if not self.transport.waiting:  # the listener ends a client that reads nothing
            self._end()
        else:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._depart)

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
        self.transport.close()

    def _look(self) -> None:
        """End what takes too long."""
        now = self._loop.time()
        since = self._guard.block_since
        if since and now - since > HEADER_SECONDS:
            self.transport.abort()
            return
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if not self._streams and now - self._quiet_since > IDLE_SECONDS:
            self._leave()

    def has_stalled_readers(self, now: float) -> bool:
        """Whether the window of the connection stays shut. Streams whose own window stays shut are reset."""
        if self._is_over or self._is_choked or not self._held:
            self._progress = None  # nothing waits for windows
            return False
        if self._h2.outbound_flow_control_window <= 0:
            if self._progress is None:
                self._progress = Progress(self._taken, self._held, now)
            return self._progress.is_stalled(self._taken, self._held, now)
        self._progress = None
        for stream in tuple(self._streams.values()):
            if not stream.waiting or self._h2.local_flow_control_window(stream.number) > 0:
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
