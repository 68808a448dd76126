"""Test watches over WebSocket with real clients over TLS.

Source: docs/protocol/authentication.md#bearer-tokens-over-websocket, docs/protocol/watch.md#form; RFC 6455.

Rules kept here: the server is the control plane's own assembly behind Mooring's own listener; the clients are libraries that people
use: websockets, websocket-client (the official Python client's own), aiohttp. What no library would send is sent by hand.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import websocket as websocket_client
import websockets
from kubernetes.stream import ws_client
from websocket import ABNF
from websockets.typing import Origin, Subprotocol

from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message
from mooring.apimachinery.metav1 import STATUS
from mooring.identity import MASTERS
from mooring.server.transport import http
from mooring.server.transport import http1 as http1exchange
from tests.authn.test_websocketbearer import protocol
from tests.leftovers import open_descriptors
from tests.support.protobufwatch import decode_watch_frame
from tests.support.registryroom import secret
from tests.support.servedroom import served_room
from tests.support.serverroom import Server
from tests.support.testca import Pair
from tests.support.tlspeer import PATIENCE, Served, reply, request, rest

SECRETS = "/api/v1/namespaces/default/secrets"
WATCH = f"{SECRETS}?watch=1"
ORIGIN = "https://localhost"
"""Origin of a page of the server itself, by the Host that requests of these tests name."""
CONSOLE = "https://console.example"
"""Another site."""
PLAIN = "base64.binary.k8s.io"
"""Subprotocol that web consoles offer beside the token."""
PROTOBUF = "application/vnd.kubernetes.protobuf"
TOKEN = "abcdef.0123456789abcdef"
WRONG = "abcdef.0000000000000000"
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    f"Origin: {ORIGIN}",
)
"""RFC 6455 1.2's own example."""
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


class ClosedError(Exception):
    """The server closed with this code, or without a close frame (0)."""


class Client:
    """Client with the library websocket-client."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer  # half typed, as the library is
        self.pongs: list[bytes] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.peer.close()
        self.peer.shutdown()  # it leaves the socket open when the other side closed first

    @property
    def status(self) -> int:
        return int(self.peer.getstatus() or 0)

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): str(value) for name, value in (self.peer.getheaders() or {}).items()}

    @property
    def subprotocol(self) -> str | None:
        chosen: str | None = self.peer.getsubprotocol()
        return chosen

    def receive(self) -> str | bytes:
        """Return the next message. Raises ClosedError; the library answers close frames itself."""
        try:
            while True:
                opcode, data = self.peer.recv_data(control_frame=True)
                if opcode == ABNF.OPCODE_CLOSE:
                    raise ClosedError(int.from_bytes(data[:2]))
                if opcode != ABNF.OPCODE_PONG:
                    return bytes(data) if opcode == ABNF.OPCODE_BINARY else str(data, "utf-8")
                self.pongs.append(data)
        except (websocket_client.WebSocketConnectionClosedException, OSError) as error:
            raise ClosedError(0) from error

    def event(self) -> Any:
        return json.loads(self.receive())

    def told(self) -> str:
        """`TYPE name` of the next event."""
        found = self.event()
        return f"{found['type']} {found['object']['metadata'].get('name', '')}".strip()

    def goodbye(self) -> int:
        """Return the server's close code; it must close now."""
        with pytest.raises(ClosedError) as closed:
            self.receive()
        return int(closed.value.args[0])


