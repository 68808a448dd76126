"""A simulated kube-apiserver: REST, watches and CustomResourceDefinitions over HTTPS, for what runs against any Kubernetes.

Rules kept here (docs/protocol/custom-resources.md; k8s.io/apiextensions-apiserver, `customresource_handler.go` and
`crd_finalizer.go`):
* Objects are kept as they were sent: no default and no validation of Mooring's kinds, and no denylist.
* A resource that is not served is 404 with the text `404 page not found`, and no Status. A kind of `mooring.dev` is served while
  its CustomResourceDefinition is there.
* A deleted CustomResourceDefinition is Terminating first: its instances are deleted, reads go on, and a create is 405. When it is
  gone, its open watches stay, silent, until they are torn down, up to two minutes later.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from mooring.api.kinds import BY_PLURAL
from mooring.api.paths import GROUP
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.httphandler import HttpHandler
from tests.support.peer import server_context
from tests.support.testca import LOOPBACK, ThrowawayCA

VERSION = "v1.36.2"
DEFINITIONS = "customresourcedefinitions"
_WITHOUT_OBJECTS = {"subjectaccessreviews": {"allowed": True}}
_CA = ThrowawayCA()
_SERVING = _CA.server(*LOOPBACK)


@dataclass(frozen=True)
class Place:
    """What the path of a request names."""

    group: str
    plural: str
    namespace: str
    name: str
    subresource: str


@dataclass(frozen=True)
class Event:
    """A change of one object."""

    type: str
    place: Place
    obj: Obj


def place_of(path: str) -> Place | None:
    """Return what a path names; None for a path that is no resource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    rest += [""] * (3 - len(rest))
    return Place(group, rest[0], namespace, rest[1], rest[2])


