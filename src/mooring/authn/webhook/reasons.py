"""Reason codes of the token webhook."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason

UNREACHABLE = "webhook-unreachable"
ERROR = "webhook-error"
BAD_ANSWER = "webhook-bad-answer"
REFUSED = "refused-by-webhook"
TOKEN_NOT_TEXT = "token-not-text"  # noqa: S105 - a reason code, not a password

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        UNREACHABLE: Reason(
            "The token webhook could not be reached, so the token was rejected.",
            "See the detail: the kubeconfig in --authentication-token-webhook-config-file, the network, and the service's log.",
        ),
        ERROR: Reason(
            "The token webhook reported an error.",
            "See the detail, and the service's own log.",
        ),
        BAD_ANSWER: Reason(
            "The answer of the token webhook is not a TokenReview.",
            "See the detail, and check that the webhook uses --authentication-token-webhook-version.",
        ),
        REFUSED: Reason(
            "The token webhook rejected the token.",
            "See the detail, and the service's own log.",
        ),
        TOKEN_NOT_TEXT: Reason("The token is not text, so a TokenReview cannot carry it."),
    }
)
