"""Targets of the second stage: remote authenticators, each under its own trust, and those that a kubeconfig describes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from mooring.client.http import tls
from mooring.client.http.connection import ConnectionPool, proxies_for
from mooring.client.http.credentials import ClientCredentials, Presented
from mooring.client.http.requests import send_over
from mooring.client.http.tls import trusting, trusting_system_roots
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.addresses import names_user
from mooring.trust.httpexchange import PROXY, UNREACHABLE, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpproxy import ProxySettingError
from mooring.trust.httpsurl import https_url_problem, named_cas
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected

# A target of the second stage that a kubeconfig describes: a webhook.
#
# Rules kept here (docs/protocol/authentication.md#webhook; client-go `clientcmd`):
# * The current context counts: `server`, with its path and query; the CA, or the machine's roots without one; `tls-server-name`;
#   `proxy-url`, else a proxy of the environment; every kind of credential that `mooring.client.http.credentials` knows.
# * The server is https and verified, because it receives credentials of users. Errors name the cluster or the user, and the
#   field.
# * A request that got 401 is repeated once when a new credential can be had. A new certificate of a plugin opens a new
#   connection; requests under way on the old one still get their responses.

_CA_FIELD = "certificate-authority"
_PAIR_FIELDS = ("client-certificate", "client-key")


def inlined(selected: Selected, read: Callable[[str], bytes]) -> Selected:
    """Return the context with the content of the CA, the certificate and the key. Raises ConfigError that names the field and
    the file.

    A `tokenFile` stays a file, because it is read again at each use. Here it is read only to check it.
    """

    def content(owner: str, field: str, path: str) -> bytes:
        try:
            data = read(path) if path else b""
            if path and field == _CA_FIELD:
                return named_cas(data, path)
            if path and field in _PAIR_FIELDS and not data.strip():
                raise ConfigError(
                    f'"{path}" is empty, and no certificate would be shown; restore the file, or name none'
                )
            return data
        except ConfigError as error:
            raise ConfigError(f"{owner}: {field}: {error}") from None

    cluster, user = selected.cluster, selected.user
    whose, who = f'cluster "{cluster.name}"', f'user "{user.name}"'
    key = content(who, "client-key", user.key_file)
    content(who, "tokenFile", user.token_file)
    return replace(
        selected,
        cluster=replace(cluster, ca_pem=cluster.ca_pem or content(whose, _CA_FIELD, cluster.ca_file), ca_file=""),
        user=replace(
            user,
            certificate_pem=user.certificate_pem or content(who, "client-certificate", user.certificate_file),
            certificate_file="",
            key=user.key or (Secret(key) if key else None),
            key_file="",
        ),
    )


class Link:
    """Connections of one TLS context. After `retire` they are closed once no request is under way on them."""

    def __init__(self, connection: ConnectionPool, clock: Clock, closing: set[asyncio.Task[None]]) -> None:
        """`closing`: tasks that `close` waits for, too."""
        self._connection = connection
        self._clock = clock
        self._closing = closing
        self._waiting = 0
        self._is_retired = False

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send one request and return the reply."""
        self._waiting += 1
        try:
            return await send_over(self._connection, request, self._clock)
        except ProxySettingError as error:
            return HttpFailure(PROXY, str(error), unsent=True)
        finally:
            self._waiting -= 1
            self._close_if_unused()

    def retire(self) -> None:
        """Close as soon as the requests under way have their responses, because another one took its place."""
        self._is_retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._waiting:
            task = asyncio.create_task(self._connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close at once."""
        await self._connection.close()
        await asyncio.gather(*self._closing)


class KubeconfigTarget:
    """The server of one context of a kubeconfig, without files (`inlined`). Raises ConfigError when it cannot be used."""

    def __init__(self, selected: Selected, clock: Clock) -> None:
        cluster, user = selected.cluster, selected.user
        _check_cluster(cluster)
        self.url = cluster.server
        self.shown_url = cluster.server.partition("?")[0]
        """URL for logs: a query may hold a key."""
        self._cluster = cluster
        self._user = user
        self._clock = clock
        self._credentials = ClientCredentials(user, cluster, clock.now)
        self._asking = asyncio.Lock()  # a plugin runs once for all who wait for what it gives
        self._closing: set[asyncio.Task[None]] = set()
        self._certificate_pem = user.certificate_pem
        self._link = self._connect(user.certificate_pem, user.key)

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send one request and return the reply."""
        answer = await self._send_once(request)
        if isinstance(answer, HttpResponse) and answer.status == 401 and self._credentials.forget():
            return await self._send_once(request)
        return answer

    async def _send_once(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        try:
            async with self._asking:
                shown = await self._credentials.present()
            link = self._link_for(shown)
        except ConfigError as error:
            return HttpFailure(UNREACHABLE, str(error))
        headers = (*request.headers, *shown.impersonation)
        return await link.send(
            replace(request, url=request.url or self.url, headers=headers, authorization=shown.authorization)
        )

    def _link_for(self, shown: Presented) -> Link:
        if shown.certificate_pem != self._certificate_pem:
            fresh, old = self._connect(shown.certificate_pem, shown.key), self._link
            self._link, self._certificate_pem = fresh, shown.certificate_pem
            old.retire()
        return self._link

    def _connect(self, certificate_pem: bytes, key: Secret | None) -> Link:
        cluster = self._cluster
        context = _tls_context(cluster, self._user, certificate_pem, key)
        pool = ConnectionPool(context, cluster.tls_server_name, proxies_for(cluster))
        return Link(pool, self._clock, self._closing)

    def retire(self) -> None:
        """Close as soon as the requests under way have their responses, because another target took its place."""
        self._link.retire()

    async def close(self) -> None:
        """Close at once."""
        await self._link.close()


def _check_cluster(cluster: Cluster) -> None:
    label = f'cluster "{cluster.name}"'
    problem = https_url_problem(cluster.server, query=True)
    if not problem and names_user(cluster.server):
        problem = "it must not contain a user name or a password; behind the host, @ is written as %40"
    if problem:
        raise ConfigError(f"{label}: server: {problem}")
    if cluster.insecure_skip_tls_verify:
        raise ConfigError(
            f"{label}: insecure-skip-tls-verify: it is not allowed here: whoever answers would be shown the tokens of users; "
            "name the CA in certificate-authority"
        )


def _tls_context(cluster: Cluster, user: KubeconfigUser, certificate_pem: bytes, key: Secret | None) -> ssl.SSLContext:
    try:
        context = tls.trusting(cluster.ca_pem) if cluster.ca_pem else tls.trusting_system_roots()
    except ConfigError as error:
        raise ConfigError(f'cluster "{cluster.name}": certificate-authority: {error}') from None
    if key is not None and certificate_pem:
        try:
            tls.present(context, certificate_pem, key)
        except ConfigError as error:
            raise ConfigError(f'user "{user.name}": client-certificate: {error}') from None
    return context


# Makes the targets of remote authenticators: servers that they send requests to, each under its own trust.
#
# Rules kept here: TLS is verified under exactly the given trust. There is no redirect and no cookie. Proxies of the environment
# are used as by kube-apiserver. The text of a failure holds nothing of what was sent.


class HttpTarget(Link):
    """One server that is reached over HTTPS: a key server, a directory, an identity service.

    `url` serves requests that name none.
    """

    def __init__(self, url: str, context: ssl.SSLContext, clock: Clock) -> None:
        super().__init__(ConnectionPool(context), clock, set())
        self._url = url
        self._context = context  # kept alive for other targets under the same CA

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send one request and return the reply."""
        return await super().send(replace(request, url=request.url or self._url))


class TargetConnector:
    """Implements `mooring.authn.host.Connector`. Targets of the same CA share one TLS context: the machine's roots take 2 MB."""

    def __init__(self, clock: Clock, read: Callable[[str], bytes]) -> None:
        """`read` returns the content of a file that a kubeconfig names, or raises ConfigError."""
        self._clock = clock
        self._read = read
        self._contexts: WeakValueDictionary[bytes, ssl.SSLContext] = WeakValueDictionary()

    def https(self, url: str, ca_pem: bytes) -> HttpTarget:
        """Return the server at `url`, verified under the CAs in `ca_pem`; the machine's own roots when that is empty."""
        context = self._contexts.get(ca_pem)
        if context is None:
            context = self._contexts[ca_pem] = trusting(ca_pem) if ca_pem else trusting_system_roots()
        return HttpTarget(url, context, self._clock)

    def kubeconfig(self, selected: Selected) -> KubeconfigTarget:
        """Return the server of a kubeconfig, whose files are read now. Raises ConfigError."""
        return KubeconfigTarget(inlined(selected, self._read), self._clock)
