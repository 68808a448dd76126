"""Which Secrets are bootstrap tokens: the one question the token controllers ask of every Secret event.

Rules kept here: the type and the namespace decide, as upstream (docs/protocol/bootstrap-tokens.md#token-cleaner,
docs/protocol/cluster-info.md#bootstrap-signer), so that the thousands of other Secrets of a cluster wake nobody. A token without a
readable expiration has none that could be waited for.
"""

from __future__ import annotations

from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.trust.bootstraptoken.record import NAMESPACE, SECRET_TYPE, expiration
from mooring.trust.bootstraptoken.token import TokenError

SECRETS = "secrets"


def is_token(secret: Obj) -> bool:
    """Whether this Secret is a bootstrap token, well formed or not."""
    return secret.get("type") == SECRET_TYPE and secret["metadata"].get("namespace") == NAMESPACE


def expires(secret: Obj) -> datetime | None:
    """When the token expires; None when never, or when that cannot be read."""
    try:
        return expiration(secret)
    except TokenError:
        return None
