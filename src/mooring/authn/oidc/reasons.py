"""Reason codes of OpenID Connect."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.claims.reasons import REASONS as CLAIM_REASONS
from mooring.authn.reasons import Reason

NOT_READY = "provider-not-ready"
KEYS_NOT_FETCHED = "keys-not-fetched"
DISTRIBUTED_CLAIM = "distributed-claim"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        NOT_READY: Reason(
            "The issuer's keys are not known yet: they could not be fetched since this server started.",
            "See the detail and this server's log. The server fetches the keys again every ten seconds.",
        ),
        KEYS_NOT_FETCHED: Reason(
            "The token names an unknown key, and the issuer's keys could not be fetched again.",
            "Check that the issuer is up, can be reached from this server, and has a certificate of the configured CA.",
        ),
        **CLAIM_REASONS,
        DISTRIBUTED_CLAIM: Reason(
            "The token names another service for the groups, and they could not be fetched from it.",
            "See the detail. The service must be https and reachable from this server.",
        ),
    }
)
