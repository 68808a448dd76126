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
            "The user name is not one that Keystone could have.",
            "Give user, or domain and user as the documentation says.",
        ),
        WRONG: Reason(
            "Keystone does not know this user with this password, or has disabled the user.",
            "Try the same with: openstack token issue.",
        ),
        MORE_FACTORS: Reason(
            "Keystone wants another factor of this user.",
            "Let the user come in another way; passwords alone will not do.",
        ),
        FORBIDDEN: Reason(
            "Keystone knows the user and does not let the user in.",
            "See whether the password expired or the user is locked.",
        ),
        NOT_V3: Reason(
            "There is no Keystone of version 3 at this URL.",
            "Correct --keystone-url; it ends in /v3 in most installations.",
        ),
        BUSY: Reason("Keystone has too much to do.", "Try again; if it stays so, see its own log."),
        BROKEN: Reason("Keystone failed.", "See its own log at that time."),
        UNEXPECTED: Reason(
            "Keystone answered something that is none of its answers.", "See the detail, and what stands between."
        ),
        UNREACHABLE: Reason(
            "Keystone could not be asked.",
            "See the detail: the URL, the network between, and whether its certificate is of a CA in --keystone-ca-file.",
        ),
        UNREADABLE: Reason(
            "What Keystone answered cannot be understood.",
            "See the detail, and whether --keystone-url is the right one.",
        ),
    }
)
