"""Reason codes of the server token and the agent token."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason
from mooring.trust.k3s.acceptedtokens import ROTATED, WRONG

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
    }
)
