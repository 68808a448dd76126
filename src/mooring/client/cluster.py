"""Talking to any Kubernetes API server with the credentials of a kubeconfig.

Rules kept here:
* Objects are plain dicts; items of a list carry the kind and apiVersion that servers leave out there, so that what was listed
  can be sent back.
* A refusal is our `ApiError` with the server's own reason and message; anything else that went wrong is a `PeerError` that
  says which server and what to do.
* TLS is verified under the kubeconfig's CA, else the machine's roots; unverified only where the kubeconfig says so. Plain http
  is refused: it would show the credentials to everybody.
* 429 and 503 with Retry-After are asked again a few times, as client-go does; a 401 once more when credentials can be read anew.
* Lists come in pages; every answer has a limit.
* With several addresses of one cluster, the one that answered last is asked first. An address that fails is put behind the others.
  Reads are asked again there at once, and so are writes that cannot have been sent.

Why the verbs are ours: see `mooring.client.http.connection`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlencode

import msgspec

from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.status import error_of
from mooring.apimachinery.watchevent import ERROR, FrameReader, WatchEvent
from mooring.client.files import read_limited
from mooring.client.http import tls
from mooring.client.http.connection import Connection, Stream, environment_proxy, not_sent, transport_errors
from mooring.client.http.credentials import Credentials, Shown
from mooring.clock import Clock, SystemClock
from mooring.errors import (
    ApiError,
    ArgumentError,
    ConfigError,
    PeerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.secret import Secret
from mooring.trust.discovery.errors import EndpointDownError, EndpointTimeoutError, NotKubernetesError
from mooring.trust.discovery.fetch import error_of as connection_error
from mooring.trust.httpexchange import HttpRequest
from mooring.trust.kubeconfig.model import Cluster, Selected, User, flatten_cluster

Target = str | Resource
"""A resource, or the plural of one that Mooring knows (`"secrets"`)."""

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"

TIMEOUT = 30.0
"""Seconds for connecting and between bytes; kubectl waits for ever, which helps nobody."""
FAILOVER_TIMEOUT = 10.0
"""Seconds for connecting where another address waits: what kubeadm's client allows."""
MAX_BODY = 64 << 20
"""A page of 500 objects of the largest size etcd takes would be ten times this; real ones are a hundredth."""
PAGE = 500
"""client-go's page size."""
WATCH_SECONDS = 300
"""After this the server ends a watch and it is asked anew: a dead connection is noticed."""
WATCH_GRACE = 30.0
"""Seconds a server may be late in ending a watch."""
MAX_TRIES = 5
"""How often one request is sent while the server asks for patience."""
MAX_PATIENCE = 30
"""Seconds between tries, whatever the server asks for."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A whole collection, as of `resource_version`."""

    items: tuple[Obj, ...]
    resource_version: str


def resource_of(target: Target) -> Resource:
    """The resource that `target` means. Raises ConfigError for a plural nobody knows."""
    if isinstance(target, Resource):
        return target
    from mooring.api.kinds import RESOURCES

    found = next((resource for resource in RESOURCES if resource.plural == target), None)
    if found is None:
        raise ConfigError(f'"{target}" is no resource that is known here')
    return found


def connect(selected: Selected, clock: Clock | None = None) -> ClusterClient:
    """A client for what a kubeconfig context means (`kubeconfigfiles.load`). Connects when first used. Raises ConfigError."""
    clock = clock or SystemClock()
    cluster = flatten_cluster(selected.cluster, _read_ca)
    return ClusterClient(cluster, selected.user, clock, selected.namespace or "default", others=selected.others)


def _read_ca(path: str) -> bytes:
    return read_limited(Path(path))