class House:
    """Whole server behind a real listener, and its clients."""

    def __init__(self, served: Served, server: Server, directory: Path) -> None:
        self.served = served
        self.server = server
        self.directory = directory
        self.admin = server.ca.client("admin", MASTERS)

    def do(self, step: Callable[[Server], Awaitable[Any]]) -> Any:
        """Run a step in the server's loop."""
        return self.served.run(lambda: step(self.server))

    def create(self, name: str) -> None:
        self.do(lambda server: server.create("secrets", secret(name)))

    def context(self, identity: Pair | None) -> ssl.SSLContext:
        return self.served.context(self.directory, identity)

    @property
    def origin(self) -> str:
        """Origin of a page of this server."""
        return f"https://localhost:{self.served.port}"

    def url(self, target: str) -> str:
        return f"wss://localhost:{self.served.port}{target}"

    def open(
        self,
        target: str = WATCH,
        *,
        identity: Pair | None = None,
        protocols: Sequence[str] = (),
        origin: str = "",
        headers: dict[str, str] | None = None,
    ) -> Client:
        """Open a WebSocket, as the administrator unless protocols or headers are given."""
        if identity is None and not protocols and not headers:
            identity = self.admin
        peer = websocket_client.create_connection(
            self.url(target),
            sslopt={"context": self.context(identity)},
            subprotocols=list(protocols) or None,
            origin=origin or self.origin,
            header=headers or {},
            timeout=PATIENCE,
        )
        return Client(peer)

    def refused(self, **how: Any) -> int:
        """Return the status of a reply other than 101."""
        with pytest.raises(websocket_client.WebSocketBadStatusException) as refused:
            self.open(**how)
        return refused.value.status_code

    def raw(self, *sent: bytes, identity: Pair | None = None) -> ssl.SSLSocket:
        peer = self.served.client(self.directory, identity or self.admin)
        peer.sendall(b"".join(sent))
        return peer

    def watches(self) -> int:
        return int(self.served.ask(lambda: self.server.registry.cache.kinds["secrets"].watches))

    def until_watches(self, number: int) -> None:
        """Wait until that many watches run."""

        async def look() -> None:
            async with asyncio.timeout(PATIENCE):
                while self.server.registry.cache.kinds["secrets"].watches != number:
                    await asyncio.sleep(0.001)

        self.served.run(look)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with served_room(audit_log_path=str(tmp_path / "audit.log")) as (served, server):
        yield House(served, server, tmp_path)


# -- what a watch says ---------------------------------------------------------------------------------------------


def test_a_watch_tells_the_present_and_then_what_happens(house: House) -> None:
    house.create("a")
    house.create("b")
    with house.open() as client:
        assert client.status == 101
        assert client.headers["audit-id"]
        assert client.subprotocol is None
        assert [client.told(), client.told()] == ["ADDED a", "ADDED b"]
        house.create("c")
        assert client.told() == "ADDED c"
        house.do(lambda server: server.delete("secrets", "a"))
        assert client.told() == "DELETED a"
    house.until_watches(0)


def test_a_message_is_the_line_that_a_chunked_watch_sends(house: House) -> None:
    house.create("a")
    with house.open() as client:
        message = client.receive()
    line = house.do(lambda server: server.follow(WATCH))
    assert isinstance(message, str)
    assert message.encode() == line.raw
    house.served.run(line.end)


def test_who_accepts_only_protobuf_gets_binary_messages(house: House) -> None:
    house.create("a")
    with house.open(identity=house.admin, headers={"Accept": PROTOBUF}) as client:
        message = client.receive()
    assert isinstance(message, bytes)
    kind, envelope = decode_watch_frame(len(message).to_bytes(4) + message)
    assert (kind, decode_envelope(envelope)[:2]) == ("ADDED", ("v1", "Secret"))


def test_a_table_is_watched_as_a_table(house: House) -> None:
    house.create("a")
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    with house.open(identity=house.admin, headers={"Accept": accept}) as client:
        assert client.event()["object"]["rows"][0]["cells"][0] == "a"


