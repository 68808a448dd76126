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
        GONE: Reason("The ServiceAccount, Secret, Pod or Node that the token is bound to is gone.", NEW_SERVICE_TOKEN),
        REPLACED: Reason(
            "The object that the token is bound to was deleted and made again under the same name.", NEW_SERVICE_TOKEN
        ),
        DELETED: Reason("The object that the token is bound to was deleted more than a minute ago.", NEW_SERVICE_TOKEN),
        UNKNOWN_KIND: Reason(
            "The token is bound to an object of a kind that this server does not know.", NEW_SERVICE_TOKEN
        ),
        INVALIDATED: Reason(
            "The token of an old Secret was not used for a year, and was marked invalid.",
            "Use tokens of the TokenRequest API; to bring this one back, remove the label "
            "kubernetes.io/legacy-token-invalid-since from its Secret.",
        ),
    }
)
