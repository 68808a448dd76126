"""Reason codes of the mapping from claims to a user."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import ASK_ISSUER, Reason

MISSING_CLAIM = "missing-claim"
MALFORMED_CLAIM = "malformed-claim"
WRONG_CLAIM = "wrong-claim"
EMAIL_NOT_VERIFIED = "email-not-verified"
MAPPING_FAILED = "mapping-failed"
CLAIM_RULE = "claim-rule"
USER_RULE = "user-rule"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        MISSING_CLAIM: Reason("The token lacks a claim that the configuration requires.", ASK_ISSUER),
        MALFORMED_CLAIM: Reason("A claim is not of the type that the configuration requires.", ASK_ISSUER),
        WRONG_CLAIM: Reason("A claim does not have the required value.", ASK_ISSUER),
        EMAIL_NOT_VERIFIED: Reason(
            "The user name is an e-mail address that the issuer has not verified, or email_verified is not true or false.",
            "See the detail. Let the user verify it at the issuer, or choose another claim as user name.",
        ),
        MAPPING_FAILED: Reason(
            "An expression of the configuration did not map the claims to a user.",
            "See the detail, and correct claimMappings in the AuthenticationConfiguration; it is read again when it changes.",
        ),
        CLAIM_RULE: Reason(
            "A claimValidationRule of the configuration rejects the token.",
            "If the token should pass, correct the rule; the file is read again when it changes.",
        ),
        USER_RULE: Reason(
            "A userValidationRule of the configuration rejects the user.",
            "If the user should pass, correct the rule; the file is read again when it changes.",
        ),
    }
)
