"""A whole server without sockets: the control plane's own assembly over memory storage and a manual clock.

Rules kept here: requests go through the real pipeline with the real authenticators, authorizers, default policy and admission;
only the listener is left out. Nothing waits in real time.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, cast

from mooring.apimachinery.schema import Obj
from mooring.controlplane.assemble import Assembly, assemble
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.encryption import EncryptionAtRest
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.parts.foundation import Foundation, Process, build_audit, build_registry
from mooring.controlplane.publishing.firstboot import FirstBoot
from mooring.identity import MASTERS
from mooring.pki.keys import PrivateKey, generate_key
from mooring.pki.pem import RootCa
from mooring.registry.store import Registry
from mooring.server.pipeline import Pipeline
from mooring.server.sharedmemory import ALONE
from mooring.server.transport.http import Request, Response
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import TlsConnection, TlsTransport
from mooring.settings.serving import AdmissionSettings, AuditSettings, AuthorizationSettings
from mooring.settings.storage import EncryptionSettings
from mooring.storage.contract import StoredChange
from mooring.storage.memory import MemoryStorage
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, to_secret
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import Room, counting_entropy
from tests.support.testca import ThrowawayCA

P = ParamSpec("P")
CHUNK = 1 << 16
DEFAULTS: Mapping[str, Any] = {
    "data_dir": "/nowhere",
    "storage": "memory:",
    "detected_addresses": ("192.0.2.10",),
    "audit_log_path": "",
}


DECIDE_WRITES = frozenset(
    setting.name
    for settings in (AdmissionSettings, AuditSettings, AuthorizationSettings, EncryptionSettings)
    for setting in fields(settings)
)
"""Settings on which the objects depend that every cluster has, their stored bytes, and what else their writes leave."""


class PlainTransport:
    """Receives a streaming response, in place of a TLS connection."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.waiting = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def drained(self) -> None:
        await asyncio.sleep(0)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


