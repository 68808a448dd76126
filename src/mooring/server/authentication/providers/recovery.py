"""Runs the authenticator of recovering nodes, which follows the CAs of clients.

Rules kept here: CAs that a rollover has retired verify here, and nowhere else, so that a machine that was off throughout comes
back.
"""

from __future__ import annotations

from mooring.authn.host import Configured, Host, Running
from mooring.authn.recovery import OFF, RecoveryAuthenticator, RecoverySettings
from mooring.authn.x509 import with_crls
from mooring.pki.x509.verify import ClientTrust


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None with `--node-recovery=off`."""
    if config[RecoverySettings].node_recovery == OFF:
        return None
    cas = host.client_cas

    def clients() -> ClientTrust:
        return ClientTrust(cas.clients, cas.issuing, cas.distrusted, cas.forgotten)

    def retired() -> ClientTrust:
        gone = (one for one in cas.distrusted if one not in cas.retired)
        return ClientTrust(cas.retired, cas.retired, gone, cas.forgotten)

    authenticator = RecoveryAuthenticator(clients(), with_crls(cas.crls), retired())
    cas.subscribe(lambda: authenticator.replace(clients(), retired()))
    return Running(authenticators=(authenticator,), turned_on_by="node-recovery")