def test_initial_events_end_with_a_bookmark(house: House) -> None:
    house.create("a")
    ask = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with house.open(f"{WATCH}&{ask}") as client:
        assert client.told() == "ADDED a"
        marked = client.event()
    assert marked["type"] == "BOOKMARK"
    assert marked["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_the_end_of_its_time_is_a_bookmark_and_a_clean_goodbye(house: House) -> None:
    with house.open(f"{WATCH}&timeoutSeconds=1&allowWatchBookmarks=true") as client:
        assert [client.told(), client.told()] == ["BOOKMARK"] * 2  # the present is told, and the last revision seen
        assert client.goodbye() == 1000
    house.until_watches(0)


@pytest.mark.parametrize("accept", ["application/json", PROTOBUF])
def test_a_revision_that_is_gone_is_an_error_event_of_410(house: House, accept: str) -> None:
    house.served.ask(lambda: house.server.registry.cache.kinds["secrets"].window.restart(10_000))
    with house.open(f"{WATCH}&resourceVersion=2", identity=house.admin, headers={"Accept": accept}) as client:
        message = client.receive()
        assert client.goodbye() == 1000
    if isinstance(message, str):
        told = json.loads(message)
        kind, status = told["type"], told["object"]
    else:
        kind, envelope = decode_watch_frame(len(message).to_bytes(4) + message)
        status = decode_message(decode_envelope(envelope)[2], STATUS)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert house.watches() == 0


@pytest.mark.parametrize(
    ("target", "status"),
    [
        pytest.param(f"{WATCH}&sendInitialEvents=true", 422, id="options that contradict each other"),
        pytest.param(f"{WATCH}&resourceVersion=x", 400, id="a revision that is no number"),
        pytest.param("/api/v1/nothings?watch=1", 404, id="a resource that nobody serves"),
    ],
)
def test_other_errors_are_answers_and_no_websocket(house: House, target: str, status: int) -> None:
    assert house.refused(target=target) == status
    assert house.watches() == 0


# -- who may ---------------------------------------------------------------------------------------------------------


def token_house(house: House) -> None:
    """Create the bootstrap token TOKEN, whose group may watch Secrets."""

    async def allow(server: Server) -> None:
        await server.bootstrap_token(TOKEN)
        role = {
            "metadata": {"name": "watcher"},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}],
        }
        await server.create("clusterroles", role)
        await server.create(
            "clusterrolebindings",
            {
                "metadata": {"name": "watcher"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "watcher"},
                "subjects": [
                    {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}
                ],
            },
        )

    house.do(allow)


@pytest.mark.parametrize(
    ("protocols", "headers", "chosen"),
    [
        pytest.param([protocol(TOKEN), PLAIN], {}, PLAIN, id="a token before the other protocol"),
        pytest.param([PLAIN, protocol(TOKEN)], {}, PLAIN, id="a token after the other protocol"),
        pytest.param([protocol(TOKEN), "b", "a"], {}, "b", id="of several others the first is chosen"),
        pytest.param([], {"Authorization": f"Bearer {TOKEN}"}, None, id="a token in the header, and no protocol"),
        pytest.param([PLAIN], {"Authorization": f"Bearer {TOKEN}"}, PLAIN, id="a token in the header, and a protocol"),
        pytest.param(
            [protocol(TOKEN), PLAIN], {"Authorization": f"Bearer {WRONG}"}, PLAIN, id="a bad header and a good protocol"
        ),
        pytest.param(
            [protocol(WRONG), PLAIN], {"Authorization": f"Bearer {TOKEN}"}, PLAIN, id="a good header and a bad protocol"
        ),
    ],
)
def test_a_token_opens_a_watch_and_is_never_echoed(
    house: House, protocols: list[str], headers: dict[str, str], chosen: str | None
) -> None:
    token_house(house)
    house.create("a")
    with house.open(protocols=protocols, headers=headers) as client:
        assert client.subprotocol == chosen
        assert client.told().startswith("ADDED")
        assert "bearer" not in str(client.headers)


