"""Reason codes of anonymous requests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason

PATH_NOT_ANONYMOUS = "path-not-anonymous"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        PATH_NOT_ANONYMOUS: Reason(
            "Anonymous requests are allowed for other paths only.",
            "Send a credential, or add the path to anonymous.conditions of the AuthenticationConfiguration.",
        ),
    }
)