class ClusterClient:
    """One user's requests to one cluster. Use as `async with`, or call `close`."""

    def __init__(
        self,
        cluster: Cluster,
        user: User,
        clock: Clock,
        namespace: str = "default",
        *,
        others: Sequence[Cluster] = (),
    ) -> None:
        """`others` are further addresses of the same cluster. Raises ConfigError for one that is no https URL."""
        for one in (cluster, *others):
            if not one.server.startswith("https://"):
                raise ConfigError(
                    f'the server "{one.server}" must be an https URL: credentials are not sent in the clear'
                )
        self.clusters = (cluster, *others)
        """Every address of the cluster, first the one that is asked next."""
        self.namespace = namespace
        self.clock = clock
        self._credentials = Credentials(user, cluster, clock.now)
        self._connection: Connection | None = None
        self._connected_with: bytes = b""

    @property
    def server(self) -> str:
        """The URL that is asked next."""
        return self.clusters[0].server.rstrip("/")

    async def use(self, clusters: Sequence[Cluster]) -> None:
        """Ask these addresses from now on. The one in use stays first as long as it is among them, under the same CAs."""
        same = next((one for one in clusters if (one.server, one.ca_pem) == self._reached), None)
        if same is None:
            self.clusters = tuple(clusters)
            await self.close()
        else:
            self.clusters = (same, *(one for one in clusters if one is not same))

    @property
    def _reached(self) -> tuple[str, bytes]:
        return self.clusters[0].server, self.clusters[0].ca_pem

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; the next request would open new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, target: Target, name: str, namespace: str = "") -> Obj:
        """One object. Raises NotFoundError and others."""
        return await self._object("GET", _path(target, namespace, name))

    async def list(
        self, target: Target, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listed:
        """Every object that matches, page by page."""
        resource = resource_of(target)
        query = _selectors(label_selector, field_selector) | {"limit": str(PAGE)}
        items: list[Obj] = []
        while True:
            page = await self._object("GET", _path(resource, namespace), query)
            metadata = page.get("metadata") or {}
            for item in page.get("items") or ():
                item.setdefault("kind", resource.kind)
                item.setdefault("apiVersion", resource.api_version)
                items.append(item)
            query["continue"] = metadata.get("continue") or ""
            if not query["continue"]:
                return Listed(tuple(items), metadata.get("resourceVersion", ""))

    async def create(
        self,
        target: Target,
        obj: Obj,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """POST `obj`, to its own namespace unless one is given. Raises AlreadyExistsError and others."""
        where = namespace or _namespace(obj)
        path = _path(target, where, name, subresource) if subresource else _path(target, where)
        return await self._object("POST", path, _dry(dry_run), obj)

    async def update(self, target: Target, obj: Obj, *, subresource: str = "", dry_run: bool = False) -> Obj:
        """PUT `obj`. Raises ConflictError and others."""
        path = _path(target, _namespace(obj), obj["metadata"]["name"], subresource)
        return await self._object("PUT", path, _dry(dry_run), obj)

    async def patch(
        self,
        target: Target,
        name: str,
        patch: Obj | Sequence[Obj],
        namespace: str = "",
        *,
        content_type: str = MERGE,
        subresource: str = "",
    ) -> Obj:
        """PATCH one object."""
        path = _path(target, namespace, name, subresource)
        return await self._object("PATCH", path, {}, patch, content_type)

    async def delete(
        self,
        target: Target,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "",
        grace_seconds: int | None = None,
    ) -> Obj:
        """DELETE one object, with preconditions when given: the object or a Status. Raises NotFoundError, ConflictError."""
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if conditions:
            options["preconditions"] = conditions
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._object("DELETE", _path(target, namespace, name), {}, options)

    async def read(self, path: str) -> bytes:
        """GET any path of the server, such as /version or /healthz: its body. Raises ApiError or PeerError."""
        return await self._send("GET", path, {}, None, _JSON)

    async def get_path(self, path: str) -> Obj:
        """GET a path that is no resource and answers with a JSON object. Raises ApiError or PeerError."""
        return await self._object("GET", path)

    async def post_path(self, path: str, obj: Obj) -> Obj:
        """POST `obj` to any path. Raises ApiError or PeerError."""
        return await self._object("POST", path, {}, obj)

    async def watch(
        self,
        target: Target,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        seconds: int = WATCH_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        """Events after `resource_version` until the server ends the watch. Raises ExpiredError (list again), PeerError."""
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        reader = FrameReader()
        path = _path(target, namespace)
        request, connection = await self._request("GET", path, query, None, _JSON)
        asked = self.clusters[0]
        try:
            async with connection.stream(request, seconds + WATCH_GRACE) as answer:
                if answer.status != 200:
                    raise self._refusal(answer, await answer.read(MAX_BODY))
                async with aclosing(answer.chunks()) as chunks:
                    async for chunk in chunks:
                        for event in reader.feed(chunk):
                            if event.type == ERROR:
                                raise error_of(event.object)
                            yield event
        except transport_errors() as error:
            failed = self._failed(error, asked)
            await self._put_back(asked)
            raise failed from error

    # ── one request ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _object(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Obj | Sequence[Obj] | None = None,
        content_type: str = _JSON,
    ) -> Obj:
        answer = await self._send(method, path, query or {}, body, content_type)
        obj = _json_object(answer)
        if obj is None:
            raise NotKubernetesError(self._step, "not a JSON object")
        return obj

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Obj | Sequence[Obj] | None, content_type: str
    ) -> bytes:
        content = msgspec.json.encode(body) if body is not None else None
        renewed = False
        for left in reversed(range(MAX_TRIES)):
            try:
                return await self._once(method, path, query, content, content_type)
            except (TooManyRequestsError, ServiceUnavailableError) as error:
                if not left or not error.details.retry_after:
                    raise
                await self.clock.sleep(min(error.details.retry_after, MAX_PATIENCE))
            except ApiError as error:
                if error.reason != "Unauthorized" or renewed or not self._credentials.refused():
                    raise
                renewed = True
        raise AssertionError("unreachable: the last try returns or raises")

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], content: bytes | None, content_type: str
    ) -> bytes:
        failures: list[PeerError] = []
        while True:
            request, connection = await self._request(method, path, query, content, content_type)
            asked, harmless = self.clusters[0], method == "GET"
            try:
                async with connection.stream(request, TIMEOUT) as answer:
                    body = await answer.read(MAX_BODY)
            except transport_errors() as error:
                failed = self._failed(error, asked)
                failed.__cause__ = error
                failures.append(failed)
                harmless = harmless or not_sent(error)
            else:
                if 200 <= answer.status < 300:
                    break
                refusal = self._refusal(answer, body)
                if isinstance(refusal, ApiError):
                    raise refusal
                failures.append(refusal)
            await self._put_back(asked)
            if not harmless or len(failures) >= len(self.clusters):
                raise _most_hopeful(failures)
        if len(body) > MAX_BODY:
            raise PeerError(f"{self._step}: the answer is longer than {MAX_BODY} bytes; ask for less, with a selector")
        return body

    async def _put_back(self, failed: Cluster) -> None:
        """Ask the next address first, unless another request has seen to it."""
        if len(self.clusters) > 1 and self.clusters[0] is failed:
            self.clusters = (*self.clusters[1:], failed)
            await self.close()

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], content: bytes | None, content_type: str
    ) -> tuple[HttpRequest, Connection]:
        shown = await self._credentials.shown()
        connection = await self._connected(shown)
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = [("Accept", _JSON), *shown.impersonation]
        if content is not None:
            headers.append(("Content-Type", content_type))
        request = HttpRequest(
            self.server,
            method,
            url,
            headers=tuple(headers),
            body=content,
            authorization=shown.authorization,
            timeout=TIMEOUT if len(self.clusters) == 1 else FAILOVER_TIMEOUT,
        )
        return request, connection

    async def _connected(self, shown: Shown) -> Connection:
        """The connection that shows this certificate; a rotated certificate closes the old one."""
        if self._connection is not None and self._connected_with == shown.certificate_pem:
            return self._connection
        await self.close()
        cluster = self.clusters[0]
        context = _context(cluster, shown.certificate_pem, shown.key)
        proxy = cluster.proxy_url or environment_proxy(self.server)
        self._connection = Connection(context, proxy, cluster.tls_server_name)
        self._connected_with = shown.certificate_pem
        return self._connection

    @property
    def _step(self) -> str:
        return f"asking {self.server}"

    def _failed(self, error: Exception, asked: Cluster) -> PeerError:
        return connection_error(f"asking {asked.server.rstrip('/')}", tls.explain(error, self.clock.now(), TIMEOUT))

    def _refusal(self, answer: Stream, body: bytes) -> ApiError | PeerError:
        obj = _json_object(body)
        if obj is None or obj.get("kind") != "Status":
            return NotKubernetesError(self._step, f"status {answer.status} without a Kubernetes Status")
        obj.setdefault("code", answer.status)
        after = answer.headers.get("retry-after", "")
        if after.isascii() and after.isdigit() and not (obj.get("details") or {}).get("retryAfterSeconds"):
            obj["details"] = (obj.get("details") or {}) | {"retryAfterSeconds": int(after[:6])}
        error = error_of(obj)
        return UnauthorizedError(answer.headers.get("audit-id", "")) if isinstance(error, UnauthorizedError) else error


