"""Reason codes of authenticating proxies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason

NAME_NOT_ALLOWED = "proxy-name-not-allowed"
NO_USER_HEADER = "no-user-header"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        NAME_NOT_ALLOWED: Reason(
            "The certificate is of the proxies' CA, but its common name may not speak for users.",
            "Add the name to --requestheader-allowed-names if it is a proxy. An ordinary user needs another certificate.",
        ),
        NO_USER_HEADER: Reason(
            "The proxy named no user: no user header was set.",
            "Let the proxy send one of --requestheader-username-headers.",
        ),
    }
)
