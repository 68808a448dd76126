"""Connection to the members of etcd: one gRPC channel to each, of which one is in use; deadlines, credentials and failover.

Rules kept here:
* Each call has a deadline. A member that fails or does not answer is left at once, and the next one is used; calls under way on it
  end with it.
* A read is repeated on the next member until its time is over. A write is repeated only when etcd has certainly not received it, or
  has refused it before proposing it. Else the write raises `UnknownOutcomeError`.
* The time of a read or write includes all its attempts. An operation of several calls passes its end to each.
* Files of certificates and of the password are read again after every failed connection and every refused credential, before the
  next attempt, and by the driver at intervals. The channels are replaced when a file has changed.
* Messages of errors name the endpoint and what to do. They never contain a key, a value, a password or a token.

gRPC must not be started before a process forks for the last time: its threads do not survive. Importing it starts nothing; making a
`EtcdConnection` does, so `EtcdStorage.open` makes it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from mooring.errors import ConfigError, StorageError, UnknownOutcomeError
from mooring.settings.storage import StorageSettings
from mooring.storage.etcd import messages
from mooring.trust.httpsurl import named_cas

ATTEMPT_SECONDS = 2.0
"""Deadline of one attempt of a small read: a member that hangs is left after it. etcd answers in milliseconds."""
READ_SECONDS = 6.0
"""Time of a read with all its attempts: an election takes 1–2 s with etcd's defaults."""
WRITE_SECONDS = 6.0
"""Deadline of one attempt of a write, with the wait for a leader; etcd itself gives up after 7 s."""
OUTCOME_SECONDS = 10.0
"""Time of a write with its lease, and with the second look at an unknown outcome."""
LARGE_READ_SECONDS = 10.0
"""Time of a read of many entries with all its attempts."""
RETRY_SECONDS = 0.1
"""Pause before an attempt when every member has failed in turn. Less time than this is too little for an attempt."""
MAX_FILE = 4 << 20
"""Bytes: no key, password or bundle of certificates comes near 4 MiB."""
OLDEST_VERSION = (3, 4)
"""Oldest version that has what the driver uses: watch ids of the client's choice, and fragments."""

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # pages of entries; the driver bounds their number
    ("grpc.max_send_message_length", -1),  # etcd says in words that a request is too large
    ("grpc.keepalive_time_ms", 6_000),  # etcd ends connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),  # a watch without events must notice a dead member, too
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also the deadline of a connection attempt
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),  # what is repeated is decided here
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a replaced channel shares no connection with the one before
)

REMEDIES: Mapping[str, str] = {
    "database space exceeded": (
        "etcd's database is full (NOSPACE alarm): writes are refused. Free space with `etcdctl defrag` after a compaction, or "
        "raise --quota-backend-bytes of etcd, and then clear the alarm with `etcdctl alarm disarm`"
    ),
    "request is too large": "the object is larger than etcd accepts (its --max-request-bytes, 1.5 MiB by default)",
    "message larger than max": "the object is larger than etcd accepts (its --max-request-bytes, 1.5 MiB by default)",
    "corrupt cluster": (
        "etcd has found its members in disagreement (CORRUPT alarm): see `etcdctl alarm list`; restore etcd from a snapshot"
    ),
    "authentication failed": "etcd refused the user or the password: check --etcd-username and --etcd-password-file",
    "authentication is not enabled": "etcd has no authentication enabled: remove --etcd-username and --etcd-password-file",
    "user name is empty": "etcd demands a user: give --etcd-username and --etcd-password-file, or a client certificate",
    "permission denied": "etcd denied the permission: grant the user read and write on the keys of --etcd-prefix and of /mooring/",
}
"""Advice to the operator, by a part of the message of a refusal. A refused request has changed nothing, but see
`EtcdRefusedError.is_for_space`."""
_NOT_PROPOSED = ("etcdserver: no leader", "etcdserver: too many requests", "failed to connect to all addresses")
"""Failures before a request was proposed to the members: it can be repeated."""
_LEFT = "the member was left"
_TOKEN_EXPIRED = ("invalid auth token", "revision of auth store is old")
_CREDENTIALS_REFUSED = ("authentication failed", "user name is empty", "permission denied")
"""Refusals that another password or client certificate can end."""