@pytest.mark.parametrize(
    ("protocols", "reason"),
    [
        pytest.param([protocol(WRONG), PLAIN], "bootstrap-token: ", id="a wrong secret"),
        pytest.param([protocol("what is this"), PLAIN], "bearer: unknown-token", id="a token that nobody knows"),
        pytest.param([protocol(TOKEN)], "websocket: no-other-subprotocol", id="a token alone"),
        pytest.param([protocol(TOKEN), protocol(WRONG), PLAIN], "websocket: token-repeated", id="two tokens"),
        pytest.param([protocol(TOKEN) + "!", PLAIN], "websocket: token-not-base64url", id="no base64url"),
        pytest.param([protocol(b"\xff\xfe\xfd"), PLAIN], "websocket: token-not-utf8", id="no text"),
    ],
)
def test_a_bad_token_is_401_and_the_operator_learns_why(house: House, protocols: list[str], reason: str) -> None:
    token_house(house)
    answer = house.raw(request(WATCH, headers=(*HANDSHAKE, f"Sec-WebSocket-Protocol: {', '.join(protocols)}")))
    with answer as peer:
        status, headers, body = reply(peer)
    with house.served.client(house.directory) as peer:
        peer.sendall(request(WATCH, headers=(*HANDSHAKE, f"Sec-WebSocket-Protocol: {', '.join(protocols)}")))
        status, headers, body = reply(peer)
    assert (status, json.loads(body)["message"]) == (401, "Unauthorized")
    house.do(lambda server: server.assembly.base.audit.log.stop())
    lines = (house.directory / "audit.log").read_text()
    [record] = [json.loads(line) for line in lines.splitlines() if headers["audit-id"] in line]
    assert record["annotations"]["authentication.mooring.dev/refused"].startswith(reason)
    for name in protocols:
        secret_part = name.rpartition(".")[2]
        assert secret_part == PLAIN.rpartition(".")[2] or secret_part not in lines
    assert TOKEN.partition(".")[2] not in lines


def test_a_token_s_watch_leaves_a_record_of_101_without_the_token(house: House) -> None:
    token_house(house)
    with house.open(protocols=[protocol(TOKEN), PLAIN]) as client:
        audit_id = client.headers["audit-id"]
    house.until_watches(0)
    house.do(lambda server: server.assembly.base.audit.log.stop())
    lines = (house.directory / "audit.log").read_text()
    [record] = [json.loads(line) for line in lines.splitlines() if audit_id in line]
    assert (record["verb"], record["responseStatus"]["code"]) == ("watch", 101)
    assert record["user"]["username"] == "system:bootstrap:abcdef"
    assert protocol(TOKEN).rpartition(".")[2] not in lines
    assert TOKEN not in lines


def test_the_request_s_headers_are_forgotten_while_the_watch_runs(house: House) -> None:
    token_house(house)
    with house.open(protocols=[protocol(TOKEN), PLAIN]):
        connections: Any = house.served.application.connections
        kept = house.served.ask(lambda: [(*one._headers, *one.exchanges[0].request.headers) for one in connections])
        names = {name for headers in kept for name, _ in headers}
    assert names <= {b"user-agent"}


def test_a_token_in_a_request_that_is_no_websocket_is_no_credential(house: House) -> None:
    token_house(house)
    with house.served.client(house.directory) as peer:
        peer.sendall(request(WATCH, headers=(f"Sec-WebSocket-Protocol: {protocol(TOKEN)}, {PLAIN}",)))
        status, _, body = reply(peer)
    assert status == 403
    assert "system:anonymous" in json.loads(body)["message"]


def test_who_may_not_watch_is_403(house: House) -> None:
    assert house.refused(identity=house.server.ca.client("jane")) == 403


def test_a_certificate_is_enough(house: House) -> None:
    with house.open(identity=house.admin, protocols=["a", "b"]) as client:
        assert client.subprotocol == "a"


def test_a_certificate_hides_a_bad_token_which_is_not_echoed(house: House) -> None:
    with house.open(identity=house.admin, protocols=[protocol(WRONG), PLAIN]) as client:
        assert client.subprotocol == PLAIN


