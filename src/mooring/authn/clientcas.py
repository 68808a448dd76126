"""The CA bundles that verify client certificates and the certificates of authenticating proxies, and the ConfigMap that names them.

Rules kept here (docs/protocol/authentication.md#client-certificates, docs/protocol/authentication.md#authenticating-proxy):
* Without allowed names for proxies the two bundles must not overlap. Otherwise every client could name any user in headers. The
  rule is checked at each change.
* The ConfigMap lets extension API servers verify their callers. Header names keep the case that the operator gave, as in
  kube-apiserver.
"""

from __future__ import annotations

import json

from mooring.apimachinery.schema import Obj
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.errors import ConfigError
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
Certificates = tuple[Certificate, ...]


class Bundles:
    """Both bundles as they are now. The cluster's own CAs verify clients until `replace_clients`."""

    def __init__(self, own: Certificates, proxy: RequestHeaderSettings) -> None:
        self._proxy = proxy
        self.clients: Certificates = own
        self.proxies: Certificates = ()

    def replace_clients(self, clients: Certificates) -> None:
        """Replace the bundle that verifies clients. Raises ConfigError."""
        self._check_overlap(clients, self.proxies)
        self.clients = clients

    def replace_proxies(self, proxies: Certificates) -> None:
        """Replace the bundle that verifies proxies. Raises ConfigError."""
        self._check_overlap(self.clients, proxies)
        self.proxies = proxies

    def _check_overlap(self, clients: Certificates, proxies: Certificates) -> None:
        if not self._proxy.requestheader_allowed_names and not set(clients).isdisjoint(proxies):
            raise ConfigError(
                "requestheader-allowed-names: it is needed, because requestheader-client-ca-file and the CAs of clients "
                "overlap: every client could speak for everybody"
            )

    def config_map(self) -> Obj:
        """Return the ConfigMap for extension API servers."""
        data = {"client-ca-file": certificates_pem(self.clients).decode()}
        if self._proxy.requestheader_client_ca_file:
            data |= self._proxy_data()
        return {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}

    def _proxy_data(self) -> dict[str, str]:
        proxy = self._proxy
        data = {
            "requestheader-client-ca-file": certificates_pem(self.proxies).decode(),
            "requestheader-allowed-names": _json_list(proxy.requestheader_allowed_names),
            "requestheader-username-headers": _json_list(proxy.requestheader_username_headers),
            "requestheader-group-headers": _json_list(proxy.requestheader_group_headers),
            "requestheader-extra-headers-prefix": _json_list(proxy.requestheader_extra_headers_prefix),
        }
        if proxy.requestheader_uid_headers:
            data["requestheader-uid-headers"] = _json_list(proxy.requestheader_uid_headers)
        return data


def _json_list(texts: tuple[str, ...]) -> str:
    return json.dumps(texts, separators=(",", ":"))