log = logging.getLogger(__name__)


def deadline(seconds: float) -> float:
    """Return the time of the loop's clock after so many seconds."""
    return asyncio.get_running_loop().time() + seconds


def _in_words(error: grpc.aio.AioRpcError) -> str:
    """Return the cause of a failed call. Only the texts of TLS and of connections are taken from gRPC."""
    details = error.details() or ""
    for part, remedy in REMEDIES.items():
        if part in details:
            return remedy
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED or details == _LEFT:
        return "it does not answer"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate does not verify: check --etcd-cafile, and the names in the certificate"
    if "WRONG_VERSION_NUMBER" in details:
        return "it does not speak TLS: use http: or start etcd with certificates"
    if "address lookup failed" in details:
        return f"its name cannot be resolved: {details.rpartition(': ')[2].rstrip(']').lower()}"
    if "Connection refused" in details:
        return "the connection is refused"
    if "andshake" in details or "Socket closed" in details or "onnection reset" in details:
        return "it closed the connection: does it serve TLS, and demand a client certificate (--etcd-certfile)?"
    if details.startswith("etcdserver: "):
        return details.removeprefix("etcdserver: ")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "it ended the connection: if it demands a client certificate, give --etcd-certfile and --etcd-keyfile"
    return f"the call failed ({error.code().name})"


def _is_refusal(error: grpc.aio.AioRpcError) -> bool:
    """Return True for an answer of etcd that the request cannot be carried out: no other member would answer otherwise."""
    details = error.details() or ""
    if any(part in details for part in REMEDIES):
        return True
    return error.code() not in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )


def _content(name: str) -> bytes:
    """Return the content of a file. Raises OSError, and ValueError for one that could keep the event loop waiting."""
    # A pipe without a writer would keep the event loop waiting.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a regular file; name one, because it is read again while the server runs")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise ValueError(f"is larger than {MAX_FILE} bytes; is it the right file?")
    return content


class EtcdRefusedError(StorageError):
    """A request that etcd answered with an error; it has changed nothing, unless it `is_for_space`.

    `details` is etcd's text, for comparison only.
    """

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details

    @property
    def is_for_space(self) -> bool:
        """True when the database is full. The write by which etcd notices it is stored; those after it are not."""
        return "database space exceeded" in self.details

    @property
    def is_for_the_token(self) -> bool:
        """True when another token of the same user can end it."""
        return any(part in self.details for part in _TOKEN_EXPIRED)


def refusal(what: str, details: str) -> EtcdRefusedError:
    """Return the error for a refusal that etcd answered in words."""
    remedy = next((remedy for part, remedy in REMEDIES.items() if part in details), "")
    return EtcdRefusedError(f"{what}: {remedy or details.removeprefix('etcdserver: ')}", details)


