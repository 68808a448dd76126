"""Reason codes of Keystone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason

NOT_A_NAME = "no-keystone-name"
WRONG = "wrong-user-or-password"
MORE_FACTORS = "needs-more-than-a-password"
FORBIDDEN = "keystone-forbids"
NOT_V3 = "keystone-not-found"
BUSY = "keystone-busy"
BROKEN = "keystone-failed"
UNEXPECTED = "keystone-unexpected-status"
UNREACHABLE = "keystone-unreachable"
UNREADABLE = "keystone-answer-unreadable"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        NOT_A_NAME: Reason(
            "Keystone cannot have this user name.",
            "Give user, or domain and user as the documentation says.",
        ),
        WRONG: Reason(
            "Keystone does not know this user with this password, or has disabled the user.",
            "Try the same with: openstack token issue.",
        ),
        MORE_FACTORS: Reason(
            "Keystone requires another factor from this user.",
            "Use another authenticator for this user; a password alone is not enough.",
        ),
        FORBIDDEN: Reason(
            "Keystone knows the user and rejects the login.",
            "See whether the password expired or the user is locked.",
        ),
        NOT_V3: Reason(
            "There is no Keystone of version 3 at this URL.",
            "Correct --keystone-url; it ends in /v3 in most installations.",
        ),
        BUSY: Reason("Keystone is overloaded.", "Try again. If it persists, see its own log."),
        BROKEN: Reason("Keystone failed.", "See its own log at that time."),
        UNEXPECTED: Reason(
            "Keystone answered with an unexpected status.", "See the detail, and check proxies in between."
        ),
        UNREACHABLE: Reason(
            "Keystone could not be reached.",
            "See the detail: the URL, the network between, and whether its certificate is of a CA in --keystone-ca-file.",
        ),
        UNREADABLE: Reason(
            "The answer of Keystone cannot be read.",
            "See the detail, and check --keystone-url.",
        ),
    }
)
