"""Makes the targets of remote authenticators: servers that they send requests to, each under its own trust.

Rules kept here: TLS is verified under exactly the given trust. There is no redirect and no cookie. Proxies of the environment are
used as by kube-apiserver.
The text of a failure holds nothing of what was sent.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

from mooring.client.http.connection import ConnectionPool
from mooring.client.http.tls import trusting, trusting_system_roots
from mooring.clock import Clock
from mooring.server.authentication.kubeconfigtarget import KubeconfigTarget, Link, inlined
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse
from mooring.trust.kubeconfig.model import Selected


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
