"""The lines that make a machine a member, as `init`, `up` and `token create` print them.

Source: docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands.

Rules kept here: one hash flag for each CA; a withheld token prints `<value withheld>`; the line fits a shell as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

WITHHELD = "<value withheld>"


def join_line(program: str, endpoints: Sequence[str], token: str, pins: Sequence[str]) -> str:
    """`<program> join HOST:PORT… --token T --discovery-token-ca-cert-hash sha256:…`."""
    hashes = "".join(f" --discovery-token-ca-cert-hash {pin}" for pin in pins)
    return f"{program} join {' '.join(endpoints)} --token {token}{hashes}"
