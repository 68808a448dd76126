"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

NOT_A_NODE = Code("recovery-not-a-node")