class KubernetesPeer:
    """A running API server."""

    def __init__(self) -> None:
        self.port = 0
        self.objects: dict[tuple[str, str, str], Obj] = {}
        """By plural, namespace and name."""
        self.requests: list[tuple[str, str]] = []
        """Method and path of each request, watches apart."""
        self.holds_termination = False
        """A deleted CustomResourceDefinition stays Terminating, as while its instances have finalizers."""
        self.version = VERSION
        """Without one, /version is forbidden."""
        self.forbidden: set[str] = set()
        """Plurals that the client may not use."""
        self.broken: set[str] = set()
        """Plurals for which a proxy in front of the server answers 502."""
        self.is_away = False
        """Every connection is closed without a response."""
        self.changed = threading.Condition(threading.RLock())
        self._revision = 100
        self._events: list[Event] = []
        self._torn_down = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_pem(self) -> bytes:
        return _CA.certificate_pem

    def client(self, clock: Clock | None = None) -> ClusterClient:
        return ClusterClient(
            Cluster("kubernetes", self.url, self.ca_pem), KubeconfigUser("admin"), clock or SystemClock()
        )

    # ── what a test changes ──────────────────────────────────────────────────────────────────────────────────────

    def put(self, plural: str, obj: Obj, namespace: str = "") -> Obj:
        """Create or replace an object, and return it as it is stored."""
        with self.changed:
            key = (plural, namespace, obj["metadata"]["name"])
            old = self.objects.get(key)
            self._revision += 1
            metadata = {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": rfc3339(SystemClock().now()),
                **(old["metadata"] if old else {}),
                **obj["metadata"],
                **({"namespace": namespace} if namespace else {}),
                "resourceVersion": str(self._revision),
            }
            stored = {**obj, "metadata": metadata}
            self.objects[key] = stored
            self._tell("MODIFIED" if old else "ADDED", key, stored)
            return stored

    def drop(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object. A CustomResourceDefinition takes its instances with it."""
        with self.changed:
            key = (plural, namespace, name)
            if plural == DEFINITIONS and not self._terminate(key):
                return
            self._revision += 1
            gone = self.objects.pop(key)
            self._tell(
                "DELETED", key, {**gone, "metadata": gone["metadata"] | {"resourceVersion": str(self._revision)}}
            )

    def define(self, *plurals: str) -> None:
        """Install the CustomResourceDefinitions of these kinds, established."""
        for plural in plurals:
            status = {"conditions": [{"type": "Established", "status": "True"}]}
            self.put(
                DEFINITIONS, {"metadata": {"name": f"{plural}.{GROUP}"}, "spec": {"group": GROUP}, "status": status}
            )

    def tear_down_watches(self) -> None:
        """End every open watch."""
        with self.changed:
            self._torn_down += 1
            self.changed.notify_all()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def is_served(self, place: Place) -> bool:
        """Return whether a resource is served."""
        if place.group == GROUP:
            return (DEFINITIONS, "", f"{place.plural}.{GROUP}") in self.objects
        if place.plural in (DEFINITIONS, *_WITHOUT_OBJECTS):
            return True
        return place.plural in BY_PLURAL and BY_PLURAL[place.plural].resource.group == place.group

    def answer(self, method: str, place: Place, query: dict[str, str], body: Obj) -> tuple[int, Obj]:
        """Return status and object of a request for a served resource, other than a watch."""
        key = (place.plural, place.namespace, place.name or (body.get("metadata") or {}).get("name", ""))
        if method == "GET" and not place.name:
            return 200, self.listed(place, query)
        if method == "POST":
            if place.plural in _WITHOUT_OBJECTS:
                return 201, {**body, "status": _WITHOUT_OBJECTS[place.plural]}
            if self._is_terminating(place):
                return 405, _status(
                    405, "MethodNotAllowed", "create not allowed while custom resource definition is terminating"
                )
            if key in self.objects:
                return 409, _status(409, "AlreadyExists", f'{place.plural} "{key[2]}" already exists')
            return 201, body if "dryRun" in query else self.put(place.plural, body, place.namespace)
        found = self.objects.get(key)
        if found is None:
            return 404, _status(404, "NotFound", f'{place.plural} "{place.name}" not found')
        if method == "GET":
            return 200, found
        wanted = body["metadata"] if method == "PUT" else body.get("preconditions") or {}
        for field in ("uid", "resourceVersion"):
            if wanted.get(field, found["metadata"][field]) != found["metadata"][field]:
                return 409, _status(409, "Conflict", "the object has been modified")
        if method == "PUT":
            return 200, body if "dryRun" in query else self.put(place.plural, body, place.namespace)
        self.drop(place.plural, place.name, place.namespace)
        return 200, _status(200, "", "")

    def listed(self, place: Place, query: dict[str, str]) -> Obj:
        found = [one for key, one in self.objects.items() if _selects(place, query, key[0], one)]
        return {
            "kind": "List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": str(self._revision)},
            "items": found,
        }

    def watched(self, place: Place, query: dict[str, str]) -> Iterator[Obj]:
        """Yield the events of a watch until it is torn down."""
        since, torn_down, position = int(query.get("resourceVersion") or 0), self._torn_down, 0
        while True:
            with self.changed:
                while len(self._events) == position and self._torn_down == torn_down:
                    self.changed.wait()
                if self._torn_down > torn_down:
                    return
                events, position = self._events[position:], len(self._events)
            for event in events:
                version = int(event.obj["metadata"]["resourceVersion"])
                if version > since and _selects(place, query, event.place.plural, event.obj):
                    yield {"type": event.type, "object": event.obj}

    def _tell(self, kind: str, key: tuple[str, str, str], obj: Obj) -> None:
        self._events.append(Event(kind, Place("", *key, ""), obj))
        self.changed.notify_all()

    def _terminate(self, key: tuple[str, str, str]) -> bool:
        """Begin the deletion of a CustomResourceDefinition; return whether it ends now."""
        definition = self.objects[key]
        terminating = {"type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress"}
        conditions = [*definition["status"]["conditions"], terminating]
        metadata = definition["metadata"] | {"deletionTimestamp": rfc3339(SystemClock().now())}
        self.put(DEFINITIONS, {**definition, "metadata": metadata, "status": {"conditions": conditions}})
        plural = key[2].partition(".")[0]
        for of, namespace, name in [one for one in self.objects if one[0] == plural]:
            self.drop(of, name, namespace)
        return not self.holds_termination

    def _is_terminating(self, place: Place) -> bool:
        definition = self.objects.get((DEFINITIONS, "", f"{place.plural}.{place.group}"))
        return definition is not None and "deletionTimestamp" in definition["metadata"]


def _status(code: int, reason: str, message: str) -> Obj:
    outcome = "Success" if code < 300 else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "status": outcome, "reason": reason, "message": message, "code": code}


def _selects(place: Place, query: dict[str, str], plural: str, obj: Obj) -> bool:
    """Return whether a list or watch shows an object."""
    if plural != place.plural or place.namespace not in ("", obj["metadata"].get("namespace", "")):
        return False
    wanted = dict(one.split("=", 1) for one in query.get("fieldSelector", "").split(",") if one)
    fields = {"metadata.name": obj["metadata"]["name"], "type": obj.get("type", "")}
    return all(fields[field] == value for field, value in wanted.items())


@contextlib.contextmanager
def kubernetes_peer() -> Iterator[KubernetesPeer]:
    """Run a simulated kube-apiserver until the block ends."""
    peer = KubernetesPeer()

    class Handler(HttpHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            place = place_of(url.path)
            if "watch" not in query:
                peer.requests.append((self.command, self.path))
            if peer.is_away:
                self.close_connection = True
            elif url.path == "/version" and peer.version:
                self.send(200, {"major": "1", "minor": "36", "gitVersion": peer.version})
            elif url.path == "/version" or (place is not None and place.plural in peer.forbidden):
                self.send(403, _status(403, "Forbidden", f"{url.path} is forbidden"))
            elif place is None or not peer.is_served(place):
                self.send_bytes(404, b"404 page not found\n", "text/plain; charset=utf-8")
            elif place.plural in peer.broken:
                self.send_bytes(502, b"<html>bad gateway</html>", "text/html")
            elif "watch" in query:
                self.stream(peer.watched(place, query))
            else:
                with peer.changed:
                    answer = peer.answer(self.command, place, query, json.loads(body or b"{}"))
                self.send(*answer)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815 - the base class looks for these names

        def send(self, status: int, obj: Obj) -> None:
            self.send_bytes(status, json.dumps(obj).encode(), "application/json")

        def send_bytes(self, status: int, body: bytes, media_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def stream(self, events: Iterator[Obj]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(OSError):
                for event in events:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.write(b"0\r\n\r\n")

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(timestamp, usegmt=True)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """Write no error: clients close connections early."""

    server = Server(("127.0.0.1", 0), Handler)
    peer.port = server.server_address[1]
    server.socket = server_context(_SERVING).wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield peer
    finally:
        peer.tear_down_watches()
        server.shutdown()
        thread.join()
        server.server_close()
