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
            "The issuer's keys are not known yet: it was not asked with success since this server started.",
            "See the detail and this server's log; the issuer is asked again every ten seconds.",
        ),
        KEYS_NOT_FETCHED: Reason(
            "The token names a key that is not known, and the issuer did not give its keys when asked.",
            "See whether the issuer is up, can be reached from this server, and shows a certificate of the CA that is named.",
        ),
        **CLAIM_REASONS,
        DISTRIBUTED_CLAIM: Reason(
            "The groups are kept elsewhere, and could not be fetched from there.",
            "See the detail; the source must be https and be reached from this server.",
        ),
    }
)
