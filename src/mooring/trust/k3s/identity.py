"""The supervisor API of k3s: its paths and headers, and the users and groups that open it (docs/protocol/k3s.md#supervisor).

Rules kept here: the names are k3s's, with its program name `k3s`. HTTP compares names of headers without regard to case.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from types import MappingProxyType

from mooring.identity import BOOTSTRAPPERS, NODES, UserInfo
from mooring.trust.joinrule import AUTHENTICATOR as JOIN_RULE
from mooring.trust.k3s.token import NODE, SERVER

PREFIX = "/v1-k3s"

CACERTS = "/cacerts"
PING = "/ping"
STATIC = "/static/"
CONFIG = f"{PREFIX}/config"
CLIENT_CA = f"{PREFIX}/client-ca.crt"
SERVER_CA = f"{PREFIX}/server-ca.crt"
APISERVERS = f"{PREFIX}/apiservers"
READYZ = f"{PREFIX}/readyz"
CONNECT = f"{PREFIX}/connect"
SERVING_KUBELET = f"{PREFIX}/serving-kubelet.crt"
CLIENT_KUBELET = f"{PREFIX}/client-kubelet.crt"
CLIENT_KUBE_PROXY = f"{PREFIX}/client-kube-proxy.crt"
CLIENT_CONTROLLER = f"{PREFIX}/client-k3s-controller.crt"
SERVER_BOOTSTRAP = f"{PREFIX}/server-bootstrap"
TOKEN = f"{PREFIX}/token"
CERT_CACERTS = f"{PREFIX}/cert/cacerts"
ENCRYPT_STATUS = f"{PREFIX}/encrypt/status"
ENCRYPT_CONFIG = f"{PREFIX}/encrypt/config"

NODE_NAME = "k3s-node-name"
NODE_PASSWORD = "k3s-node-password"  # noqa: S105 - the name of a header, not a password
NODE_IP = "k3s-node-ip"


# Users and groups of k3s's join credentials, and the groups that open each level of the supervisor API.
#
# Rules kept here (docs/protocol/k3s.md#authentication-of-the-supervisor, docs/adr/0051-the-supervisor-api.md):
# * The server token is the password of user `server` in group `k3s:server`. The agent token is that of user `node` in group
#   `k3s:agent`; without an agent token, the server token is.
# * Agent level is open to `k3s:agent`, `k3s:server`, `system:nodes` and `system:bootstrappers`, node level to `system:nodes`,
#   server level to `k3s:server`.
# * The two groups of k3s count only when the authenticator of k3s tokens gave them. A client certificate or an identity provider
#   that names `k3s:server` opens nothing: its holder could take the keys of the CA.
# * A request that impersonates is refused at every level: the headers are about the Kubernetes API.

SERVER_USER, AGENT_USER = SERVER, NODE
SERVERS, AGENTS = "k3s:server", "k3s:agent"
AUTHENTICATOR = "k3s-token"
"""Name of the authenticator of both tokens."""

SERVER_IDENTITY = UserInfo(SERVER_USER, groups=(SERVERS,))
AGENT_IDENTITY = UserInfo(AGENT_USER, groups=(AGENTS,))

NOT_AUTHENTICATED = "supervisor-no-credential"
WRONG_GROUP = "supervisor-wrong-group"
IMPERSONATES = "supervisor-impersonation"
NO_NODE = "supervisor-no-node"
"""Reason codes for the operator; the client learns `forbidden`."""


class Access(Enum):
    """Level of a route: the credentials that open it."""

    PUBLIC = "public"
    """No credential is read."""
    AGENT = "agent"
    NODE = "node"
    SERVER = "server"


_GROUPS: Mapping[Access, frozenset[str]] = MappingProxyType(
    {
        Access.AGENT: frozenset({AGENTS, SERVERS, NODES, BOOTSTRAPPERS}),
        Access.NODE: frozenset({NODES}),
        Access.SERVER: frozenset({SERVERS}),
    }
)
_OWN = frozenset({SERVERS, AGENTS})


def access_refusal(access: Access, authenticator: str, groups: Collection[str], *, impersonates: bool = False) -> str:
    """Return the reason code for which an authenticated user may not use routes of this level; "" when it may.

    `authenticator`: name of the one that accepted the credential; "" without a credential.
    """
    if access is Access.PUBLIC:
        return ""
    if not authenticator:
        return NOT_AUTHENTICATED
    # A join rule allows names in kubeadm's way only. Here its machine could set the first password of any free name.
    if authenticator == JOIN_RULE:
        return WRONG_GROUP
    held = frozenset(groups) if authenticator == AUTHENTICATOR else frozenset(groups) - _OWN
    if held.isdisjoint(_GROUPS[access]):
        return WRONG_GROUP
    return IMPERSONATES if impersonates else ""