@dataclass(slots=True)
class Reply:
    """One complete response."""

    status: int
    headers: dict[str, str]
    body: bytes
    every_header: list[tuple[str, str]] = field(default_factory=list)

    @property
    def obj(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def message(self) -> str:
        return str(self.obj["message"])

    @property
    def warnings(self) -> list[str]:
        return [value for name, value in self.every_header if name == "warning"]


class Stream:
    """A watch in progress."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.headers = {name.decode(): value.decode() for name, value in response.headers}
        self.transport = PlainTransport()
        assert response.stream is not None
        self.frames = ResponseWriter(cast(TlsTransport, self.transport))
        self._task = asyncio.ensure_future(response.stream(self.frames))

    @property
    def raw(self) -> bytes:
        """The body so far, without the chunked coding."""
        pieces, rest = [], b"".join(self.transport.sent)
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        return b"".join(pieces)

    @property
    def events(self) -> list[Obj]:
        return [json.loads(line) for line in self.raw.splitlines()]

    @property
    def event_names(self) -> list[str]:
        """`TYPE name` of each event so far."""
        return [f"{event['type']} {event['object']['metadata'].get('name', '')}".strip() for event in self.events]

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def end(self) -> None:
        """Close the connection from the client's side."""
        self.frames.end()
        await self._task


def connection(chain: Sequence[bytes] = (), source: str = "192.0.2.1") -> TlsConnection:
    return TlsConnection(source, tuple(chain))


class Server(Room):
    """A registry room with the pipeline over it."""

    assembly: Assembly
    token_key: PrivateKey
    """Signs tokens of service accounts."""
    ca: ThrowawayCA
    config: ServerConfig

    async def response(
        self,
        method: str,
        target: str,
        *,
        token: str = "",
        body: Any = None,
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
        via: TlsConnection | None = None,
        pieces: Sequence[bytes] | None = None,
    ) -> Response:
        """Return the pipeline's response. `via`: the connection; the administrator's unless a token or a connection is given."""
        path, _, query = target.partition("?")
        sent = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        if token:
            sent.append((b"authorization", f"Bearer {token}".encode()))
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if data and content_type:
            sent.append((b"content-type", content_type.encode()))
        parts = pieces if pieces is not None else [data]
        arriving = iter([(piece, number < len(parts)) for number, piece in enumerate(parts, 1)])

        async def receive() -> tuple[bytes, bool] | None:
            return next(arriving, None)

        if via is None:
            via = connection() if token else self.admin
        request = Request(method, path, query.encode(), sent, via, receive)
        return await self.handle(request)

    async def handle(self, request: Request) -> Response:
        """Return the response to a request that the test built."""
        return await self.pipeline(request)

    @property
    def pipeline(self) -> Pipeline:
        return cast(Pipeline, self.assembly.http.application.handler)

    async def call(self, method: str, target: str, **how: Any) -> Reply:
        return reply(await self.response(method, target, **how))

    async def get(self, target: str, **how: Any) -> Reply:  # type: ignore[override] # a path here, not a kind
        return await self.call("GET", target, **how)

    async def post(self, target: str, body: Any, **how: Any) -> Reply:
        return await self.call("POST", target, body=body, **how)

    async def follow(self, target: str, **how: Any) -> Stream:
        """Start a watch."""
        stream = Stream(await self.response("GET", target, **how))
        await settle()
        return stream

    @functools.cached_property
    def admin(self) -> TlsConnection:
        """Return a connection with a system:masters certificate."""
        return self.user("admin", MASTERS)

    def user(self, name: str, *groups: str) -> TlsConnection:
        """Return a connection with the client certificate of a user."""
        return connection([self.ca.client(name, *groups).der])

    async def files_changed(self) -> None:
        """Let the server see changed files at rest."""
        for _ in range(2):
            await self.assembly.trust.authentication.reloading.look()

    def authenticator(self, name: str) -> Any:
        """The authenticator of this name."""
        (found,) = (one for one in self.assembly.trust.authentication.authenticators if one.name == name)
        return found

    async def bootstrap_token(self, text: str = "abcdef.0123456789abcdef") -> str:
        token = parse_token(text)
        record = TokenRecord(token, expires=self.clock.now() + timedelta(hours=1), usages=("signing", "authentication"))
        await self.create("secrets", to_secret(record), namespace="kube-system")
        return text


def reply(response: Response) -> Reply:
    assert response.stream is None, "this is a watch: use follow"
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    pairs = [(name.decode(), value.decode("latin-1")) for name, value in response.headers]
    return Reply(response.status, dict(pairs), body, pairs)


def key_store(ca: ThrowawayCA) -> KeyStore:
    serving = ca.server()
    key = generate_key()
    return KeyStore(ca.cluster_ca, (serving.certificate,), serving.key, ca.certificate_pem, key, (key.public_key(),))


class Policy(FirstBoot):
    """The first boot, up to the ConfigMaps: these hold the CA and the addresses of one server."""

    def _config_maps(self) -> tuple[()]:
        return ()


@dataclass(frozen=True, slots=True)
class WrittenPolicy:
    """Writes of a `Policy`, the same for each server with `DEFAULTS`. A change and its entry cannot be changed."""

    changes: tuple[StoredChange, ...]
    entropy_calls: int

    @classmethod
    async def written(cls) -> WrittenPolicy:
        clock, ca, config = ManualClock(), ThrowawayCA(), server_config(**DEFAULTS)
        calls, entropy = itertools.count(), counting_entropy()

        def counted(size: int) -> bytes:
            next(calls)
            return entropy(size)

        storage = MemoryStorage()
        await storage.open()
        registry = build_registry(
            config, EncryptionAtRest(config[EncryptionSettings], storage, clock, counted), clock, counted
        ).registry
        await registry.start()
        await Policy(registry, clock, config, RootCa(ca.certificate_pem), ca.cluster_ca).run()
        await registry.stop()
        changes = tuple(storage._changes)
        await storage.close()
        return cls(changes, next(calls))

    async def copy_to(self, storage: MemoryStorage, registry: Registry) -> None:
        """Commit the changes to an empty store that a registry follows, as if that registry had written them."""
        for change in self.changes:
            storage._newest = change.revision
            storage._changes.append(change)
            storage._replaced.append(None)
            assert change.entry is not None, "the first boot of an empty store deletes nothing"
            storage._entries[change.key] = change.entry
        storage._feed.publish(self.changes)
        assert await registry.cache.reach(storage._newest)


WRITTEN = asyncio.run(WrittenPolicy.written())  # now, because a test may replace a part of what writes it


@asynccontextmanager
async def open_server(**flags: Any) -> AsyncIterator[Server]:
    """Start a server and finish its first boot; `flags` are those of `mooring.controlplane.configuration.server_config`.

    `share`: the part of this server in what the workers of a host share. `around`: returns its store around the one in memory.
    `copies`: False to let this server write every object of its first boot itself, as one with other settings does.
    """
    share = flags.pop("share", ALONE)
    around = flags.pop("around", None)
    copies = flags.pop("copies", True) and around is None and not DECIDE_WRITES.intersection(flags)
    clock = ManualClock()
    ca = ThrowawayCA(now=clock.now())
    config = server_config(**{**DEFAULTS, **flags})
    storage = MemoryStorage()
    await storage.open()
    entropy = counting_entropy(WRITTEN.entropy_calls if copies else 0)
    encryption = EncryptionAtRest(config[EncryptionSettings], around(storage) if around else storage, clock, entropy)
    process = Process(identity="here_boot_1_1", is_gone=lambda identity: False, share=share)
    audit = build_audit(config, clock, entropy, share)
    parts = build_registry(config, encryption, clock, entropy, audit.auditor.written)
    registry = parts.registry
    keys = key_store(ca)
    assembly = assemble(
        Foundation(
            config=config, key_store=keys, parts=parts, clock=clock, entropy=entropy, process=process, audit=audit
        )
    )
    await registry.start()
    server = Server(storage, registry, clock)
    server.assembly, server.ca, server.config, server.token_key = assembly, ca, config, keys.token_key
    background = [
        asyncio.ensure_future(work)
        for work in (assembly.upkeep.trust_publisher.run(), assembly.http.open_watches.run())
    ]
    try:
        boot = FirstBoot(registry, clock, config, RootCa(ca.certificate_pem), ca.cluster_ca)
        if copies:
            await WRITTEN.copy_to(storage, registry)
            await asyncio.gather(*boot._config_maps())
        else:
            await boot.run()
        await assembly.upkeep.trust_publisher.publish_client_cas()
        assembly.base.audit.log.start()
        yield server
    finally:
        for task in background:
            task.cancel()
        assembly.http.watches.drain()
        await settle()
        await assembly.base.audit.log.stop()
        await assembly.trust.authentication.close()
        await registry.stop()
        await storage.close()


def in_server(test: Callable[Concatenate[Server, P], Awaitable[None]]) -> Callable[P, None]:
    """Run an async test with a server of its own as first argument."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def body() -> None:
            async with open_server() as server:
                await test(server, *args, **kwargs)

        asyncio.run(body())

    signature = inspect.signature(test)
    run.__dict__.pop("__wrapped__", None)  # pytest would see the server as a fixture
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined] # read by pytest
    return run


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
