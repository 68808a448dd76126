"""Recognition of bootstrap token Secrets and their expiration, for the token controllers.

Rules kept here (docs/protocol/bootstrap-tokens.md#token-cleaner, docs/protocol/cluster-info.md#bootstrap-signer):
* Type and namespace decide, as upstream, so that events of the other Secrets of a cluster enqueue nothing.
* A token whose expiration cannot be parsed counts as one without expiration.
"""

from __future__ import annotations

from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, SECRET_TYPE, expiration

SECRETS = "secrets"


def is_token(secret: Obj) -> bool:
    """Return true when the Secret is a bootstrap token, well formed or not."""
    return secret.get("type") == SECRET_TYPE and secret["metadata"].get("namespace") == NAMESPACE


def expiration_of(secret: Obj) -> datetime | None:
    """Return the expiration of the token; None when it has none or it cannot be parsed."""
    try:
        return expiration(secret)
    except TokenError:
        return None
