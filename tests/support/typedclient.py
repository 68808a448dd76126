"""A blocking client with the wire forms of client-go, for tests that follow upstream's e2e tests step by step.

Rules kept here:
* A typed client sends protobuf (docs/protocol/negotiation.md#default-formats-of-clients) and names protobuf first, or alone, in
  Accept; a dynamic client speaks JSON. Answers are decoded by their Content-Type, so a test sees one object in every wire form.
* A refusal is raised as `RefusedError` with the server's Status. Waits are bounded by socket timeouts.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, KINDS
from mooring.api.reviews import TOKEN_REQUEST
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message, encode_object
from mooring.apimachinery.metav1 import (
    DELETE_OPTIONS,
    PARTIAL_OBJECT_METADATA,
    PARTIAL_OBJECT_METADATA_LIST,
    STATUS,
    list_of,
)
from mooring.apimachinery.schema import Message, Obj
from tests.support.liveserver import LiveServer
from tests.support.protobufwatch import decode_watch_frame

PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PATIENCE = 60.0
"""Seconds after which a wait that upstream bounds by a minute fails."""
WATCH_LIST = {
    "watch": "true",
    "allowWatchBookmarks": "true",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
}
"""Parameters with which client-go's reflector requests initial events and the following ones."""


@dataclass(frozen=True)
class Wire:
    """Values of Accept and Content-Type of a client."""

    accept: str
    content_type: str


TYPED = Wire(f"{PROTOBUF},{JSON}", PROTOBUF)
"""client-go's clientset since 1.32 (e2e's default)."""
PROTOBUF_ONLY = Wire(PROTOBUF, PROTOBUF)
DYNAMIC = Wire(JSON, JSON)
WIRES = {"protobuf preferred": TYPED, "protobuf only": PROTOBUF_ONLY, "JSON": DYNAMIC}

NAMED = BY_PLURAL | {f"{kind.resource.plural}.{kind.resource.group}": kind for kind in KINDS if kind.alias}
"""Kinds by plural; aliases also by `<plural>.<group>`, as in kubectl."""


