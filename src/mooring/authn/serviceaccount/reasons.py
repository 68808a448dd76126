"""Reason codes of service account tokens."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import NEW_SERVICE_TOKEN, Reason

GONE = "bound-object-gone"
REPLACED = "bound-object-replaced"
DELETED = "bound-object-deleted"
UNKNOWN_KIND = "bound-object-unknown-kind"
INVALIDATED = "invalidated"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        GONE: Reason("The ServiceAccount, Secret, Pod or Node that the token lives with is gone.", NEW_SERVICE_TOKEN),
        REPLACED: Reason(
            "What the token lives with was deleted and made again under the same name.", NEW_SERVICE_TOKEN
        ),
        DELETED: Reason("What the token lives with has been on its way out for more than a minute.", NEW_SERVICE_TOKEN),
        UNKNOWN_KIND: Reason(
            "The token lives with an object of a kind that this server does not know.", NEW_SERVICE_TOKEN
        ),
        INVALIDATED: Reason(
            "The token of an old Secret was not used for a year, and was marked invalid.",
            "Use tokens of the TokenRequest API; to bring this one back, remove the label "
            "kubernetes.io/legacy-token-invalid-since from its Secret.",
        ),
    }
)
