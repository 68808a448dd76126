"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

NOT_A_NAME = Code("no-keystone-name")
WRONG = Code("wrong-user-or-password")
MORE_FACTORS = Code("needs-more-than-a-password")
FORBIDDEN = Code("keystone-forbids")
NOT_V3 = Code("keystone-not-found")
BUSY = Code("keystone-busy")
BROKEN = Code("keystone-failed")
UNEXPECTED = Code("keystone-unexpected-status")
UNREACHABLE = Code("keystone-unreachable")
UNREADABLE = Code("keystone-answer-unreadable")
