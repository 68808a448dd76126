"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

MISSING_CLAIM = Code("missing-claim")
MALFORMED_CLAIM = Code("malformed-claim")
WRONG_CLAIM = Code("wrong-claim")
EMAIL_NOT_VERIFIED = Code("email-not-verified")
MAPPING_FAILED = Code("mapping-failed")
CLAIM_RULE = Code("claim-rule")
USER_RULE = Code("user-rule")
