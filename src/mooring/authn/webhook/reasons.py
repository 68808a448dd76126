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
            "The service that judges tokens could not be asked, so the token was refused.",
            "See the detail: the kubeconfig in --authentication-token-webhook-config-file, the network, and the service's log.",
        ),
        ERROR: Reason(
            "The service that judges tokens says that something went wrong.",
            "See the detail, and the service's own log.",
        ),
        BAD_ANSWER: Reason(
            "What the service that judges tokens answered is no TokenReview.",
            "See the detail, and whether the service speaks --authentication-token-webhook-version.",
        ),
        REFUSED: Reason(
            "The service that judges tokens refuses this one, and says why.",
            "See the detail, and the service's own log.",
        ),
        TOKEN_NOT_TEXT: Reason("The token is not text, so that no TokenReview could hold it."),
    }
)
