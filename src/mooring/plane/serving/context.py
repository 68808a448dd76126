"""TLS context of new connections: the serving certificate in force, and the names of the CAs that sign client certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from OpenSSL import SSL

from mooring.pki.x509.certificate import Certificate
from mooring.plane.serving.pair import ServingPair
from mooring.server.transport.tls import server_context
from mooring.settings.serving import TlsProfile


class ServingContext:
    """Holds the TLS context, which is immutable once in use. `renew` replaces it for new connections; open ones are left alone."""

    def __init__(
        self,
        pair: ServingPair,
        client_cas: Callable[[], Sequence[Certificate]],
        profile: TlsProfile,
        *,
        http2: bool,
    ) -> None:
        """Raises ConfigError when the certificate and the key do not belong together."""
        self._pair = pair
        self._client_cas = client_cas
        self._profile = profile
        self._http2 = http2
        self._context = self._create()

    @property
    def current(self) -> SSL.Context:
        """The context for a new connection."""
        return self._context

    def renew(self) -> None:
        """Use the certificates that are in force now."""
        self._context = self._create()

    def _create(self) -> SSL.Context:
        return server_context(
            self._pair.chain, self._pair.key, self._client_cas(), http2=self._http2, profile=self._profile
        )