@pytest.mark.parametrize(
    "offered",
    [
        pytest.param(protocol(WRONG), id="a wrong token"),
        pytest.param(protocol("anything"), id="any text"),
        pytest.param(protocol(TOKEN) + "!", id="a malformed token"),
        pytest.param(protocol(""), id="an empty token"),
        pytest.param(protocol(TOKEN), id="a good token"),
    ],
)
@pytest.mark.parametrize("password", [(), ("Authorization: Basic amFuZTpwdw==",)], ids=["certificate", "and password"])
def test_a_page_of_another_site_has_its_token_alone(house: House, offered: str, password: tuple[str, ...]) -> None:
    """The certificate of the browser would let in every page that offers a text in the form of a token."""
    token_house(house)
    headers = (*changed("Origin", CONSOLE), *password, f"Sec-WebSocket-Protocol: {offered}, {PLAIN}")
    with house.raw(request(WATCH, headers=headers)) as peer:
        status = int(peer.recv(12).split()[1])
    assert status == {protocol(TOKEN): 101, protocol(""): 403}.get(offered, 401)
    house.do(lambda server: server.assembly.base.audit.log.stop())
    records = [json.loads(line) for line in (house.directory / "audit.log").read_text().splitlines()]
    users = {record["user"].get("username", "") for record in records if record["requestURI"] == WATCH}
    assert users == {{101: "system:bootstrap:abcdef", 403: "system:anonymous"}.get(status, "")}


# -- the handshake ---------------------------------------------------------------------------------------------------


def changed(name: str, value: str | None) -> tuple[str, ...]:
    """HANDSHAKE with another value for one header, or without it."""
    rest = tuple(line for line in HANDSHAKE if not line.startswith(f"{name}:"))
    return rest if value is None else (*rest, f"{name}: {value}")


def test_the_example_of_the_rfc(house: House) -> None:
    with house.raw(request(WATCH, headers=HANDSHAKE)) as peer:
        head = peer.recv(4096).partition(b"\r\n\r\n")[0].decode()
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert first == "HTTP/1.1 101 Switching Protocols"
    assert (headers["upgrade"], headers["connection"]) == ("websocket", "Upgrade")
    assert headers["sec-websocket-accept"] == ACCEPT
    assert not {"transfer-encoding", "content-length", "content-type", "sec-websocket-protocol"} & set(headers)


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        pytest.param(
            changed("Sec-WebSocket-Key", None),
            400,
            "the WebSocket handshake has no Sec-WebSocket-Key",
            id="no key",
        ),
        pytest.param(
            changed("Sec-WebSocket-Version", "8"),
            400,
            "the WebSocket version is not supported: this server speaks version 13",
            id="a draft's version",
        ),
        pytest.param(
            changed("Sec-WebSocket-Version", None),
            400,
            "the WebSocket version is not supported: this server speaks version 13",
            id="no version",
        ),
        pytest.param(
            changed("Origin", None), 403, "the WebSocket handshake has no Origin that is a URI", id="no origin"
        ),
        pytest.param(
            changed("Origin", "null"), 403, "the WebSocket handshake has no Origin that is a URI", id="a null origin"
        ),
        *(
            pytest.param(
                headers,
                403,
                "the Origin of the WebSocket handshake is another site, and the request has no credential but a client "
                "certificate or one that browsers send by themselves: send a token",
                id=name,
            )
            for name, headers in {
                "a certificate alone, from a console": changed("Origin", CONSOLE),
                "a certificate alone, from another port": changed("Origin", "https://localhost:8443"),
                "a certificate alone, from a name below": changed("Origin", "https://localhost.console.example"),
                "a certificate alone, from a page without TLS": changed("Origin", "http://localhost"),
                "a certificate alone, from two origins": (*changed("Origin", ORIGIN), f"Origin: {CONSOLE}"),
                "a password that the browser remembers": (
                    *changed("Origin", CONSOLE),
                    "Authorization: Basic amFuZTpwdw==",
                ),
                "a ticket that the browser has": (*changed("Origin", CONSOLE), "Authorization: Negotiate YII="),
            }.items()
        ),
    ],
)
def test_a_handshake_that_is_refused(house: House, headers: tuple[str, ...], status: int, message: str) -> None:
    with house.raw(request(WATCH, headers=headers)) as peer:
        answered, given, body = reply(peer)
        assert (answered, json.loads(body)["message"]) == (status, message)
        assert ("sec-websocket-version" in given) is ("version" in message)
        peer.sendall(request("/version"))  # the connection is as good as before
        assert reply(peer)[0] == 200
    assert house.watches() == 0


