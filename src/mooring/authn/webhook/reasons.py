"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

UNREACHABLE = Code("webhook-unreachable")
ERROR = Code("webhook-error")
BAD_ANSWER = Code("webhook-bad-answer")
REFUSED = Code("refused-by-webhook")
TOKEN_NOT_TEXT = Code("token-not-text")
