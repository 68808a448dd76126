"""Runs the authenticator of authenticating proxies, which follows the CAs of proxies."""

from __future__ import annotations

from mooring.authn.host import Configured, Host, Running
from mooring.authn.requestheader import RequestHeaderAuthenticator
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.x509 import with_crls
from mooring.pki.x509.verify import ClientTrust


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without `--requestheader-client-ca-file`."""
    settings = config[RequestHeaderSettings]
    names = settings.names
    if names is None:
        return None
    cas = host.client_cas
    authenticator = RequestHeaderAuthenticator(
        ClientTrust(cas.proxies, (), cas.distrusted, cas.forgotten),
        names,
        settings.requestheader_allowed_names,
        with_crls(cas.crls),
    )
    cas.subscribe(lambda: authenticator.replace(ClientTrust(cas.proxies, (), cas.distrusted, cas.forgotten)))
    return Running(authenticators=(authenticator,), turned_on_by="requestheader-client-ca-file")