@pytest.mark.parametrize(
    ("target", "method", "headers", "status"),
    [
        pytest.param(SECRETS, "GET", HANDSHAKE, 200, id="a list"),
        pytest.param("/version", "GET", HANDSHAKE, 200, id="a document"),
        pytest.param("/nothing", "GET", HANDSHAKE, 404, id="nothing"),
        pytest.param(SECRETS, "DELETE", HANDSHAKE, 200, id="a deletion"),
        pytest.param("/version", "HEAD", (*HANDSHAKE, "Content-Length: 0"), 200, id="a question without an answer"),
        pytest.param("/version", "GET", ("Upgrade: h2c", "Connection: Upgrade"), 200, id="a request for HTTP/2"),
    ],
)
def test_what_is_no_watch_is_answered_as_if_nothing_had_been_said(
    house: House, target: str, method: str, headers: tuple[str, ...], status: int
) -> None:
    # the next request is sent before the answer has come, in the same record and in pieces
    with house.raw(request(target, method, headers), request("/livez")[:7]) as peer:
        peer.sendall(request("/livez")[7:])
        answers = b""
        while answers.count(b"HTTP/1.1 ") < 2 or not answers.endswith(b"ok"):
            answers += peer.recv(1 << 16)
        assert [int(part.split()[0]) for part in answers.split(b"HTTP/1.1 ")[1:]] == [status, 200]
        peer.sendall(request("/livez"))
        assert reply(peer)[0] == 200


@pytest.mark.parametrize("length", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_a_body_that_might_be_taken_for_a_request_is_refused(house: House, length: str) -> None:
    with house.raw(request(SECRETS, "POST", (*HANDSHAKE, length)), request("/livez")) as peer:
        answer = rest(peer)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_watch_that_only_says_upgrade_is_chunked(house: House) -> None:
    house.create("a")
    headers = ("Upgrade: websocket", "Connection: close")
    with house.raw(request(f"{WATCH}&timeoutSeconds=1", headers=headers)) as peer:
        assert b"transfer-encoding: chunked" in rest(peer)


def test_frames_sent_before_the_101_are_read_after_it(house: House) -> None:
    goodbye = b"\x88\x82\0\0\0\0\x03\xe8"
    with house.raw(request(WATCH, headers=HANDSHAKE), goodbye) as peer:
        answer = rest(peer)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert answer.endswith(b"\x88\x02\x03\xe8")
    assert house.watches() == 0


def test_junk_before_the_101_waits_for_it_and_is_refused_as_frames(house: House) -> None:
    release = asyncio.Event()
    original = house.server.registry.reader.watch

    async def slow(*args: Any, **kwargs: Any) -> Any:
        await release.wait()
        return await original(*args, **kwargs)

    house.server.registry.reader.watch = slow  # type: ignore[method-assign] # a watch that takes its time to begin
    with house.raw(request(WATCH, headers=HANDSHAKE)) as peer:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            peer.sendall(b"x" * (http.MAX_HEADER_BYTES + 1))
        house.served.ask(release.set)
        assert rest(peer).startswith(b"HTTP/1.1 101 ")
    house.until_watches(0)


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_client_that_goes_without_a_word_is_forgotten(house: House) -> None:
    with house.open() as client:
        house.until_watches(1)
        client.peer.shutdown()
        house.until_watches(0)


def test_a_client_that_talks_too_much_is_told_so(house: House) -> None:
    with house.open() as client:
        client.peer.send("x" * 5000)
        assert client.goodbye() == 1009
    house.until_watches(0)


def test_fragments_and_pings_of_a_client_are_taken(house: House) -> None:
    with house.open() as client:
        client.peer.send_frame(ABNF.create_frame("one message ", ABNF.OPCODE_TEXT, 0))
        client.peer.ping(b"between")
        client.peer.send_frame(ABNF.create_frame("in pieces", ABNF.OPCODE_CONT, 1))
        client.peer.ping(b"after")
        house.until_watches(1)
        house.create("a")
        assert client.told() == "ADDED a"
        client.peer.ping(b"at last")
        house.create("b")
        assert client.told() == "ADDED b"
    assert client.pongs[:2] == [b"between", b"after"]


def test_the_server_that_stops_says_goodbye_to_everybody(house: House) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(house.open()) for _ in range(3)]
        house.until_watches(3)
        house.served.ask(lambda: house.server.assembly.http.watches.drain())
        assert [client.goodbye() for client in clients] == [1000] * 3
        house.served.run(lambda: house.served.application.drain(PATIENCE))
        assert house.served.application.tasks == set()


