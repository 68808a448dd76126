"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

NOT_READY = Code("provider-not-ready")
KEYS_NOT_FETCHED = Code("keys-not-fetched")
DISTRIBUTED_CLAIM = Code("distributed-claim")