def _context(cluster: Cluster, certificate_pem: bytes, key: Secret | None) -> ssl.SSLContext:
    if cluster.insecure_skip_tls_verify:
        context = tls.not_verifying()
    elif cluster.ca_pem:
        context = tls.trusting(cluster.ca_pem)
    else:
        context = tls.trusting_system_roots()
    if key is not None:
        tls.present(context, certificate_pem, key)
    return context


def _most_hopeful(failures: Sequence[PeerError]) -> PeerError:
    """The failure that may pass by waiting, if there is one; else the last."""
    passing = (one for one in failures if isinstance(one, EndpointDownError | EndpointTimeoutError))
    return next(passing, failures[-1])


def _json_object(body: bytes) -> Obj | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _path(target: Target, namespace: str, name: str | None = None, subresource: str = "") -> str:
    """Where a collection, an object (`name`) or a subresource is. Raises ConfigError for names that would lead elsewhere."""
    resource = resource_of(target)
    if name is None:
        return resource.path(_segment(namespace, "no namespace") if namespace else "")
    within = _segment(namespace, "no namespace") if namespace else ""
    return resource.path(within, _segment(name, f"none of the {resource.plural}"), subresource)


def _segment(name: str, who: str) -> str:
    """A name as one segment of a path (docs/protocol/objects.md#names)."""
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise ArgumentError(f'{who} can be called "{name}"')
    return quote(name, safe="")


def _namespace(obj: Obj) -> str:
    namespace: str = (obj.get("metadata") or {}).get("namespace", "")  # reviews have no metadata
    return namespace


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}
