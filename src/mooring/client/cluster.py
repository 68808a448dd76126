"""Client of any Kubernetes API server, with the credentials of a kubeconfig.

Rules kept here:
* Objects are plain dicts. Items of a list carry the kind and apiVersion that servers leave out, so that they can be sent back.
* A refusal is an `ApiError` with the server's reason and message. Any other failure is a `PeerError` that names the server and the
  remedy.
* The text `404 page not found` without a Status is a NotFoundError below `/apis/`, and an answer of another program elsewhere.
* TLS is verified under the kubeconfig's CA, else by the system's roots. It is unverified only where the kubeconfig says so. Plain
  http is refused.
* A request is repeated a few times after 429 and 503 with Retry-After, as in client-go, and once after a 401 when credentials can
  be read again.
* Lists are read in pages. Every response has a limit of bytes and of time, and so have all pages of a list.
* Objects are checked where they enter, as far as all kinds are alike (`mooring.client.objectshape`).
* With several addresses of one cluster, the one that responded last is first. An address that fails becomes the last. Reads, and
  writes that cannot have been sent, are repeated at the next address at once.

`mooring.client.http.connection` says why no client library for Kubernetes is used.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlencode

import msgspec

from mooring.api.paths import PATHS
from mooring.apimachinery.resource import ResourcePath
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.status import CODES, error_of
from mooring.apimachinery.watchevent import BOOKMARK, ERROR, FrameReader, WatchEvent
from mooring.client.files import read_limited
from mooring.client.http import tls
from mooring.client.http.connection import ConnectionPool, Way, proxies_for, transport_errors
from mooring.client.http.credentials import ClientCredentials, Presented
from mooring.client.http.requests import send_over
from mooring.client.objectshape import is_list, is_object
from mooring.clock import Clock, SystemClock
from mooring.errors import (
    ApiError,
    ArgumentError,
    ConfigError,
    NotFoundError,
    PeerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from mooring.secret import Secret
from mooring.trust.answertext import after_colon, answer_text, has_secret, header_secrets
from mooring.trust.discovery.errors import (
    AnswerTooLongError,
    BalancerAnswerError,
    EndpointDownError,
    EndpointTimeoutError,
    NotKubernetesError,
)
from mooring.trust.discovery.fetch import BALANCER_STATUSES, connection_error
from mooring.trust.httpexchange import PROXY, TOO_LONG, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpproxy import ProxySettingError
from mooring.trust.httpsurl import is_https
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected, flatten_cluster

Target = str | ResourcePath
"""A resource, or the plural of one that Mooring knows (`"secrets"`)."""

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"
_GROUPS = "/apis/"
_PAGE_NOT_FOUND = b"404 page not found"

TIMEOUT = 30.0
"""Seconds for connecting, for the head of a response, and for each KiB of its body. kubectl has no limit."""
FAILOVER_TIMEOUT = 10.0
"""Seconds for connecting when there is another address, as kubeadm's client allows."""
BODY_SECONDS = 60.0
"""Seconds for one response other than a watch, however it trickles: a page of 500 objects arrives at 1 Mbit/s."""
MAX_BODY = 64 << 20
"""Bytes: real pages of 500 objects have a hundredth of this."""
PAGE = 500
"""Objects of one page, as in client-go."""
LIST_SECONDS = 600.0
"""Seconds for all pages of a list: kube-apiserver continues one for 5 to 10 minutes, until etcd forgets its revision."""
WATCH_SECONDS = 300
"""Seconds until the server ends a watch, so that a dead connection is noticed."""
WATCH_GRACE = 30.0
"""Seconds that a server may be late in ending a watch."""
RETIRE_SECONDS = 10.0
"""Seconds: kubelet closes the connections of an old certificate within 10 s."""
MAX_TRIES = 5
"""Attempts of one request while the server responds with Retry-After."""
MAX_RETRY_AFTER = 30
"""Seconds between attempts at most, whatever Retry-After says."""


@dataclass(frozen=True, slots=True)
class ListResult:
    """A whole collection at `resource_version`."""

    items: tuple[Obj, ...]
    resource_version: str


def resource_of(target: Target) -> ResourcePath:
    """Return the resource of `target`. Raises ConfigError for an unknown plural."""
    if isinstance(target, ResourcePath):
        return target
    found = PATHS.get(target)
    if found is None:
        raise ConfigError(f'"{target}" is not a resource that is known here')
    return found


def connect(selected: Selected, clock: Clock | None = None) -> ClusterClient:
    """Return a client for a kubeconfig context (`kubeconfigfiles.load`). It connects when first used. Raises ConfigError."""
    clock = clock or SystemClock()
    cluster = flatten_cluster(selected.cluster, _read_ca)
    return ClusterClient(cluster, selected.user, clock, selected.namespace or "default", others=selected.others)


