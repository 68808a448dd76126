"""Follows the files of `--client-ca-file` and `--requestheader-client-ca-file`.

Rules kept here: after a change, authenticators judge under the new CAs from the next request on, on open connections too. A change
that breaks a rule of `mooring.authn.clientcas.bundles` is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cryptography import x509

from mooring.authn.clientcas.bundles import Bundles, Certificates
from mooring.authn.host import Configured, Files
from mooring.authn.requestheader.settings import RequestHeaderSettings
from mooring.authn.x509.settings import ClientCertificateSettings
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates

log = logging.getLogger("mooring.authentication")


class FollowedClientCas:
    """The bundles of one server. `bundles` is what they are now."""

    def __init__(self, config: Configured, own: x509.Certificate, files: Files) -> None:
        """`own` is the cluster's own CA. Raises ConfigError for files that cannot be used, and for bundles that overlap."""
        self._own = own
        self._subscribers: list[Callable[[], None]] = []
        proxy = config[RequestHeaderSettings]
        self.bundles = Bundles(own, proxy)
        if path := config[ClientCertificateSettings].client_ca_file:
            self._replace_clients(files.follow(path, self._changing(self._replace_clients)))
        if path := proxy.requestheader_client_ca_file:
            self._replace_proxies(files.follow(path, self._changing(self._replace_proxies)))

    @property
    def clients(self) -> Certificates:
        """The CAs that verify clients now."""
        return self.bundles.clients

    @property
    def proxies(self) -> Certificates:
        """The CAs that verify authenticating proxies now."""
        return self.bundles.proxies

    @property
    def every(self) -> Certificates:
        """The CAs that a TLS handshake names to clients."""
        return tuple(dict.fromkeys((*self.clients, *self.proxies)))

    def subscribe(self, use: Callable[[], None]) -> None:
        """Call `use` after each change."""
        self._subscribers.append(use)

    def _changing(self, replace: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def change(data: bytes) -> None:
            replace(data)
            for use in self._subscribers:
                use()

        return change

    def _replace_clients(self, data: bytes) -> None:
        clients = _parse("client-ca-file", data)
        self.bundles.replace_clients(clients)
        if self._own not in clients:
            log.warning(
                "client-ca-file does not hold this cluster's own CA: certificates of nodes, and the one in admin.conf, are "
                "refused; add pki/ca.crt of the data directory to the file to keep them"
            )

    def _replace_proxies(self, data: bytes) -> None:
        self.bundles.replace_proxies(_parse("requestheader-client-ca-file", data))


def _parse(key: str, data: bytes) -> Certificates:
    try:
        return certificates(data)
    except PkiError as error:
        raise ConfigError(f"{key}: {error}") from None
