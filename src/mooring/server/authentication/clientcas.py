"""Follows the files of `--client-ca-file`, `--requestheader-client-ca-file` and `--client-crl-file`.

Rules kept here:
* After a change, authenticators judge under the new CAs and CRLs from the next request on, on open connections too.
* A change that breaks a rule of `mooring.authn.clientcas` or `mooring.pki.x509.crl` is not used.
* CRLs are read in a thread, because one may have 100 000 entries. They are verified under the CAs that the files hold at that time,
  and read again when those change, before the new CAs are in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mooring.authn.clientcas import Bundles, Certificates
from mooring.authn.host import Configured, Files
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.x509 import ClientCertificateSettings, ClientCrls
from mooring.errors import ConfigError
from mooring.observed import Observed
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates_among, key_identities
from mooring.pki.x509.clusterca import ClientCertificateIssuers
from mooring.pki.x509.crl import MAX_CRL_BYTES, Crl, newest_crls, revoked_anchors, verified_crls

log = logging.getLogger("mooring.authentication")


class FollowedClientCas(Observed[[]]):
    """The bundles of one server. `bundles` is what they are now."""

    def __init__(self, config: Configured, own: ClientCertificateIssuers, files: Files) -> None:
        """Follow `own`, the CAs that issue, and the files. Raises ConfigError for files that cannot be used, and for overlaps."""
        self._own = own
        super().__init__()
        proxy = config[RequestHeaderSettings]
        self._from_file = bool(config[ClientCertificateSettings].client_ca_file)
        self.bundles = Bundles(own.trusted, proxy)
        client = config[ClientCertificateSettings]
        self.crls = ClientCrls(required=client.client_crl_strict)
        self._files = files
        self._crl_files = client.client_crl_file
        self._ca_files = {
            "client-ca-file": client.client_ca_file,
            "requestheader-client-ca-file": proxy.requestheader_client_ca_file,
        }
        if self._crl_files:
            followed = (*filter(None, self._ca_files.values()), *self._crl_files)
            files.follow_files(followed, self._prepare_crls)
        if path := config[ClientCertificateSettings].client_ca_file:
            self._replace_clients(files.follow(path, self._changing(self._replace_clients)))
        own.subscribe(self._follow_own)
        if path := proxy.requestheader_client_ca_file:
            self._replace_proxies(files.follow(path, self._changing(self._replace_proxies)))
        self._exempt_own()
        if self._crl_files:
            self._prepare_crls()()

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

    @property
    def distrusted(self) -> Certificates:
        """The CAs whose keys may stand on no path."""
        return self._own.distrusted

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""
        return self._own.forgotten

    def _changing(self, replace: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def change(data: bytes) -> None:
            replace(data)
            self.notify()

        return change

    def _exempt_own(self) -> None:
        own = (*self._own.trusted, *self._own.retired)
        self.crls.exempt({key for ca in own for key in key_identities(ca)})

    def _prepare_crls(self) -> Callable[[], None]:
        """Read the CRLs, in a thread once the server runs. Raises ConfigError."""
        cas = list(self._own.trusted)
        for key, path in self._ca_files.items():
            if path:
                cas += self._parse(key, self._files.read(path))
        found: list[Crl] = []
        for path in self._crl_files:
            try:
                found += verified_crls(self._files.read(path, MAX_CRL_BYTES), cas)
            except PkiError as error:
                raise ConfigError(f"client-crl-file: {path}: {error}") from None
        try:
            crls = newest_crls(found, self.crls.crls)
        except PkiError as error:
            raise ConfigError(f"client-crl-file: {error}") from None
        revoked = revoked_anchors(cas, crls.values())

        def use() -> None:
            self.crls.replace(crls, revoked)
            self.notify()

        return use

    def _follow_own(self) -> None:
        """Use the CAs that issue as they are now, unless client-ca-file names others."""
        if not self._from_file:
            try:
                self.bundles.replace_clients(self._own.trusted)
            except ConfigError as error:
                log.error("the CAs of clients stay as they are: %s", error)
        self._exempt_own()
        self.notify()

    def _replace_clients(self, data: bytes) -> None:
        clients = self._parse("client-ca-file", data)
        self.bundles.replace_clients(clients)
        for place, certificate in self._own.issuers.items():
            if certificate not in clients:
                log.warning(
                    "client-ca-file does not hold %s: client certificates that it signs are refused; append it to the file to "
                    "keep them",
                    place,
                )

    def _replace_proxies(self, data: bytes) -> None:
        self.bundles.replace_proxies(self._parse("requestheader-client-ca-file", data))

    def _parse(self, key: str, data: bytes) -> Certificates:
        try:
            return certificates_among(data)
        except PkiError as error:
            raise ConfigError(f"{key}: {self._ca_files[key]}: {error}") from None
