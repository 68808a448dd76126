"""Runs the authenticator of client certificates, which follows the CAs of clients."""

from __future__ import annotations

from mooring.authn.host import ALWAYS, Configured, Host, Running
from mooring.authn.x509 import ClientCertificateAuthenticator, ClientCertificateSettings, with_crls
from mooring.pki.x509.verify import ClientTrust


def build(config: Configured, host: Host) -> Running:
    """Return the authenticator of client certificates, which is always on."""
    cas = host.client_cas
    trust = ClientTrust(cas.clients, cas.issuing, cas.distrusted, cas.forgotten)
    authenticator = ClientCertificateAuthenticator(trust, checks=with_crls(cas.crls))
    cas.subscribe(lambda: authenticator.replace(ClientTrust(cas.clients, cas.issuing, cas.distrusted, cas.forgotten)))
    replaced = bool(config[ClientCertificateSettings].client_ca_file)
    return Running(authenticators=(authenticator,), turned_on_by="client-ca-file" if replaced else ALWAYS)
