"""Errors of a join the k3s way: a table of causes, each with its code and its message to the user.

Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
* A message names the failed step, the cause and the remedy, never a token or a node password.
* `final` is True when another attempt at the same server cannot help.
"""

from __future__ import annotations

from mooring.trust.answertext import explained_by, in_brackets
from mooring.trust.discovery.errors import DiscoveryError, cause

UnusableResponseError = cause("unusable-response", "{}; check the address and the port")
"""The response is not what a supervisor sends."""
CaMismatchError = cause("ca-mismatch", "{}; nothing secret was sent to this server", final=True)
CaNotProvenError = cause(
    "ca-not-proven",
    "CA cert validation failed: the server's certificate does not verify under the CA of the cluster ({}); "
    "another machine may answer in its place, or the address is not among the names of the certificate",
)
"""The server does not verify under the CA that it serves, or that the token names."""
KnownCaError = cause(
    "known-ca",
    "the server's certificate does not verify under the CA that this machine keeps ({}); if the CA of the "
    "cluster was replaced, give a whole token of the form K10<hash>::…, whose hash names the new one",
)
"""The server does not verify under the CA that this machine keeps from an earlier run."""
BusyError = cause("busy", "the server answered 429: {}")
RequestRefusedError = cause("request-refused", "the server answered 400{}; check --node-name and --node-ip", final=True)
"""400: the request itself is wrong."""


class NotASupervisorError(DiscoveryError):
    code = "not-a-supervisor"
    text = (
        "the server answered with status {}{}, so it offers no k3s supervisor API; "
        "check the address, and start a Mooring server with --k3s-supervisor"
    )

    def __init__(self, step: str, status: int, text: str = "") -> None:
        super().__init__(step, status, in_brackets(text))


class CredentialRefusedError(DiscoveryError):
    """401 or 403 to the credential itself."""

    code = "credential-refused"
    text = "the server answered {}: it does not accept {}{}{}"

    def __init__(self, step: str, status: int, credential: str, detail: str, audit_id: str = "") -> None:
        super().__init__(step, status, credential, detail, explained_by(audit_id))
        self.is_recorded = bool(explained_by(audit_id))
        """True for a response with an Audit-Id, which the supervisor of k3s does not send."""


class CertificateAloneRefusedError(CredentialRefusedError):
    """The server rejects the certificate of this machine, and there is no token."""

    code = "certificate-refused"

    def __init__(self, step: str, status: int, detail: str, audit_id: str = "") -> None:
        super().__init__(
            step,
            status,
            "the certificate of this machine",
            f"{detail}: the Node was deleted, the certificate was revoked, or the server no longer trusts its CA; give a valid "
            "token to join again (--token-file, --token or K3S_TOKEN)",
            audit_id,
        )


class NodeRefusedError(DiscoveryError):
    """403 to a request that names a node, with the reason that the server gives; "" when it gives none."""

    code = "node-refused"
    text = 'the server answered 403 for the node "{}": {}{}'
    final = True

    def __init__(self, step: str, node_name: str, reason: str, audit_id: str = "") -> None:
        given = reason or (
            "it gives no reason; the node password is wrong, or the name belongs to another machine, or the token is not for "
            "this node name, or for no further machine"
        )
        super().__init__(step, node_name, given, explained_by(audit_id))


class NodePasswordRefusedError(NodeRefusedError):
    """403 because the node password is not the one that the server keeps for the name."""

    code = "node-password-refused"

    def __init__(self, step: str, node_name: str, reason: str, password_file: str, audit_id: str = "") -> None:
        super().__init__(
            step,
            node_name,
            f"{reason}: another machine has this name, or {password_file} is not the file with which this machine joined; choose "
            "another name with --node-name or --with-node-id. Only where the Node is that of this machine, which was installed "
            f"again: run `kubectl delete node {node_name}`",
            audit_id,
        )