def _read_ca(path: str) -> bytes:
    return read_limited(Path(path))


class ClusterClient:
    """Requests of one user to one cluster. Use it with `async with`, or call `close`."""

    def __init__(
        self,
        cluster: Cluster,
        user: KubeconfigUser,
        clock: Clock,
        namespace: str = "default",
        *,
        others: Sequence[Cluster] = (),
        headers: Sequence[tuple[str, str]] = (),
        failover_read_timeout: float = TIMEOUT,
    ) -> None:
        """`others` are further addresses of the same cluster, `headers` are sent with every request.

        `failover_read_timeout` is the time in seconds between bytes of a response, other than a watch, while there is another
        address: a machine without power closes no connection.

        Raises ConfigError for an address that is not an https URL.
        """
        # Plain http would send the credentials in the clear.
        for one in (cluster, *others):
            if not is_https(one.server):
                reason = "must be an https URL: credentials are not sent in the clear"
                if is_https(one.server.strip()):
                    reason = "begins with a blank: remove it"
                raise ConfigError(f'the server "{one.server}" {reason}')
        self.clusters = (cluster, *others)
        """Every address of the cluster, first the one for the next request."""
        self.namespace = namespace
        self.clock = clock
        self._failover_read_timeout = failover_read_timeout
        self.server_time: tuple[datetime, datetime] | None = None
        """Date header of the last response, and the time of this machine when it arrived; None before, and without the header."""
        self.warning = ""
        """Warning header of the last response; "" for none."""
        self._headers = tuple(headers)
        self._credentials = ClientCredentials(user, cluster, clock.now)
        self._connection: ConnectionPool | None = None
        self._connected_with: bytes = b""

    @property
    def server(self) -> str:
        """URL for the next request."""
        return self.clusters[0].server.rstrip("/")

    async def use(self, clusters: Sequence[Cluster]) -> None:
        """Replace the addresses. The one in use stays first when it is among them and the way to it is the same."""
        same = next((one for one in clusters if one.way == self.clusters[0].way), None)
        # The way to the server has changed, or its CAs: no request may use a connection that the old ones verified.
        if same is None:
            self.clusters = tuple(clusters)
            await self.close()
        else:
            self.clusters = (same, *(one for one in clusters if one is not same))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. The next request opens new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def use_new_credentials(self) -> None:
        """Read the credentials again. Connections with the old ones close after their last request, within RETIRE_SECONDS."""
        # Before the pool is replaced: the next request connects with the new certificate. Those under way end on the
        # old connections.
        self._credentials.forget()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close_when_idle(RETIRE_SECONDS)

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, target: Target, name: str, namespace: str = "") -> Obj:
        """Return one object. Raises NotFoundError and others."""
        return self._checked(await self._request_object("GET", _path(target, namespace, name)))

    async def list(
        self, target: Target, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> ListResult:
        """Return every object that matches, read in pages."""
        resource = resource_of(target)
        query = _selectors(label_selector, field_selector) | {"limit": str(PAGE)}
        items: list[Obj] = []
        end = self.clock.monotonic() + LIST_SECONDS
        while True:
            page = await self._request_object("GET", _path(resource, namespace), query)
            if not is_list(page):
                raise NotKubernetesError(self._step, "JSON, but not a list of Kubernetes")
            metadata = page.get("metadata") or {}
            for item in page["items"] or ():
                item.setdefault("kind", resource.kind)
                item.setdefault("apiVersion", resource.api_version)
                items.append(item)
            following = metadata.get("continue") or ""
            if not following:
                return ListResult(tuple(items), metadata.get("resourceVersion") or "")
            # A server could send pages for ever.
            if following == query.get("continue") or self.clock.monotonic() > end:
                raise NotKubernetesError(self._step, "pages of a list without an end")
            query["continue"] = following

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
        namespace = namespace or _namespace(obj)
        path = _path(target, namespace, name, subresource) if subresource else _path(target, namespace)
        created = await self._request_object("POST", path, _dry_run_query(dry_run), obj)
        return self._checked(created) if "metadata" in obj and not subresource else created

    async def update(self, target: Target, obj: Obj, *, subresource: str = "", dry_run: bool = False) -> Obj:
        """PUT `obj`. Raises ConflictError and others."""
        path = _path(target, _namespace(obj), obj["metadata"]["name"], subresource)
        return self._checked(await self._request_object("PUT", path, _dry_run_query(dry_run), obj))

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
        return self._checked(await self._request_object("PATCH", path, {}, patch, content_type))

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
        """DELETE one object, with the given preconditions. Return the object or a Status. Raises NotFoundError, ConflictError."""
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if conditions:
            options["preconditions"] = conditions
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._request_object("DELETE", _path(target, namespace, name), {}, options)

    async def read(self, path: str) -> bytes:
        """GET any path of the server, such as /healthz, and return the body. Raises ApiError or PeerError."""
        return await self._send("GET", path, {}, None, _JSON)

    async def get_path(self, path: str) -> Obj:
        """GET a path that is not a resource and return its JSON object. Raises ApiError or PeerError."""
        return await self._request_object("GET", path)

    async def post_path(self, path: str, obj: Obj) -> Obj:
        """POST `obj` to any path. Raises ApiError or PeerError."""
        return await self._request_object("POST", path, {}, obj)

    async def watch(
        self,
        target: Target,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        seconds: int = WATCH_SECONDS,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent]:
        """Yield events after `resource_version` until the server ends the watch. Raises ExpiredError (list again), PeerError.

        `on_open` is called when the server has accepted the watch, which may be long before the first event.
        """
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        reader = FrameReader()
        path = _path(target, namespace)
        request, connection = await self._request("GET", path, query, None, _JSON)
        address, way = self.clusters[0], Way()
        try:
            async with connection.stream(request, seconds + WATCH_GRACE, way) as answer:
                if answer.status != 200:
                    refused = HttpResponse(answer.status, await answer.read(MAX_BODY), answer.headers)
                    raise self._refusal(path, refused, request.authorization)
                # The server has accepted the watch. The first event may be long in coming.
                on_open()
                async with aclosing(answer.chunks()) as chunks:
                    async for chunk in chunks:
                        for event in reader.feed(chunk):
                            if event.type == ERROR:
                                raise error_of(event.object)
                            if event.type != BOOKMARK:
                                self._checked(event.object)
                            yield event
        except transport_errors() as error:
            failure = await way.explain(error, self.clock.now(), seconds + WATCH_GRACE)
            await self._put_last(address)
            raise connection_error(f"asking {address.server.rstrip('/')}", failure) from error

    @property
    def _read_timeout(self) -> float:
        return TIMEOUT if len(self.clusters) == 1 else self._failover_read_timeout

    # ── one request ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _request_object(
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

    def _checked(self, obj: Obj) -> Obj:
        """Return an object of the API. Raises NotKubernetesError for other JSON, which a proxy may have sent."""
        if not is_object(obj):
            raise NotKubernetesError(self._step, "JSON, but not an object of Kubernetes")
        return obj

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Obj | Sequence[Obj] | None, content_type: str
    ) -> bytes:
        content = msgspec.json.encode(body) if body is not None else None
        renewed = False
        for left in reversed(range(MAX_TRIES)):
            try:
                return await self._send_once(method, path, query, content, content_type)
            except (TooManyRequestsError, ServiceUnavailableError) as error:
                if not left or not error.details.retry_after:
                    raise
                await self.clock.sleep(min(error.details.retry_after, MAX_RETRY_AFTER))
            except ApiError as error:
                # Once: credentials that were read again and refused again are wrong.
                if error.reason != "Unauthorized" or renewed or not self._credentials.forget() or not left:
                    raise
                renewed = True
        raise AssertionError("unreachable: the last try returns or raises")

    async def _send_once(
        self, method: str, path: str, query: Mapping[str, str], content: bytes | None, content_type: str
    ) -> bytes:
        failures: list[PeerError] = []
        while True:
            repeatable, authorization = method == "GET", None
            try:
                request, connection = await self._request(method, path, query, content, content_type)
                address, authorization = self.clusters[0], request.authorization
                answer = await send_over(
                    connection, request, self.clock, silence=self._read_timeout, body_seconds=BODY_SECONDS
                )
            except ProxySettingError as error:
                address = self.clusters[0]
                if len(self.clusters) == 1 or not address.proxy_url:
                    raise
                answer = HttpFailure(PROXY, str(error), unsent=True)
            if isinstance(answer, HttpResponse):
                self._note_date(answer)
                self.warning = answer.headers.get("warning", "")
                if 200 <= answer.status < 300:
                    return answer.body
                refusal = self._refusal(path, answer, authorization)
                if isinstance(refusal, ApiError):
                    raise refusal
                failures.append(refusal)
            elif answer.kind == TOO_LONG:
                raise AnswerTooLongError(
                    self._step, answer.message, "check the address, or ask for less with a selector"
                )
            else:
                failures.append(connection_error(f"asking {address.server.rstrip('/')}", answer))
                # No server has received the request, so that a write cannot be made twice.
                repeatable = repeatable or answer.unsent
            # Also where the request is not repeated: the next one goes to another address.
            await self._put_last(address)
            if not repeatable or len(failures) >= len(self.clusters):
                raise _best_failure(failures)

    def _note_date(self, answer: HttpResponse) -> None:
        try:
            date = parsedate_to_datetime(answer.headers.get("date", ""))
        except (ValueError, OverflowError):
            return
        self.server_time = (date.astimezone(UTC), self.clock.now())

    async def _put_last(self, failed: Cluster) -> None:
        """Put a failed address last, unless another request has done so."""
        if len(self.clusters) > 1 and self.clusters[0] is failed:
            self.clusters = (*self.clusters[1:], failed)
            await self.close()

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], content: bytes | None, content_type: str
    ) -> tuple[HttpRequest, ConnectionPool]:
        presented = await self._credentials.present()
        connection = await self._connected(presented)
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = [("Accept", _JSON), *presented.impersonation, *self._headers]
        if content is not None:
            headers.append(("Content-Type", content_type))
        request = HttpRequest(
            self.server,
            method,
            url,
            headers=tuple(headers),
            body=content,
            max_bytes=MAX_BODY,
            authorization=presented.authorization,
            timeout=TIMEOUT if len(self.clusters) == 1 else FAILOVER_TIMEOUT,
        )
        return request, connection

    async def _connected(self, presented: Presented) -> ConnectionPool:
        """Return the connection with this client certificate. A rotated certificate closes the old connection."""
        if self._connection is not None and self._connected_with == presented.certificate_pem:
            return self._connection
        await self.close()
        cluster = self.clusters[0]
        context = _context(cluster, presented.certificate_pem, presented.key)
        self._connection = ConnectionPool(context, cluster.tls_server_name, proxies_for(cluster))
        self._connected_with = presented.certificate_pem
        return self._connection

    @property
    def _step(self) -> str:
        return f"asking {self.server}"

    def _refusal(self, path: str, answer: HttpResponse, authorization: Secret | None) -> ApiError | PeerError:
        """Return the error for an answer other than 2xx. Its text repeats no credential."""
        status, headers, body = answer.status, answer.headers, answer.body
        # kube-apiserver answers so for a resource that it does not serve
        # (docs/protocol/custom-resources.md#kinds-that-are-not-served). The core group is served everywhere: such an
        # answer there is of another program.
        if status == 404 and path.startswith(_GROUPS) and body.strip() == _PAGE_NOT_FOUND:
            return NotFoundError("the server could not find the requested resource")
        obj, secrets = _json_object(body), header_secrets(authorization)
        if obj is None or obj.get("kind") != "Status":
            text = answer_text(body, secrets)
            if status in BALANCER_STATUSES:
                return BalancerAnswerError(self._step, status, text)
            return NotKubernetesError(self._step, f"status {status} without a Kubernetes Status{after_colon(text)}")
        # A proxy may answer with the headers of the request. No message repeats a credential.
        if has_secret(obj, body, secrets):
            reason = obj.get("reason")
            obj = {"reason": reason if isinstance(reason, str) and reason in CODES else ""}
        obj["code"] = obj.get("code") or status
        details, after = obj.get("details"), headers.get("retry-after", "")
        details = details if isinstance(details, dict) else {}
        if after.isascii() and after.isdigit() and not details.get("retryAfterSeconds"):
            obj["details"] = details | {"retryAfterSeconds": int(after[:6])}
        error = error_of(obj)
        error.audit_id = headers.get("audit-id", "")
        return error


