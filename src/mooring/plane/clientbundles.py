"""The CAs that clients and authenticating proxies are verified under, followed while the server runs.

Rules kept here (docs/protocol/authentication.md):
* When a file changes, authenticators judge under the new CAs from the next request on, on open connections too; new connections
  are told their names; the ConfigMap says so to extension API servers.
* Without allowed names for proxies, the bundles of clients and of proxies may not overlap: every client could speak for everybody.
  This is looked at again at each change, and a change that breaks it is not used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable

from cryptography import x509

from mooring.apimachinery.schema import Obj
from mooring.authn.authenticator import Authenticator
from mooring.authn.requestheader.authenticator import HeaderNames, RequestHeaderAuthenticator
from mooring.authn.x509.authenticator import ClientCertificateAuthenticator
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates, certificates_pem
from mooring.pki.x509.verify import ClientTrust
from mooring.plane.reloading import Apply, Reloading
from mooring.settings.authentication import AuthenticationOptions, RequestHeaders

log = logging.getLogger("mooring.authentication")

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
Certificates = tuple[x509.Certificate, ...]


class ClientBundles:
    """Both bundles of one server. `changed` is called after each change that is in force."""

    def __init__(
        self,
        options: AuthenticationOptions,
        own: x509.Certificate,
        reloading: Reloading,
        changed: Callable[[], None],
    ) -> None:
        """Raises ConfigError for files that cannot be used, and for bundles that overlap."""
        self._own = own
        self.clients: Certificates = (own,)
        self.proxies: Certificates = ()
        self.headers = options.request_headers
        self._changed = changed
        self._authenticators: tuple[Authenticator, ...] = ()
        if options.client_ca_file:
            reloading.add(options.client_ca_file, self._applied("client-ca-file", self._with_clients))
        if self.headers is not None:
            key = "requestheader-client-ca-file"
            reloading.add(self.headers.client_ca_file, self._applied(key, self._with_proxies))

    @property
    def every(self) -> Certificates:
        """Whose names are told in a TLS handshake."""
        return tuple(dict.fromkeys((*self.clients, *self.proxies)))

    @property
    def names(self) -> HeaderNames | None:
        """The headers a proxy speaks in, where there is one."""
        headers = self.headers
        if headers is None:
            return None
        return HeaderNames(
            username=_lowered(headers.username_headers),
            uid=_lowered(headers.uid_headers),
            groups=_lowered(headers.group_headers),
            extra_prefixes=_lowered(headers.extra_headers_prefixes),
        )

    @property
    def request_header(self) -> tuple[ClientTrust, HeaderNames, tuple[str, ...]] | None:
        """What the authenticator of proxies is made of."""
        names = self.names
        if self.headers is None or names is None:
            return None
        return ClientTrust(self.proxies), names, self.headers.allowed_names

    def follow_with(self, authenticators: Iterable[Authenticator]) -> None:
        """These judge under what changes from now on."""
        self._authenticators = tuple(authenticators)

    def _applied(self, key: str, use: Callable[[Certificates], None]) -> Apply:
        def apply(data: bytes) -> None:
            try:
                found = certificates(data)
            except PkiError as error:
                raise ConfigError(f"{key}: {error}") from None
            use(found)
            for one in self._authenticators:
                if isinstance(one, ClientCertificateAuthenticator):
                    one.replace(ClientTrust(self.clients))
                elif isinstance(one, RequestHeaderAuthenticator):
                    one.replace(ClientTrust(self.proxies))
            self._changed()

        return apply

    def _with_clients(self, clients: Certificates) -> None:
        self._refuse_overlap(clients, self.proxies)
        if self._own not in clients:
            log.warning(
                "client-ca-file does not hold this cluster's own CA: certificates of nodes, and the one in admin.conf, are "
                "refused; add pki/ca.crt of the data directory to the file to keep them"
            )
        self.clients = clients

    def _with_proxies(self, proxies: Certificates) -> None:
        self._refuse_overlap(self.clients, proxies)
        self.proxies = proxies

    def _refuse_overlap(self, clients: Certificates, proxies: Certificates) -> None:
        if self.headers is not None and not self.headers.allowed_names and not set(clients).isdisjoint(proxies):
            raise ConfigError(
                "requestheader-allowed-names: it is needed, because requestheader-client-ca-file and the CAs of clients "
                "overlap: every client could speak for everybody"
            )

    def config_map(self) -> Obj:
        """What extension API servers read to know their callers."""
        data = {"client-ca-file": certificates_pem(self.clients).decode()}
        if self.headers is not None:
            data |= _proxy_data(self.headers, self.proxies)
        return {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}


def _lowered(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return header names as requests carry them, each once."""
    return tuple(dict.fromkeys(name.lower() for name in names))


def _listed(texts: tuple[str, ...]) -> str:
    return json.dumps(texts, separators=(",", ":"))


def _proxy_data(headers: RequestHeaders, proxies: Certificates) -> dict[str, str]:
    """Return the proxy's keys of the ConfigMap; names keep the case that the operator gave, as in kube-apiserver."""
    data = {
        "requestheader-client-ca-file": certificates_pem(proxies).decode(),
        "requestheader-allowed-names": _listed(headers.allowed_names),
        "requestheader-username-headers": _listed(headers.username_headers),
        "requestheader-group-headers": _listed(headers.group_headers),
        "requestheader-extra-headers-prefix": _listed(headers.extra_headers_prefixes),
    }
    if headers.uid_headers:
        data["requestheader-uid-headers"] = _listed(headers.uid_headers)
    return data
