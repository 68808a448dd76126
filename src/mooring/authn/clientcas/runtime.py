"""Follows the files of `--client-ca-file` and `--requestheader-client-ca-file`.

Rules kept here: after a change, authenticators judge under the new CAs from the next request on, on open connections too. A change
that breaks a rule of `mooring.authn.clientcas.bundles` is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mooring.authn.clientcas.bundles import Bundles, Certificates
from mooring.authn.host import Configured, Files
from mooring.authn.requestheader.settings import RequestHeaderSettings
from mooring.authn.x509.settings import ClientCertificateSettings
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates
from mooring.pki.x509.clientissuers import IssuingCas

log = logging.getLogger("mooring.authentication")


class FollowedClientCas:
    """The bundles of one server. `bundles` is what they are now."""

    def __init__(self, config: Configured, own: IssuingCas, files: Files) -> None:
        """Follow `own`, the CAs that issue, and the files. Raises ConfigError for files that cannot be used, and for overlaps."""
        self._own = own
        self._subscribers: list[Callable[[], None]] = []
        proxy = config[RequestHeaderSettings]
        self._from_file = bool(config[ClientCertificateSettings].client_ca_file)
        self.bundles = Bundles(own.trusted, proxy)
        if path := config[ClientCertificateSettings].client_ca_file:
            self._replace_clients(files.follow(path, self._changing(self._replace_clients)))
        own.subscribe(self._follow_own)
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
    def issuing(self) -> Certificates:
        """The CAs of this cluster's signers, whose certificates begin `BACKDATE` before they are issued."""
        return self._own.trusted

    @property
    def every(self) -> Certificates:
        """The CAs that a TLS handshake names to clients."""
        return tuple(dict.fromkeys((*self.clients, *self.proxies)))

    @property
    def retired(self) -> Certificates:
        """The CAs that a rollover retired. They verify only the way back of a machine that was off."""
        return self._own.retired

    def subscribe(self, use: Callable[[], None]) -> None:
        """Call `use` after each change."""
        self._subscribers.append(use)

    def _changing(self, replace: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def change(data: bytes) -> None:
            replace(data)
            self._notify()

        return change

    def _notify(self) -> None:
        for use in self._subscribers:
            use()

    def _follow_own(self) -> None:
        """Use the CAs that issue as they are now, unless client-ca-file names others."""
        if not self._from_file:
            try:
                self.bundles.replace_clients(self._own.trusted)
            except ConfigError as error:
                log.error("the CAs of clients stay as they are: %s", error)
        self._notify()

    def _replace_clients(self, data: bytes) -> None:
        clients = _parse("client-ca-file", data)
        self.bundles.replace_clients(clients)
        for place, certificate in self._own.issuers.items():
            if certificate not in clients:
                log.warning(
                    "client-ca-file does not hold %s: client certificates that it signs are refused; append it to the file to "
                    "keep them",
                    place,
                )

    def _replace_proxies(self, data: bytes) -> None:
        self.bundles.replace_proxies(_parse("requestheader-client-ca-file", data))


def _parse(key: str, data: bytes) -> Certificates:
    try:
        return certificates(data)
    except PkiError as error:
        raise ConfigError(f"{key}: {error}") from None