def _context(cluster: Cluster, certificate_pem: bytes, key: Secret | None) -> ssl.SSLContext:
    if cluster.insecure_skip_tls_verify:
        context = tls.not_verifying()
    else:
        context = tls.for_api_server(cluster.ca_pem)
    if key is not None:
        tls.present(context, certificate_pem, key)
    return context


def _best_failure(failures: Sequence[PeerError]) -> PeerError:
    """Return a failure that waiting may resolve, if there is one; else the last."""
    transient = (one for one in failures if isinstance(one, EndpointDownError | EndpointTimeoutError))
    return next(transient, failures[-1])


def _json_object(body: bytes) -> Obj | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _path(target: Target, namespace: str, name: str | None = None, subresource: str = "") -> str:
    """Return the path of a collection, an object or a subresource. Raises ArgumentError for a name that changes the path."""
    resource = resource_of(target)
    if name is None:
        return resource.path(_segment(namespace, "no namespace") if namespace else "")
    within = _segment(namespace, "no namespace") if namespace else ""
    return resource.path(within, _segment(name, f"none of the {resource.plural}"), subresource)


def _segment(name: str, who: str) -> str:
    """Return a name as one segment of a path (docs/protocol/objects.md#names)."""
    # A name that changes the path would send the request to another resource.
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise ArgumentError(f'{who} can be called "{name}"')
    return quote(name, safe="")


def _namespace(obj: Obj) -> str:
    namespace: str = (obj.get("metadata") or {}).get("namespace", "")  # reviews have no metadata
    return namespace


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in selectors.items() if value}


def _dry_run_query(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}
