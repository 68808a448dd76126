"""Reason codes of the recovery of nodes. Those of client certificates apply, too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import NEW_CERTIFICATE, Reason

NOT_A_NODE = "recovery-not-a-node"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        NOT_A_NODE: Reason(
            "The expired certificate is not that of a node, and only nodes recover by the key of an expired certificate.",
            NEW_CERTIFICATE,
        ),
    }
)