def test_a_client_that_does_not_answer_the_goodbye_is_cut_off(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1exchange, "END_SECONDS", 0.05)
    with house.raw(request(WATCH, headers=HANDSHAKE)) as peer:
        house.until_watches(1)
        house.served.ask(lambda: house.server.assembly.http.watches.drain())
        assert rest(peer).endswith(b"\x88\x02\x03\xe8")
    house.served.run(lambda: house.served.application.drain(PATIENCE))
    assert house.served.ask(lambda: len(house.served.listener.connections)) == 0


def test_a_watch_that_cannot_be_told_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> bytes:
        raise RuntimeError("no table of this")

    with house.open(identity=house.admin, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}) as client:
        monkeypatch.setattr("mooring.server.resources.watches.table", fails)
        house.create("a")
        assert client.goodbye() == 1000
    house.until_watches(0)


# -- other clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proof", ["a token", "a certificate"])
def test_the_library_websockets_watches_with(house: House, proof: str) -> None:
    token_house(house)
    house.create("a")
    protocols = [Subprotocol(PLAIN), *([Subprotocol(protocol(TOKEN))] if proof == "a token" else [])]

    async def watch() -> tuple[str | None, Any, int | None]:
        async with websockets.connect(
            house.url(WATCH),
            ssl=house.context(None if proof == "a token" else house.admin),
            subprotocols=protocols,
            origin=Origin(CONSOLE if proof == "a token" else house.origin),
            proxy=None,
        ) as client:
            seen = json.loads(await client.recv())
            await (await client.ping())
            await client.close()
            return client.subprotocol, seen["type"], client.close_code

    assert asyncio.run(watch()) == (PLAIN, "ADDED", 1000)
    house.until_watches(0)


def test_the_official_python_client_s_websocket_watches(house: House, tmp_path: Path) -> None:
    token_house(house)
    house.create("a")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(house.served.ca.certificate_pem)
    settings = SimpleNamespace(
        verify_ssl=True,
        ssl_ca_cert=str(ca),
        assert_hostname=None,
        cert_file=None,
        key_file=None,
        tls_server_name=None,
        proxy=None,
        no_proxy=None,
        proxy_headers=None,
    )
    create: Any = ws_client.create_websocket  # not typed
    client = create(settings, house.url(WATCH), {"authorization": f"Bearer {TOKEN}"})
    try:
        assert json.loads(client.recv())["object"]["metadata"]["name"] == "a"
    finally:
        client.close()


def test_aiohttp_watches_with_a_token(house: House) -> None:
    token_house(house)
    house.create("a")

    async def watch() -> tuple[str | None, Any, int | None]:
        before = open_descriptors()
        found = await watch_once()
        async with asyncio.timeout(PATIENCE):  # aiohttp closes a TLS connection after its session
            while open_descriptors() - before:
                await asyncio.sleep(0.01)
        return found

    async def watch_once() -> tuple[str | None, Any, int | None]:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(
                house.url(WATCH),
                ssl=house.context(None),
                protocols=[PLAIN, protocol(TOKEN)],
                origin=CONSOLE,
                heartbeat=0.1,
            ) as client,
        ):
            seen = await client.receive_json(timeout=PATIENCE)
            await client.close()
            return client.protocol, seen["type"], client.close_code

    assert asyncio.run(watch()) == (PLAIN, "ADDED", 1000)
    house.until_watches(0)


def test_a_token_is_what_browsers_make_of_it() -> None:
    """`btoa(token)` with `+/` as `-_` and without `=`, as consoles write it."""
    token = "abc~?>~?>"
    browsers = base64.b64encode(token.encode()).decode().replace("+", "-").replace("/", "_").rstrip("=")
    assert protocol(token).endswith(f".{browsers}")
