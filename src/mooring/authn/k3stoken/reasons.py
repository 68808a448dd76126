"""Reason codes of the server token and the agent token, and of the levels of the supervisor API."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason
from mooring.trust.k3s.acceptedtokens import ROTATED, ROTATED_AGENT, WRONG
from mooring.trust.k3s.identity import IMPERSONATES, NO_NODE, NOT_AUTHENTICATED, WRONG_GROUP

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        WRONG: Reason(
            "The password of user server or node is neither the server token nor the agent token.",
            "Take the token from server/token or server/agent-token in the data directory of a server.",
        ),
        ROTATED: Reason(
            "The server token was rotated, and the grace of the old one has ended.",
            "Give this machine the new token: server/token in the data directory of a server.",
        ),
        ROTATED_AGENT: Reason(
            "The agent token was rotated, and the grace of the old one has ended. The first agent token replaces the server token.",
            "Give this machine the new token: server/agent-token in the data directory of a server.",
        ),
        NOT_AUTHENTICATED: Reason(
            "A request to the supervisor API without a credential.",
            "Give the machine a token: --token, or the certificate that it got when it joined.",
        ),
        WRONG_GROUP: Reason(
            "The credential is good, and not for this path of the supervisor API. Server level needs the server token as user "
            "server. Agent level needs one of the two tokens, a bootstrap token or the certificate of a node. The tunnel needs the "
            "last.",
            "Give the credential that the path needs. An administrator's certificate opens none of them.",
        ),
        IMPERSONATES: Reason(
            "A request to the supervisor API with headers of impersonation.",
            "Send it without them. A proxy that adds them must not forward these paths.",
        ),
        NO_NODE: Reason(
            "A credential in group system:nodes whose user is not system:node:<name> asked for the tunnel.",
            "Use the certificate that the node got when it joined.",
        ),
    }
)
