"""Protobuf codec: messages by schema (`decode`, `encode`), and the envelopes and watch frames around them (`envelope`)."""