class EtcdEndpoint:
    """The channel to one member."""

    def __init__(self, url: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.url = url
        target = urlsplit(url).netloc
        self.channel = (
            grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
        )
        self.calls = {
            method: self.channel.unary_unary(
                method,
                request_serializer=messages.CLASSES[request].SerializeToString,
                response_deserializer=messages.CLASSES[response].FromString,
            )
            for method, (request, response) in messages.METHODS.items()
        }
        self.watch = self.channel.stream_stream(
            messages.WATCH,
            request_serializer=messages.WatchRequest.SerializeToString,
            response_deserializer=messages.WatchResponse.FromString,
        )
        self.version: tuple[int, ...] = ()
        """Version of the member, once it was asked."""


class EtcdConnection:
    """All endpoints, one of them in use."""

    def __init__(self, settings: StorageSettings, servers: Sequence[str]) -> None:
        self._settings = settings
        self._files = self._read_files()
        self._unread = ""
        """The last problem with a file, "" after all were read: it is logged once."""
        self._endpoints = [self._endpoint(url) for url in servers]
        self._index = 0
        self._token = ""
        self._authenticating: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        # A member that is cut off from its cluster refuses requests with this at once, and does not let them run into
        # their deadline.
        self.metadata: tuple[tuple[str, str], ...] = (("hasleader", "true"),)

    # -- files -----------------------------------------------------------------------------------------------------

    def _read_files(self) -> tuple[bytes | None, ...]:
        settings = self._settings
        found: list[bytes | None] = []
        for key, name in (
            ("etcd-cafile", settings.etcd_cafile),
            ("etcd-certfile", settings.etcd_certfile),
            ("etcd-keyfile", settings.etcd_keyfile),
            ("etcd-password-file", settings.etcd_password_file),
        ):
            try:
                found.append(_content(name) if name else None)
                if key == "etcd-password-file":
                    (found[-1] or b"").decode()
            except UnicodeDecodeError:
                raise StorageError(f"{key}: {name} is not UTF-8, as etcd's passwords are") from None
            except OSError as error:
                raise StorageError(f"{key}: {name} cannot be read: {error.strerror}") from None
            except ValueError as error:
                raise StorageError(f"{key}: {name} {error}") from None
        if settings.etcd_cafile:
            try:
                named_cas(found[0] or b"", settings.etcd_cafile)
            except ConfigError as error:
                raise StorageError(f"etcd-cafile: {error}") from None
        return tuple(found)

    def _endpoint(self, url: str) -> EtcdEndpoint:
        credentials = None
        if url.startswith("https:"):
            ca, certificate, key, _ = self._files
            credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return EtcdEndpoint(url, credentials)

    def follow_files(self) -> bool:
        """Replace the channels when a file has changed. Return whether one has. A file that cannot be read changes nothing."""
        try:
            files = self._read_files()
        except StorageError as error:
            if str(error) != self._unread:
                log.warning("%s; the one read before is used", error)
            self._unread = str(error)
            return False
        self._unread = ""
        if files == self._files:
            return False
        log.info("certificates or password for etcd have changed; connecting again")
        self._files = files
        old, self._endpoints = self._endpoints, [self._endpoint(endpoint.url) for endpoint in self._endpoints]
        for endpoint in old:
            # Writes that are under way get their answer.
            self._close_later(endpoint, WRITE_SECONDS)
        return True

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> Any:
        """Connect to the first member that answers, and return its status. Raises StorageError with every member's reason."""
        reasons: dict[str, str] = {}
        for _ in self._endpoints:
            endpoint = self.endpoint
            try:
                if self._settings.etcd_username:
                    await self._authenticate()
                status = await self.ask_version(endpoint)
            except (StorageError, grpc.aio.AioRpcError) as error:
                reasons[endpoint.url] = str(error) if isinstance(error, StorageError) else _in_words(error)
                self.leave(endpoint)
                continue
            if endpoint.version < OLDEST_VERSION:
                raise StorageError(f"etcd at {endpoint.url} is version {status.version}; Mooring needs 3.4 or later")
            return status
        text = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
        raise StorageError(f"etcd cannot be used: {text}")

    async def ask_version(self, endpoint: EtcdEndpoint) -> Any:
        """Return the status of a member, and remember its version. Raises grpc.aio.AioRpcError."""
        status = await self._answer(
            endpoint.calls[messages.STATUS](
                messages.StatusRequest(), timeout=ATTEMPT_SECONDS, metadata=self._token_metadata()
            )
        )
        endpoint.version = tuple(int(part) for part in status.version.split("-")[0].split("."))
        return status

    async def close(self) -> None:
        """Close all channels."""
        for endpoint in self._endpoints:
            self._close_later(endpoint, 0)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _close_later(self, endpoint: EtcdEndpoint, grace: float) -> None:
        task = asyncio.get_running_loop().create_task(endpoint.channel.close(grace))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- choice of the endpoint ------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> EtcdEndpoint:
        """The endpoint in use."""
        return self._endpoints[self._index]

    def leave(self, endpoint: EtcdEndpoint) -> None:
        """Use the next endpoint instead of `endpoint`, and end the calls under way on it."""
        if endpoint is not self.endpoint:
            return
        self._endpoints[self._index] = self._endpoint(endpoint.url)
        self._index = (self._index + 1) % len(self._endpoints)
        self._close_later(endpoint, 0)

    # -- authentication --------------------------------------------------------------------------------------------

    def _token_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    async def renew_token(self) -> None:
        """Get another token, for a user with a password. Raises StorageError."""
        if self._settings.etcd_username:
            await self._authenticate()

    async def _authenticate(self) -> None:
        """Get a token; concurrent callers share one request. Raises StorageError."""
        if self._authenticating is None:
            self._authenticating = asyncio.get_running_loop().create_task(self._get_token())
        task = self._authenticating
        try:
            # Shielded: other calls wait for the same token.
            await asyncio.shield(task)
        finally:
            if self._authenticating is task and task.done():
                self._authenticating = None

    async def _get_token(self) -> None:
        # A token is refused after the password was changed.
        self.follow_files()
        password = (self._files[3] or b"").decode().rstrip("\r\n")
        request = messages.AuthenticateRequest(name=self._settings.etcd_username, password=password)
        try:
            response = await self._answer(self.endpoint.calls[messages.AUTHENTICATE](request, timeout=ATTEMPT_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise StorageError(f"etcd at {self.endpoint.url}: {_in_words(error)}") from None
        self._token = response.token
        self.metadata = (("hasleader", "true"), ("token", self._token))

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(self, method: str, request: Any, *, end: float = math.inf) -> Any:
        """Carry out a read, on other members when one fails, until `end` of the loop's clock at the latest. Raises StorageError."""
        return await self._call(method, request, min(end, deadline(READ_SECONDS)), ATTEMPT_SECONDS, repeatable=True)

    async def call_large(self, method: str, request: Any) -> Any:
        """Carry out a read of many entries like `call`. An attempt may take all of the time. Raises StorageError."""
        return await self._call(method, request, deadline(LARGE_READ_SECONDS), LARGE_READ_SECONDS, repeatable=True)

    async def write(self, request: Any, *, end: float = math.inf) -> Any:
        """Carry out a transaction until `end` of the loop's clock at the latest.

        Raises StorageError when it is certainly not done, else UnknownOutcomeError.
        """
        end = min(end, deadline(WRITE_SECONDS))
        return await self._call(messages.TXN, request, end, WRITE_SECONDS, repeatable=False)

    async def _call(self, method: str, request: Any, end: float, attempt: float, *, repeatable: bool) -> Any:
        now = asyncio.get_running_loop().time
        failures = 0
        while True:
            endpoint = self.endpoint
            left = max(end - now(), RETRY_SECONDS)
            call = endpoint.calls[method](request, timeout=min(attempt, left), metadata=self.metadata)
            try:
                return await self._answer(call)
            except grpc.aio.AioRpcError as error:
                failure = error
            failures += 1
            details = failure.details() or ""
            if any(part in details for part in _TOKEN_EXPIRED):
                if not self._settings.etcd_username or failures > 2 * len(self._endpoints):
                    raise StorageError(f"etcd at {endpoint.url}: {REMEDIES['user name is empty']}") from None
                await self._authenticate()
            elif _is_refusal(failure):
                if any(part in details for part in _CREDENTIALS_REFUSED) and self.follow_files():
                    await self.renew_token()
                    continue
                raise EtcdRefusedError(f"etcd: {_in_words(failure)}", details) from None
            else:
                # The member may demand, or have, other certificates by now.
                self.follow_files()
                self.leave(endpoint)
                # After the member was left: the next call goes to another one, whatever becomes of this write.
                if not repeatable and not any(part in details for part in _NOT_PROPOSED):
                    raise UnknownOutcomeError(
                        f"etcd at {endpoint.url}: {_in_words(failure)}; the write may or may not be stored"
                    ) from None
                if now() + RETRY_SECONDS >= end:
                    raise self._unreachable(endpoint, failure) from None
                if failures % len(self._endpoints) == 0:
                    await asyncio.sleep(RETRY_SECONDS)

    @staticmethod
    async def _answer(call: Any) -> Any:
        """Return the answer. Raises grpc.aio.AioRpcError, also for a call that ended because its channel was closed.

        gRPC ends such a call as if its task were cancelled, which no caller would catch.
        """
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                call.cancel()
                raise
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), _LEFT)

    def _unreachable(self, endpoint: EtcdEndpoint, failure: grpc.aio.AioRpcError) -> StorageError:
        if "no leader" in (failure.details() or ""):
            return StorageError(
                "etcd has no leader: most of its members are down or cut off; reads and writes go on once they are back"
            )
        return StorageError(f"etcd cannot be reached; {endpoint.url}: {_in_words(failure)}")