class RefusedError(Exception):
    """An answer that is not 2xx."""

    def __init__(self, code: int, status: Obj) -> None:
        super().__init__(f"{code}: {status}")
        self.code = code
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One whole reply."""

    code: int
    headers: Mapping[str, str]
    body: bytes


_SCHEMAS: dict[tuple[str, str], Message] = {
    (kind.resource.api_version, kind.resource.kind): kind.resource.schema for kind in KINDS
}
_SCHEMAS |= {
    (kind.resource.api_version, f"{kind.resource.kind}List"): list_of(kind.resource.schema)
    for kind in KINDS
    if not kind.virtual
}
_SCHEMAS |= {
    ("v1", "Status"): STATUS,
    ("meta.k8s.io/v1", "PartialObjectMetadata"): PARTIAL_OBJECT_METADATA,
    ("meta.k8s.io/v1", "PartialObjectMetadataList"): PARTIAL_OBJECT_METADATA_LIST,
    ("v1", "DeleteOptions"): DELETE_OPTIONS,
    ("authentication.k8s.io/v1", "TokenRequest"): TOKEN_REQUEST,
}


def decoded(body: bytes, content_type: str) -> Obj:
    """Decode the object of a reply, with its kind and apiVersion."""
    if content_type.startswith(JSON):
        parsed: Obj = json.loads(body)
        return parsed
    assert content_type.startswith(PROTOBUF), content_type
    api_version, kind, raw = decode_envelope(body)
    obj = decode_message(raw, _SCHEMAS[api_version, kind])
    return {**obj, "apiVersion": api_version, "kind": kind}


class Client:
    """The administrator's client; `as_user` returns one that impersonates."""

    def __init__(
        self, server: LiveServer, wire: Wire = TYPED, headers: Mapping[str, Any] | None = None, pem: bytes = b""
    ) -> None:
        self._server = server
        self.wire = wire
        self._headers = dict(headers or {})
        self._pem = pem
        self._context = _context(server, pem)
        self._connection: http.client.HTTPSConnection | None = None

    def like(self, wire: Wire | None = None, pem: bytes = b"", headers: Mapping[str, Any] | None = None) -> Client:
        """Return another client of the same server; a list of values is a header sent several times."""
        return Client(self._server, wire or self.wire, headers, pem or self._pem)

    def as_user(self, name: str, groups: Sequence[str], uid: str = "", **extra: Sequence[str]) -> Client:
        """Return a client with the headers of client-go's ImpersonationConfig; `_` in a key of extra stands for `-`."""
        headers: dict[str, Any] = {"Impersonate-User": name, "Impersonate-Group": list(groups)}
        if uid:
            headers["Impersonate-Uid"] = uid
        headers |= {f"Impersonate-Extra-{key.replace('_', '-')}": list(values) for key, values in extra.items()}
        return self.like(headers=headers)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- requests --------------------------------------------------------------------------------------------------

    def send(
        self, method: str, path: str, body: bytes = b"", content_type: str = "", accept: str = "", **query: str
    ) -> Answer:
        """Send one request unchanged. Return the answer, whatever its code."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._put(self._connection, method, path, query, body, content_type, accept)
            response = self._connection.getresponse()
            return Answer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        except BaseException:
            self.close()
            raise

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self._server.port, timeout=PATIENCE, context=self._context)

    def _put(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes,
        content_type: str,
        accept: str,
    ) -> None:
        connection.putrequest(method, f"{path}?{urlencode(query)}" if query else path, skip_accept_encoding=True)
        connection.putheader("Accept", accept or self.wire.accept)
        for name, value in self._headers.items():
            for item in value if isinstance(value, list) else [value]:
                connection.putheader(name, item)
        if body:
            connection.putheader("Content-Type", content_type or self.wire.content_type)
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)

    def call(self, method: str, path: str, obj: Obj | None = None, *, accept: str = "", **query: str) -> Obj:
        """Send an object in this client's form. Return the object of the answer. Raises RefusedError."""
        answer = self.send(method, path, self.encode(obj) if obj is not None else b"", accept=accept, **query)
        return _taken(answer)

    def encode(self, obj: Obj) -> bytes:
        if self.wire.content_type == JSON:
            return json.dumps(obj).encode()
        return encode_object(obj, _SCHEMAS[obj["apiVersion"], obj["kind"]])

    # -- verbs of stored kinds ---------------------------------------------------------------------------------------

    def create(self, plural: str, namespace: str, obj: Obj) -> Obj:
        kind = NAMED[plural]
        return self.call("POST", path_of(kind, namespace), typed(kind, obj))

    def get(self, plural: str, namespace: str, name: str, sub: str = "") -> Obj:
        return self.call("GET", path_of(NAMED[plural], namespace, name, sub))

    def list(self, plural: str, namespace: str = "", **query: str) -> Obj:
        listed = self.call("GET", path_of(NAMED[plural], namespace), None, **query)
        listed.setdefault("items", [])  # protobuf has no empty lists
        return listed

    def update(self, plural: str, namespace: str, obj: Obj, sub: str = "") -> Obj:
        kind = NAMED[plural]
        return self.call("PUT", path_of(kind, namespace, obj["metadata"]["name"], sub), typed(kind, obj))

    def retry_update(self, plural: str, namespace: str, name: str, change: Callable[[Obj], Any], sub: str = "") -> Obj:
        """Get, change and update; repeat after a conflict, as client-go's RetryOnConflict does."""
        for _ in range(5):
            obj = self.get(plural, namespace, name)
            change(obj)
            try:
                return self.update(plural, namespace, obj, sub)
            except RefusedError as refused:
                if refused.code != 409:
                    raise
        raise AssertionError(f"{plural} {name}: five conflicts in a row")

    def patch(self, plural: str, namespace: str, name: str, patch: Obj, form: str = STRATEGIC, sub: str = "") -> Obj:
        path = path_of(NAMED[plural], namespace, name, sub)
        return _taken(self.send("PATCH", path, json.dumps(patch).encode(), form))

    def delete(self, plural: str, namespace: str, name: str, **options: Any) -> None:
        """Delete with a DeleteOptions body, which clientsets always send."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        self.call("DELETE", path_of(NAMED[plural], namespace, name), body)

    def delete_collection(self, plural: str, namespace: str, **query: str) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1"}
        self.call("DELETE", path_of(NAMED[plural], namespace), body, **query)

    def refusal(self, method: str, path: str, obj: Obj | None = None, **query: str) -> int:
        """Return the code of a refusal; 0 when the request succeeds."""
        try:
            self.call(method, path, obj, **query)
        except RefusedError as refused:
            return refused.code
        return 0

    # -- watches -----------------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self, plural: str, namespace: str = "", accept: str = "", **query: str) -> Iterator[Watching]:
        """Open a watch on a connection of its own."""
        connection = self._connect()
        try:
            path = path_of(NAMED[plural], namespace)
            self._put(connection, "GET", path, {"watch": "true", **query}, b"", "", accept)
            response = connection.getresponse()
            if response.status != 200:
                headers = {name.lower(): value for name, value in response.getheaders()}
                _taken(Answer(response.status, headers, response.read()))
            yield Watching(response)
        finally:
            connection.close()

    def await_object(self, plural: str, namespace: str, name: str) -> Obj:
        """Wait until the object exists, as the e2e framework does: an informer of one name with WatchList."""
        query = {**WATCH_LIST, "fieldSelector": f"metadata.name={name}", "timeoutSeconds": "60"}
        with self.watch(plural, namespace, **query) as watching:
            return watching.until(lambda event: event.type == "ADDED").object


@dataclass(frozen=True)
class WatchEvent:
    """One event of a watch."""

    type: str
    object: Obj

    @property
    def name(self) -> str:
        return str(self.object["metadata"].get("name", ""))

    @property
    def version(self) -> str:
        return str(self.object["metadata"]["resourceVersion"])

    @property
    def brief(self) -> str:
        return f"{self.type} {self.name}"


@dataclass
class Watching:
    """A watch in progress; it keeps every event."""

    response: http.client.HTTPResponse = field(repr=False)
    events: list[WatchEvent] = field(default_factory=list)

    @property
    def content_type(self) -> str:
        return self.response.getheader("content-type") or ""

    def next(self) -> WatchEvent:
        """Return the next event; a watch that ends, or sends none within a minute, fails the test."""
        if self.content_type.startswith(PROTOBUF):
            length = self.response.read(4)
            assert len(length) == 4, "the watch ended"
            event_type, body = decode_watch_frame(length + self.response.read(int.from_bytes(length)))
            event = WatchEvent(event_type, decoded(body, PROTOBUF))
        else:
            line = self.response.readline()
            assert line, "the watch ended"
            parsed = json.loads(line)
            event = WatchEvent(parsed["type"], parsed["object"])
        self.events.append(event)
        return event

    def until(self, condition: Callable[[WatchEvent], bool]) -> WatchEvent:
        """Return the first event that meets the condition."""
        while True:
            event = self.next()
            if condition(event):
                return event

    def initial(self) -> list[WatchEvent]:
        """Return the events of a WatchList before its bookmark."""
        self.until(lambda event: event.type == "BOOKMARK")
        assert self.events[-1].object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        return self.events[:-1]


def path_of(kind: Kind, namespace: str = "", name: str = "", sub: str = "") -> str:
    """Return the URL path of a collection, an object or a subresource."""
    resource = kind.resource
    prefix = f"/apis/{resource.group}" if resource.group else "/api"
    place = f"/namespaces/{namespace}" if namespace and resource.namespaced else ""
    path = f"{prefix}/{resource.version}{place}/{resource.plural}"
    return path + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


def typed(kind: Kind, obj: Obj) -> Obj:
    """Return the object with apiVersion and kind, which Go's typed objects leave out."""
    return {**obj, "apiVersion": kind.resource.api_version, "kind": kind.resource.kind}


def bare(obj: Obj) -> Obj:
    """Remove kind and apiVersion, as client-go's typed clients do before they return an object.

    Those clients leave items of lists unchanged: the server must send them without.
    """
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


def poll(condition: Callable[[], bool], what: str, seconds: float = PATIENCE, interval: float = 0.1) -> None:
    """Poll until the condition holds, as wait.Poll does; the bound is upstream's, the interval (seconds) is shorter."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(interval)


def _taken(answer: Answer) -> Obj:
    obj = decoded(answer.body, answer.headers.get("content-type", JSON))
    if not 200 <= answer.code < 300:
        raise RefusedError(answer.code, obj)
    return obj


def _context(server: LiveServer, pem: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    if not pem:
        user = yaml.safe_load(server.kubeconfig.read_text())["users"][0]["user"]
        pem = base64.b64decode(user["client-key-data"]) + base64.b64decode(user["client-certificate-data"])
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "identity.pem"
        file.write_bytes(pem)
        context.load_cert_chain(file)
    return context
